# Opens TCP connections to the loopback addresses of sandboxes, and hands each open socket to the worker, which is Node. A
# connection made so needs no process in the sandbox. perl-process.pl explains the reason for Perl.
#
# perl loopback-connections.pl WORKER_PID
#
# The fields of a request: the file of the sandbox's network namespace, the process id of a process that must be in it,
# an address, and a port. The socket goes over the channel NODE_CHANNEL_FD, in a message as Node's `subprocess.send` makes
# it (lib/internal/child_process.js), with the number of the request. The reply after a failure: `failed N TEXT`.
use strict;
use warnings;
use Errno qw(EINPROGRESS EINTR);
use Fcntl qw(:DEFAULT);
use Socket qw(:DEFAULT IPPROTO_TCP SOCK_CLOEXEC SOCK_NONBLOCK TCP_NODELAY inet_pton pack_sockaddr_in6);
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);

# How long a connection may take to open. The worker's own limit is the same.
use constant {CONNECT_LIMIT_S => 30, SCM_RIGHTS => 1, MSG_NOSIGNAL => 0x4000, CMSG_BYTES => 20};
my ($worker) = @ARGV;
my $channel_fd = $ENV{NODE_CHANNEL_FD};
my %opening; # by descriptor: [number, name, socket, when it is too late]

close_inherited($channel_fd);
open my $channel, '<&=', $channel_fd or die "the channel to the worker: $!\n";
sysopen my $own, '/proc/self/ns/net', O_RDONLY or die "/proc/self/ns/net: $!\n";
binmode STDIN;
while (1) {
    my ($readable, $writable) = ('', '');
    vec($readable, $_, 1) = 1 for 0, $channel_fd;
    vec($writable, $_, 1) = 1 for keys %opening;
    next if select($readable, $writable, undef, keys %opening ? 1 : undef) < 0;
    # Node acknowledges each socket. Nothing waits for that.
    sysread($channel, my $acknowledged, 65536) or exit 0 if vec $readable, $channel_fd, 1;
    finish($_) for grep { vec($writable, $_, 1) || time > $opening{$_}[3] } keys %opening;
    take_requests($worker, \&begin) if vec $readable, 0, 1;
}

sub begin {
    my ($number, $fields) = @_;
    my ($file, $pid, $address, $port) = split_fields($fields);
    my $name = "connect $address:$port";
    my $socket = eval { open_socket($file, $pid, $address =~ /:/ ? AF_INET6 : AF_INET) };
    return say_line("failed $number $name: " . ($@ =~ s/\s+/ /gr)) if !defined $socket;
    my $to = $address =~ /:/ ? pack_sockaddr_in6($port, inet_pton(AF_INET6, $address)) : pack_sockaddr_in($port, inet_pton(AF_INET, $address));
    return hand_over($number, $socket) if connect $socket, $to;
    return say_line("failed $number $name: " . reason()) if $! != EINPROGRESS && $! != EINTR;
    $opening{fileno $socket} = [$number, $name, $socket, time + CONNECT_LIMIT_S];
}

# Makes a socket in the network namespace of a sandbox. A socket stays in the namespace in which it was made, so this
# process leaves at once: the namespace must not outlive its sandbox. The name of a namespace is used again by later
# sandboxes, so a process of this sandbox must be in it.
sub open_socket {
    my ($file, $pid, $family) = @_;
    sysopen my $namespace, $file, O_RDONLY or die "$file: $!\n";
    my $expected = (stat "/proc/$pid/ns/net")[1];
    my $found = (stat $namespace)[1];
    die "the sandbox has ended\n" if !defined $expected || !defined $found || $expected != $found;
    enter_network($namespace);
    my $is_made = socket my $socket, $family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP;
    my $why = reason();
    eval { enter_network($own); 1 } or POSIX::_exit(1); # later sockets would be made in this sandbox's namespace
    die "socket: $why\n" if !$is_made;
    return $socket;
}

sub finish {
    my ($number, $name, $socket) = @{delete $opening{$_[0]}};
    $! = unpack 'i', getsockopt($socket, SOL_SOCKET, SO_ERROR);
    return say_line("failed $number $name: " . reason()) if $! != 0;
    return say_line("failed $number $name: Connection timed out (os error 110)") if !defined getpeername $socket;
    hand_over($number, $socket);
}

sub hand_over {
    my ($number, $socket) = @_;
    setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1; # a key stroke must not wait for the acknowledgement of the previous one
    my $text = qq({"cmd":"NODE_HANDLE","type":"net.Socket","msg":{"number":$number}}\n);
    # struct cmsghdr and struct msghdr of sendmsg(2), for 64-bit machines
    my $control = pack 'Q l l l x4', CMSG_BYTES, SOL_SOCKET, SCM_RIGHTS, fileno $socket;
    my $parts = pack 'P Q', $text, length $text;
    my $message = pack 'Q L x4 P Q P Q L x4', 0, 0, $parts, 1, $control, length $control, 0;
    eval { call('sendmsg', $channel_fd, $message, MSG_NOSIGNAL); 1 } or say_line("failed $number $@" =~ s/\s+/ /gr);
}

# The error of the last system call, in the form that clients of the agent protocol expect.
sub reason { return sprintf '%s (os error %d)', "$!", $! + 0 }
