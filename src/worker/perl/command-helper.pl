# Runs short commands for the worker, which is large: to fork this small process takes a tenth of the time, and not the worker's.
#
# A request on standard input: length of what follows (u32, big-endian), its number (u32), then, each ended by a NUL, the
# folder to run in, the file of the network namespace to run in or nothing, what the command reads, and its command line. A reply is a line: `started N PID`, `failed N TEXT`, or
# `ended N CODE STDOUT STDERR`, the outputs in hexadecimal; CODE is `-` when a signal ended it. At the end of input it leaves.
# What a worker still asked for as it died is not run: the next one may have put in order already what that would change.
use strict;
use warnings;
use Fcntl;
use POSIX qw(:signal_h :sys_wait_h setsid _exit);

use constant {OUTPUT_LIMIT => 4 * 1024 * 1024, CLONE_NEWNET => 0x40000000};
my %SETNS = (x64 => 308, arm64 => 268);
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
my ($architecture, $worker) = @ARGV;

close_inherited();
my $ends = watch_ends($architecture);
my $ends_fd = fileno $ends;
$SIG{PIPE} = 'IGNORE';

binmode STDIN;
my %running; # by number: what is known of a command until all of it is
my %numbers; # of commands, by the process that each became
my %outputs; # by descriptor: whose output it is, and which
while (1) {
    my $ready = '';
    vec($ready, $_, 1) = 1 for 0, $ends_fd, keys %outputs;
    next if select($ready, undef, undef, undef) < 0;
    for my $fd (grep { vec $ready, $_, 1 } keys %outputs) {
        my ($one, $name, $handle) = @{$outputs{$fd}};
        if (sysread $handle, $one->{$name}, 65536, length $one->{$name}) {
            substr $one->{$name}, OUTPUT_LIMIT, length $one->{$name}, '' if length $one->{$name} > OUTPUT_LIMIT;
            next;
        }
        delete $outputs{$fd};
        close $handle;
        $one->{open}--;
        tell_end($one);
    }
    if (vec $ready, $ends_fd, 1) {
        sysread $ends, my $told, 128;
        while ((my $pid = waitpid -1, WNOHANG) > 0) {
            my $one = $running{delete $numbers{$pid}};
            $one->{code} = WIFEXITED($?) ? WEXITSTATUS($?) : '-';
            tell_end($one);
        }
    }
    take_requests(\&begin) if vec $ready, 0, 1;
}

# A command is over once it was reaped and nobody has its outputs open.
sub tell_end {
    my ($one) = @_;
    return if $one->{open} > 0 || !defined $one->{code};
    delete $running{$one->{number}};
    my @said = map { unpack 'H*', $one->{$_} } 'stdout', 'stderr';
    say_line("ended $one->{number} $one->{code} @said");
}

sub begin {
    exit 0 if getppid != $worker;
    my ($number, $fields) = unpack 'N a*', $_[0];
    my ($folder, $netns, $reads, @command) = split /\0/, $fields, -1;
    pop @command; # behind the last NUL
    my @pipes;
    # The last is closed by the exec itself: what comes through it is why there was none.
    for (0 .. 3) {
        pipe my $out, my $in or return say_line("failed $number pipe: $!");
        push @pipes, [$out, $in];
    }
    my ($stdin, $stdout, $stderr, $why) = @pipes;
    my $pid = fork // return say_line("failed $number fork: $!");
    if ($pid == 0) {
        my $error = become($folder, $netns, [$stdin->[0], $stdout->[1], $stderr->[1]], \@command);
        syswrite $why->[1], $error;
        _exit(127);
    }
    close $_ for $stdin->[0], $stdout->[1], $stderr->[1], $why->[1];
    syswrite $stdin->[1], $reads if length $reads; # less than a pipe holds: it never waits
    close $stdin->[1];
    my $error = '';
    1 while sysread $why->[0], $error, 1000, length $error;
    if ($error ne '') {
        waitpid $pid, 0;
        return say_line("failed $number $error");
    }
    my %one = (number => $number, stdout => '', stderr => '', open => 2);
    $running{$number} = \%one;
    $numbers{$pid} = $number;
    $outputs{fileno $stdout->[0]} = [\%one, 'stdout', $stdout->[0]];
    $outputs{fileno $stderr->[0]} = [\%one, 'stderr', $stderr->[0]];
    say_line("started $number $pid");
}

# A session of its own keeps signals for the worker away from it, and lets it be killed with what it started.
sub become {
    my ($folder, $netns, $files, $command) = @_;
    setsid() > 0 or return "setsid: $!";
    chdir $folder or return "$folder: $!";
    if ($netns ne '') {
        sysopen my $namespace, $netns, O_RDONLY or return "$netns: $!";
        syscall($SETNS{$architecture}, fileno $namespace, CLONE_NEWNET) == 0 or return "setns: $!";
    }
    for my $fd (0 .. 2) {
        POSIX::dup2(fileno $files->[$fd], $fd) // return "dup2: $!";
    }
    sigprocmask(SIG_SETMASK, POSIX::SigSet->new);
    $SIG{PIPE} = 'DEFAULT';
    { no warnings 'exec'; exec { $command->[0] } @$command }
    return "$command->[0]: $!";
}
