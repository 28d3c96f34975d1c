# Starts commands in a sandbox for the worker, each in a process that it forks. The runtime started it as it starts a command, so it
# has all confinement of one, and so has what it forks. A fork takes 1 ms, the runtime's own start 25 ms (2026-11). It is written in
# Perl because the worker brings a Perl into every sandbox (toolbox.ts), and loads no modules, to stay small.
#
# perl fork-server.pl ARCHITECTURE     the architecture as Node names it: x64, arm64 or riscv64
#
# Standard input is a socket, which nobody reads at the other end. A request is one message with four descriptors: the command's
# standard streams, and a socket for its status. Its fields, big-endian: uid(u32), gid(u32), then with their lengths (u32) the
# other groups (u32 each), limits (resource u32, soft u64, hard u64), the folder, and the paths to try, the arguments and the
# variables (each with its length). The status: `p` from the new process, whose id the kernel tells the reader; nothing more, and
# the end of the socket, once the program runs; otherwise `f` and the error (u32). The process runs only if it could tell its `p`.
#
# A command is a child of the launcher (CLONE_PARENT), which gets its exit from the kernel. This process ends when the launcher
# does, and after $IDLE_SECS without a command once it has served one.
use strict;
use warnings;

my ($architecture) = @ARGV;
my $IDLE_SECS = 300;
my $REQUEST_BYTES = 65_536;
use constant {
    CLONE_PARENT => 0x8000, SIGCHLD => 17, PR_SET_DUMPABLE => 4, F_DUPFD_CLOEXEC => 1030, MSG_CMSG_CLOEXEC => 0x40000000,
    MSG_NOSIGNAL => 0x4000, CONTROL_BYTES => 32, SCM_RIGHTS => 1, DESCRIPTORS => 4, ENOEXEC => 8,
};
# asm/unistd_64.h for x86-64, asm-generic/unistd.h for the others
my %CALLS = $architecture eq 'x64'
    ? (close => 3, sendto => 44, recvmsg => 47, clone => 56, execve => 59, setsid => 112, setgroups => 116, setresuid => 117,
        setresgid => 119, prctl => 157, exit_group => 231, dup3 => 292, prlimit64 => 302)
    : (close => 57, sendto => 206, recvmsg => 212, clone => 220, execve => 221, setsid => 157, setgroups => 159, setresuid => 147,
        setresgid => 149, prctl => 167, exit_group => 94, dup3 => 24, prlimit64 => 261);

# No process of the sandbox may trace this one or read its memory, which has the requests of others.
syscall $CALLS{prctl}, PR_SET_DUMPABLE, 0, 0, 0, 0;
$SIG{FPE} = 'DEFAULT'; # perl ignores it
umask 0022;
# All standard streams are the socket. Commands replace them.
my $socket = 0 + (fcntl(STDIN, F_DUPFD_CLOEXEC, 3) || exit 1);
my $has_served = 0;

while (1) {
    my $readable = '';
    vec($readable, $socket, 1) = 1;
    exit 0 if select($readable, undef, undef, $has_served ? $IDLE_SECS : undef) == 0;
    my ($request, @descriptors) = receive();
    start($request, @descriptors) if @descriptors == DESCRIPTORS;
    syscall $CALLS{close}, $_ for @descriptors;
    $has_served = 1;
}

# The next request and its descriptors. struct msghdr and struct cmsghdr of recvmsg(2), for 64-bit machines.
sub receive {
    my ($request, $control) = ("\0" x $REQUEST_BYTES, "\0" x CONTROL_BYTES);
    substr($_, 0, 1) = "\1" for $request, $control; # memory of their own, in which the kernel may write
    my $parts = pack 'P Q', $request, $REQUEST_BYTES;
    my $message = pack 'Q L x4 P Q P Q L x4', 0, 0, $parts, 1, $control, CONTROL_BYTES, 0;
    my $got = syscall $CALLS{recvmsg}, $socket, $message, MSG_CMSG_CLOEXEC;
    exit 0 if $got <= 0;
    my ($length, $level, $type) = unpack 'Q l l', $control;
    my $size = unpack 'x40 Q', $message;
    return (substr($request, 0, $got), $size >= 16 && $type == SCM_RIGHTS ? unpack "x16 l" . ($length - 16) / 4, $control : ());
}

sub start {
    my ($request, $stdin, $stdout, $stderr, $status) = @_;
    my ($uid, $gid, $groups, $limits, $folder, @lists) = unpack 'N N (N/a)6', $request;
    my ($paths, $arguments, $variables) = map { [unpack '(N/a)*', $_] } @lists;
    my $command = pack('p*', @$arguments) . pack 'Q', 0;
    my $environment = pack('p*', @$variables) . pack 'Q', 0;
    my @limits = unpack '(N Q> Q>)*', $limits;
    my @groups = unpack 'N*', $groups;
    my $pid = syscall $CALLS{clone}, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0;
    return if $pid != 0;
    tell_status($status, 'p');
    give_up($status) if syscall($CALLS{setsid}) < 0;
    my $to = 0;
    for my $from ($stdin, $stdout, $stderr) {
        give_up($status) if syscall($CALLS{dup3}, $from, $to++, 0) < 0;
    }
    # The runtime started this process as user 0 without other groups.
    my $list = pack 'L*', @groups;
    give_up($status) if @groups && syscall($CALLS{setgroups}, scalar @groups, $list) < 0;
    give_up($status) if $gid != 0 && syscall($CALLS{setresgid}, $gid, $gid, $gid) < 0;
    give_up($status) if $uid != 0 && syscall($CALLS{setresuid}, $uid, $uid, $uid) < 0;
    chdir $folder or give_up($status);
    while (my ($resource, $soft, $hard) = splice @limits, 0, 3) {
        my $limit = pack 'Q Q', $soft, $hard;
        give_up($status) if syscall($CALLS{prlimit64}, 0, $resource, $limit, 0) < 0;
    }
    for (@$paths) {
        syscall $CALLS{execve}, $_, $command, $environment;
        last if $! == ENOEXEC; # as execvp(3), which then takes a shell
    }
    give_up($status);
}

sub tell_status {
    my ($status, $text) = @_;
    leave() if syscall($CALLS{sendto}, $status, $text, length $text, MSG_NOSIGNAL, 0, 0) < 0;
}

sub give_up {
    my ($status) = @_;
    tell_status($status, pack 'a N', 'f', $! + 0);
    leave();
}

# Ends without the clean-up of perl, whose state is the parent's.
sub leave {
    syscall $CALLS{exit_group}, 127;
}
