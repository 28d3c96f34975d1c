# Starts programs for the worker, which is large: to fork this small process takes a tenth of the time, and not the worker's.
#
# A request on standard input: length of what follows (u32, big-endian), its number (u32), how many descriptors the program
# gets (u8), then, each ended by a NUL, their paths from descriptor 0 on, and its command line. A reply is a line: `started N PID`, `failed N TEXT`, and
# `ended N CODE`, where CODE is `-` when a signal ended it. At the end of input it leaves; what it started goes on. What a
# worker still asked for as it died is not started: the next one may have put in order already what that would change. Nor is
# what a worker asks for whose lease is over: it may run elsewhere already.
use strict;
use warnings;
use Fcntl;
use POSIX qw(:signal_h :sys_wait_h setsid _exit);

use constant OPEN_LIMIT_SECS => 5;
use constant SFD_CLOEXEC => 0x80000;
use constant SIGNAL_SET_BYTES => 8;
my %SIGNALFD4 = (x64 => 289, arm64 => 74);
require(__FILE__ =~ s{[^/]+/[^/]+$}{lease.pl}r);
my ($architecture, $worker, $lease) = @ARGV; # without the file of a lease there is none

# What the worker had open, such as others' terminals, would stay open as long as this process.
opendir my $inherited, '/proc/self/fd' or die "/proc/self/fd: $!\n";
POSIX::close($_) for grep { /^\d+$/ && $_ > 2 } readdir $inherited;
closedir $inherited;

# A child's end is read like input, so that none is missed between a look and the wait for the next.
my $none = POSIX::SigSet->new;
sigprocmask(SIG_SETMASK, POSIX::SigSet->new(SIGCHLD)) or die "sigprocmask: $!\n";
my $mask = pack 'Q', 1 << SIGCHLD - 1;
my $ends_fd = syscall $SIGNALFD4{$architecture}, -1, $mask, SIGNAL_SET_BYTES, SFD_CLOEXEC;
die "signalfd: $!\n" if $ends_fd < 0;
open my $ends, '<&=', $ends_fd or die "signalfd: $!\n";

binmode STDIN;
my $input = '';
my %numbers; # of requests, by the process that each became
while (1) {
    my $ready = '';
    vec($ready, $_, 1) = 1 for 0, $ends_fd;
    next if select($ready, undef, undef, undef) < 0;
    if (vec $ready, $ends_fd, 1) {
        sysread $ends, my $told, 128;
        while ((my $pid = waitpid -1, WNOHANG) > 0) {
            my $code = WIFEXITED($?) ? WEXITSTATUS($?) : '-';
            say_line('ended ' . delete($numbers{$pid}) . " $code");
        }
    }
    if (vec $ready, 0, 1) {
        sysread(STDIN, $input, 65536, length $input) or exit 0;
        while (length $input >= 4 && length $input >= 4 + unpack 'N', $input) {
            my $request = substr $input, 4, unpack 'N', $input;
            substr $input, 0, 4 + length $request, '';
            begin($request);
        }
    }
}

sub say_line {
    my ($line) = @_;
    defined syswrite STDOUT, "$line\n" or exit 1;
}

sub begin {
    exit 0 if getppid != $worker;
    my ($number, $count, $fields) = unpack 'N C a*', $_[0];
    return say_line("failed $number the lease of this worker is over") if defined $lease && is_lease_over($lease);
    my @command = split /\0/, $fields, -1;
    pop @command; # behind the last NUL
    my @files = splice @command, 0, $count;
    # Closed by the exec itself: what comes through it is why there was none.
    pipe my $why, my $say_why or return say_line("failed $number pipe: $!");
    my $pid = fork // return say_line("failed $number fork: $!");
    if ($pid == 0) {
        my $error = become(\@files, \@command);
        syswrite $say_why, $error;
        _exit(127);
    }
    close $say_why;
    my $error = '';
    1 while sysread $why, $error, 1000, length $error;
    if ($error eq '') {
        $numbers{$pid} = $number;
        say_line("started $number $pid");
    }
    else {
        waitpid $pid, 0;
        say_line("failed $number $error");
    }
}

# A session of its own keeps signals for the worker away from it.
sub become {
    my ($files, $command) = @_;
    setsid() > 0 or return "setsid: $!";
    alarm OPEN_LIMIT_SECS; # a file that does not open would keep the launcher from all others
    for my $fd (0 .. $#$files) {
        my $path = $files->[$fd];
        my $mode = -c $path ? O_RDWR : $fd == 1 || $fd == 2 ? O_WRONLY : O_RDONLY;
        my $opened = POSIX::open($path, $mode | O_NOCTTY) // return "$path: $!";
        next if $opened == $fd;
        POSIX::dup2($opened, $fd) // return "dup2: $!";
        POSIX::close($opened);
    }
    alarm 0;
    sigprocmask(SIG_SETMASK, $none);
    { no warnings 'exec'; exec { $command->[0] } @$command }
    return "$command->[0]: $!";
}
