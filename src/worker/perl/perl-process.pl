# A library for the worker's helper processes: the protocol of requests and replies, starting programs, and the numbers
# of system calls. Load it with `require`.
#
# The helpers are written in Perl because every Debian has it (perl-base), and because it can fork, set signal masks and
# make raw system calls, which Node can't. A helper uses about 5 MiB of memory. A fork of it costs a tenth of a fork of
# the worker, and doesn't stop the worker meanwhile.
#
# A request arrives on standard input. It is the length of the rest (u32, big-endian), the number of the request (u32),
# and the fields that the head comment of each script lists. A text field ends with a NUL. A reply is one line on
# standard output: `WORD NUMBER REST`. At the end of input the helper exits.
use strict;
use warnings;
use POSIX qw(:signal_h :sys_wait_h setsid _exit);

use constant SFD_CLOEXEC => 0x80000;
use constant SIGNAL_SET_BYTES => 8;
use constant CLONE_NEWNET => 0x40000000;
use constant READ_BYTES => 65536;
use constant MAX_ERROR_BYTES => 1000;

# The numbers of system calls (asm/unistd_64.h for x86-64, asm-generic/unistd.h for arm64).
my %NUMBERS = (
    open_tree => 428,
    move_mount => 429,
    mount_setattr => 442,
    pidfd_open => 434,
    (POSIX::uname())[4] eq 'aarch64'
    ? (waitid => 95, sethostname => 161, prctl => 167, mknodat => 33, umount2 => 39, mount => 40, pivot_root => 41, signalfd4 => 74, fsync => 82, unshare => 97, setresuid => 147, setresgid => 149,
        renameat2 => 276, sendmsg => 211, recvmsg => 212, setgroups => 159, prlimit64 => 261, setns => 268, syncfs => 267)
    : (sendmsg => 46, recvmsg => 47, fsync => 74, prctl => 157, sethostname => 170, waitid => 247, setgroups => 116, setresuid => 117, setresgid => 119, pivot_root => 155, mount => 165, umount2 => 166, mknodat => 259,
        unshare => 272, signalfd4 => 289, renameat2 => 316, prlimit64 => 302, setns => 308, syncfs => 306),
);

# Makes a system call and returns its result. Dies with `name: reason` when the kernel refuses.
sub call {
    my ($name, @arguments) = @_;
    my $result = syscall $NUMBERS{$name}, @arguments;
    die "$name: $!\n" if $result < 0;
    return $result;
}

# Moves this process into a network namespace, given as an open handle of its file.
sub enter_network {
    my ($namespace) = @_;
    call('setns', fileno $namespace, CLONE_NEWNET);
}

# Closes the descriptors inherited from the worker, such as terminals of sandboxes, except those that are named. They would
# otherwise stay open as long as this process runs.
sub close_inherited {
    my %is_kept = map { $_ => 1 } 0 .. 2, @_;
    opendir my $inherited, '/proc/self/fd' or die "/proc/self/fd: $!\n";
    POSIX::close($_) for grep { /^\d+$/ && !$is_kept{$_} } readdir $inherited;
    closedir $inherited;
}

# --- Requests and replies ---

my $input = '';

# Reads the available bytes on standard input, and calls `$handle` with the number and the fields of each complete
# request. Exits at the end of input, and when the worker has died. The next worker cleans up when it starts, and a late
# request of the dead worker must not change anything after that.
sub take_requests {
    my ($worker, $handle) = @_;
    sysread(STDIN, $input, READ_BYTES, length $input) or exit 0;
    while (length $input >= 4 && length $input >= 4 + unpack 'N', $input) {
        my $request = substr $input, 4, unpack 'N', $input;
        substr $input, 0, 4 + length $request, '';
        exit 0 if getppid != $worker;
        $handle->(unpack 'N a*', $request);
    }
}

# Returns the text fields of a request as a list.
sub split_fields {
    my @fields = split /\0/, $_[0], -1;
    pop @fields; # removes the empty rest behind the last NUL
    return @fields;
}

sub say_line {
    my $line = "$_[0]\n";
    while (length $line) {
        my $written = syswrite(STDOUT, $line) // exit 1;
        substr $line, 0, $written, '';
    }
}

# --- Programs ---

# Creates a signalfd, which becomes readable when a child exits. `select` can then wait for exits and for input
# together, and misses no exit. Returns the signalfd's handle.
sub watch_exits {
    sigprocmask(SIG_SETMASK, POSIX::SigSet->new(SIGCHLD)) or die "sigprocmask: $!\n";
    my $mask = pack 'Q', 1 << SIGCHLD - 1;
    my $fd = call('signalfd4', -1, $mask, SIGNAL_SET_BYTES, SFD_CLOEXEC);
    open my $exits, '<&=', $fd or die "signalfd: $!\n";
    return $exits;
}

# Makes a signalfd unreadable until the next child exits. Call this before reaping, so that no exit is missed.
sub clear_exits {
    my ($exits) = @_;
    sysread $exits, my $signals, 128;
}

# Calls `$handle` with the process id and the exit code of each child that has ended.
sub reap_children {
    my ($handle) = @_;
    while ((my $pid = waitpid -1, WNOHANG) > 0) {
        $handle->($pid, exit_code());
    }
}

use constant {P_ALL => 0, P_PID => 1, WEXITED => 4, WNOWAIT => 0x01000000};

# The id of a child that has ended, without reaping it. 0 if there is none.
sub peek_exit {
    my $info = "\0" x 128; # siginfo_t
    return 0 if syscall($NUMBERS{waitid}, P_ALL, 0, $info, WEXITED | WNOHANG | WNOWAIT, 0) < 0;
    return unpack 'x16 l', $info; # si_pid
}

# Whether a process is a child that has not been reaped.
sub is_child {
    my ($pid) = @_;
    my $info = "\0" x 128; # siginfo_t
    return $pid > 0 && syscall($NUMBERS{waitid}, P_PID, $pid, $info, WEXITED | WNOHANG | WNOWAIT, 0) == 0;
}

# The exit code of the child that was reaped last; `-` means that a signal ended it.
sub exit_code {
    return WIFEXITED($?) ? WEXITSTATUS($?) : '-';
}

# Starts a program in its own session, so that signals for the worker don't reach it. `$prepare` runs in the child and
# returns a reason if the program can't run. Returns the process id, or undef and the reason.
sub start_program {
    my ($prepare, @command) = @_;
    # A successful exec closes this pipe. Otherwise the child writes the reason for the failure to it.
    pipe my $reason, my $tell_reason or return (undef, "pipe: $!");
    my $pid = fork // return (undef, "fork: $!");
    if ($pid == 0) {
        syswrite $tell_reason, become_program($prepare, @command);
        _exit(127);
    }
    close $tell_reason;
    my $error = '';
    1 while sysread $reason, $error, MAX_ERROR_BYTES, length $error;
    return $pid if $error eq '';
    waitpid $pid, 0;
    return (undef, $error);
}

# Replaces the child with the program. Returns only if that fails, with the reason.
sub become_program {
    my ($prepare, @command) = @_;
    setsid() > 0 or return "setsid: $!";
    my $why = $prepare->();
    return $why if defined $why;
    sigprocmask(SIG_SETMASK, POSIX::SigSet->new);
    $SIG{PIPE} = 'DEFAULT';
    { no warnings 'exec'; exec { $command[0] } @command }
    return "$command[0]: $!";
}

1;
