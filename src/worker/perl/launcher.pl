# Starts programs for the worker, so that the worker doesn't have to fork. The worker names the files that a program
# gets as its descriptors. perl-process.pl explains the cost of a fork, and the reason for Perl.
#
# perl launcher.pl WORKER_PID [DEADLINE_FILE]
#
# The fields of a request: its kind (one character), the number of the program's descriptors (u8), the number of its cgroups (u8),
# the pid file or nothing, the path for each descriptor from 0 on, the path of each cgroup's `cgroup.procs`, and the command line. The
# replies: `started N PID`; `failed N TEXT` when the program could not be started; and `ended N CODE`, where CODE is `-`
# when a signal ended the program. Programs continue when the launcher exits. With DEADLINE_FILE, it starts no program
# after the renew deadline, because the sandbox may already run elsewhere.
#
# With a pid file, the program is one that starts another process and leaves it: a runtime's `exec --detach`. When the
# program has exited with 0, the reply is `detached N PID INNER_PID`, with the id in the pid file and the process's id in
# its own namespace (`-` if it has ended already). `ended` then tells the exit of that process. The launcher gets such
# processes as children because it is a subreaper (prctl(2)).
use strict;
use warnings;
use Fcntl;
use POSIX qw(:sys_wait_h);
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
require(__FILE__ =~ s{[^/]+$}{renew-deadline.pl}r);
require(__FILE__ =~ s{[^/]+$}{fork-servers.pl}r);

use constant {OPEN_LIMIT_SECS => 5, KEEP_EXIT_SECS => 5, PR_SET_CHILD_SUBREAPER => 36};
my ($worker, $deadline_file) = @ARGV;

close_inherited();
call('prctl', PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
my $exits = watch_exits();
my $exits_fd = fileno $exits;

binmode STDIN;
my %number_of; # the number of the request by the id of the running process
my %pid_file_of; # the pid file by the id of a running program that leaves another process
my %left_exits; # the exit code and the time of each process that was left by a program that has not been reaped yet
while (1) {
    my $ready = '';
    my @statuses = status_descriptors();
    vec($ready, $_, 1) = 1 for 0, $exits_fd, @statuses;
    next if select($ready, undef, undef, @statuses ? 1 : undef) < 0;
    if (@statuses) {
        read_statuses(\&take_command, \&is_unknown_child);
        end_server($_) for expire_starts(\&take_command, \&is_unknown_child);
    }
    if (vec $ready, $exits_fd, 1) {
        clear_exits($exits);
        take_exits();
    }
    take_requests($worker, \&launch) if vec $ready, 0, 1;
}

sub launch {
    my ($number, $request) = @_;
    return say_line("failed $number the renew deadline of this worker has passed")
        if defined $deadline_file && has_deadline_passed($deadline_file);
    my ($kind, $rest) = unpack 'a a*', $request;
    return start_by_server($number, $rest) if $kind eq 'c';
    my ($count, $cgroup_count, $fields) = unpack 'C C a*', $rest;
    my ($pid_file, @command) = split_fields($fields);
    my @files = splice @command, 0, $count;
    my @cgroups = splice @command, 0, $cgroup_count;
    my $socket = $kind eq 's' ? open_server_socket($number) : undef;
    my $connect = $kind eq 's' ? sub { use_socket($socket) } : sub { open_files(@files) };
    my ($pid, $error) = start_program(sub { join_cgroups(@cgroups) // $connect->() }, @command);
    if (!defined $pid) {
        forget_server($number);
        return say_line("failed $number $error");
    }
    $number_of{$pid} = $number;
    $pid_file_of{$pid} = $pid_file if $pid_file ne '';
    say_line("started $number $pid");
}

# Reaps all children that have ended. A process becomes a child when the program that left it ends. Such programs are reaped
# before an unknown process, because its ids can be looked up only until it is reaped.
sub take_exits {
    while ((my $pid = peek_exit()) > 0) {
        read_statuses(\&take_command, \&is_unknown_child); # a command told its start before it ended
        begin_ended($pid, \&take_command);
        reap($_) for defined $number_of{$pid} ? $pid : (keys %pid_file_of, $pid);
    }
}

sub reap {
    my ($pid) = @_;
    take_exit($pid, exit_code()) if waitpid($pid, WNOHANG) > 0;
}

# Handles the exit of a child: of a program, of a process that a program left, or of an orphan that nobody asked about.
sub take_exit {
    my ($pid, $code) = @_;
    my $number = delete $number_of{$pid};
    my $pid_file = delete $pid_file_of{$pid};
    return keep_exit($pid, $code) if !defined $number;
    my $left = defined $pid_file && $code eq '0' ? read_pid($pid_file) : undef;
    if (!defined $left) {
        forget_server($number);
        return say_line("ended $number $code");
    }
    say_line("detached $number $left " . (inner_pid($left) // '-'));
    my $exit = delete $left_exits{$left};
    say_line("ended $number_of{$left} -") if defined $number_of{$left}; # a sandbox passed it off as a command
    $number_of{$left} = $number;
    return take_exit($left, $exit->[0]) if defined $exit;
    my $reaped = waitpid $left, WNOHANG;
    take_exit($left, $reaped > 0 ? exit_code() : '-') if $reaped != 0; # -1: the program reaped it
}

# A process may be reaped a moment before the program that left it. Ids are used again later, so exits are kept briefly.
sub keep_exit {
    my ($pid, $code) = @_;
    delete @left_exits{grep { $left_exits{$_}[1] < time - KEEP_EXIT_SECS } keys %left_exits};
    $left_exits{$pid} = [$code, time] if %pid_file_of;
}

# Reports a command that a fork server started, and waits for its end.
sub take_command {
    my ($number, $pid) = @_;
    say_line("started $number $pid");
    say_line("detached $number $pid " . (inner_pid($pid) // '-'));
    $number_of{$pid} = $number;
}

# Whether a process is a child that belongs to no request yet.
sub is_unknown_child {
    my ($pid) = @_;
    return !defined $number_of{$pid} && is_child($pid);
}

# Kills a fork server that does not answer. Its end is reported when it is reaped.
sub end_server {
    my ($server) = @_;
    kill 'KILL', grep { $number_of{$_} == $server && !defined $pid_file_of{$_} } keys %number_of;
    forget_server($server); # last: at the end of its socket, it could exit as if by itself
}

sub read_pid {
    my ($path) = @_;
    open my $file, '<', $path or return undef;
    return (<$file> // '') =~ /^(\d+)$/ ? $1 : undef;
}

# The id of a process in its innermost namespace.
sub inner_pid {
    my ($pid) = @_;
    open my $status, '<', "/proc/$pid/status" or return undef;
    /^NSpid:.*\s(\d+)$/ and return $1 while <$status>;
    return undef;
}

# Moves the child process into each cgroup. Returns the reason if it can't be moved, and otherwise nothing.
sub join_cgroups {
    for my $path (@_) {
        my $fd = POSIX::open($path, O_WRONLY) // return "$path: $!";
        POSIX::write($fd, '0', 1) // return "$path: $!"; # 0 is the process that writes
        POSIX::close($fd);
    }
    return undef;
}

# Makes a socket all standard streams, in the child process. The descriptor of the worker's /dev/null must not get there: a runtime
# gives standard streams to the container's user.
sub use_socket {
    my ($socket) = @_;
    return "socketpair: $!" if !defined $socket;
    for my $fd (0 .. 2) {
        POSIX::dup2(fileno $socket, $fd) // return "dup2: $!";
    }
    return undef;
}

# Opens each file as its descriptor, in the child process. Returns the reason if a file can't be opened, and otherwise
# nothing.
sub open_files {
    my @files = @_;
    alarm OPEN_LIMIT_SECS; # ends this child if an open blocks; the launcher and all its other requests would wait for it
    for my $fd (0 .. $#files) {
        my $path = $files[$fd];
        my $mode = -c $path ? O_RDWR : $fd == 1 || $fd == 2 ? O_WRONLY : O_RDONLY;
        my $opened = POSIX::open($path, $mode | O_NOCTTY) // return "$path: $!";
        next if $opened == $fd;
        POSIX::dup2($opened, $fd) // return "dup2: $!";
        POSIX::close($opened);
    }
    alarm 0;
    return undef;
}
