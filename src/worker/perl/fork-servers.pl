# Starts commands by the fork servers of sandboxes (guest/fork-server.pl), which are programs of launcher.pl. It loads this file.
#
# A fork server runs in a sandbox, and so does what it forks: nothing that they say is trusted. The worker's process id of a command
# comes from the kernel (SCM_CREDENTIALS) and must be one of the launcher's children, and its exit comes from waitpid. The launcher
# receives no descriptor from a sandbox, waits for none, and drops a start that takes too long.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use Fcntl qw(:DEFAULT);
use POSIX qw(:sys_wait_h);
use Socket qw(AF_UNIX SOCK_SEQPACKET SOL_SOCKET);

use constant {
    START_LIMIT_SECS => 5, SO_PASSCRED => 16, SCM_RIGHTS => 1, SCM_CREDENTIALS => 2, MSG_DONTWAIT => 0x40,
    MSG_NOSIGNAL => 0x4000, MSG_CMSG_CLOEXEC => 0x40000000,
    # Space for the credentials alone: the kernel then delivers no descriptors (unix(7)).
    STATUS_BYTES => 8, CREDENTIALS_BYTES => 32,
};

my %sockets; # our end of each fork server's socket, by the number of the request that started it
my %starts; # by descriptor: the status socket of a start, the numbers of start and server, the command's process id, the time limit

# Opens the socket of a fork server. Returns the end for the server, or undef.
sub open_server_socket {
    my ($number) = @_;
    socketpair my $own, my $theirs, AF_UNIX, SOCK_SEQPACKET, 0 or return undef;
    shutdown $own, 0; # a server has nothing to say there
    $sockets{$number} = $own;
    return $theirs;
}

sub forget_server { delete $sockets{$_[0]} }

# The descriptors of status sockets, for `select`.
sub status_descriptors { return keys %starts }

# Asks a fork server to start a command. The request: the server's number (u32), three paths, and the bytes for the server.
sub start_by_server {
    my ($number, $fields) = @_;
    my ($server, @files) = unpack 'N (Z*)3 a*', $fields;
    my $request = pack 'a*', pop @files;
    my $socket = $sockets{$server} // return say_line("failed $number the fork server has ended");
    my @handles;
    for my $fd (0 .. 2) {
        # Without waiting, because the whole launcher would wait. The command gets them as usual.
        sysopen my $handle, $files[$fd], ($fd == 0 ? O_RDONLY : O_WRONLY) | O_NONBLOCK or return say_line("failed $number open: $!");
        fcntl $handle, F_SETFL, 0 or return say_line("failed $number fcntl: $!");
        push @handles, $handle;
    }
    socketpair my $own, my $theirs, AF_UNIX, SOCK_SEQPACKET, 0 or return say_line("failed $number socketpair: $!");
    setsockopt $own, SOL_SOCKET, SO_PASSCRED, 1 or return say_line("failed $number SO_PASSCRED: $!");
    my @fds = map { fileno $_ } @handles, $theirs;
    # struct cmsghdr and struct msghdr of sendmsg(2), for 64-bit machines
    my $control = pack 'Q l l l*', 16 + 4 * @fds, SOL_SOCKET, SCM_RIGHTS, @fds;
    my $parts = pack 'P Q', $request, length $request;
    my $message = pack 'Q L x4 P Q P Q L x4', 0, 0, $parts, 1, $control, length $control, 0;
    eval { call('sendmsg', fileno $socket, $message, MSG_DONTWAIT | MSG_NOSIGNAL); 1 } or return say_line("failed $number $@" =~ s/\s+/ /gr);
    $starts{fileno $own} = {socket => $own, number => $number, server => $server, pid => 0, until => time + START_LIMIT_SECS};
}

# Reads what commands told that are being started. `$begun` is called with the number and the process id of each that runs.
sub read_statuses {
    my ($begun, $is_child) = @_;
    for my $fd (keys %starts) {
        my $start = $starts{$fd};
        while (1) {
            my ($text, $pid) = receive_status($fd);
            last if !defined $text;
            if ($text eq 'p' && !$start->{pid} && $is_child->($pid)) { $start->{pid} = $pid }
            elsif ($text ne '') { end_start($fd); say_line("failed $start->{number} the command could not be started"); last }
            elsif ($start->{pid}) { end_start($fd); $begun->($start->{number}, $start->{pid}); last }
            else { end_start($fd); say_line("failed $start->{number} no command was started"); last }
        }
    }
}

# Begins the start of a command that has ended. Its fork server may hold the status socket for a moment longer.
sub begin_ended {
    my ($pid, $begun) = @_;
    for my $fd (grep { $starts{$_}{pid} == $pid } keys %starts) {
        my $number = $starts{$fd}{number};
        end_start($fd);
        $begun->($number, $pid);
    }
}

# Ends starts that take too long. Returns the numbers of servers that did not answer.
sub expire_starts {
    my ($begun, $is_child) = @_;
    my @late = grep { time >= $_->{until} } values %starts;
    # From now on, a process can't tell its start, and then it ends. So the worker may start the command in another way.
    shutdown $_->{socket}, 0 for @late;
    read_statuses($begun, $is_child) if @late;
    return map { $_->{pid} ? () : $_->{server} } @late;
}

sub end_start { close((delete $starts{$_[0]})->{socket}) }

# The next message of a status socket and the process id of its sender; an empty text at its end; nothing if there is none yet.
sub receive_status {
    my ($fd) = @_;
    my ($text, $control) = ("\0" x STATUS_BYTES, "\0" x CREDENTIALS_BYTES);
    substr($_, 0, 1) = "\1" for $text, $control; # memory of their own, in which the kernel may write
    my $parts = pack 'P Q', $text, STATUS_BYTES;
    my $message = pack 'Q L x4 P Q P Q L x4', 0, 0, $parts, 1, $control, CREDENTIALS_BYTES, 0;
    my $got = eval { call('recvmsg', $fd + 0, $message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) };
    return if !defined $got && ($! == EAGAIN || $! == EINTR);
    return ('', 0) if !$got;
    my ($level, $type, $pid) = unpack 'x8 l l l', $control;
    my $has_sender = unpack('x40 Q', $message) >= 28 && $level == SOL_SOCKET && $type == SCM_CREDENTIALS;
    return (substr($text, 0, $got), $has_sender ? $pid : 0);
}

1;
