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
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
require(__FILE__ =~ s{[^/]+$}{lease.pl}r);
my ($architecture, $worker, $lease) = @ARGV; # without the file of a lease there is none

close_inherited();
my $ends = watch_ends($architecture);
my $ends_fd = fileno $ends;

binmode STDIN;
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
    take_requests(\&begin) if vec $ready, 0, 1;
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
    sigprocmask(SIG_SETMASK, POSIX::SigSet->new);
    { no warnings 'exec'; exec { $command->[0] } @$command }
    return "$command->[0]: $!";
}
