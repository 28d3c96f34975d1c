# Runs short commands for the worker and reports their output, so that the worker doesn't have to fork. perl-process.pl
# explains the cost of a fork, and the reason for Perl.
#
# perl command-helper.pl WORKER_PID
#
# The fields of a request are the working folder, the file of a network namespace, the standard input, and the command
# line. An empty field for the network namespace means the worker's own. The replies: `started N PID`; `failed N TEXT`
# when the command could not be started; and `ended N CODE STDOUT STDERR`, with both outputs in hexadecimal. CODE is `-`
# when a signal ended the command.
use strict;
use warnings;
use Fcntl;
use POSIX ();
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);

use constant OUTPUT_LIMIT => 4 * 1024 * 1024;
my ($worker) = @ARGV;

close_inherited();
my $exits = watch_exits();
my $exits_fd = fileno $exits;
$SIG{PIPE} = 'IGNORE';

binmode STDIN;
my %by_pid; # commands that have not been reaped
my %outputs; # by descriptor: [command, name of the output, handle]
while (1) {
    my $ready = '';
    vec($ready, $_, 1) = 1 for 0, $exits_fd, keys %outputs;
    next if select($ready, undef, undef, undef) < 0;
    read_output($_) for grep { vec $ready, $_, 1 } keys %outputs;
    if (vec $ready, $exits_fd, 1) {
        clear_exits($exits);
        reap_children(sub {
            my ($pid, $code) = @_;
            my $command = delete $by_pid{$pid};
            $command->{code} = $code;
            report_end($command);
        });
    }
    take_requests($worker, \&run_command) if vec $ready, 0, 1;
}

sub read_output {
    my ($fd) = @_;
    my ($command, $name, $handle) = @{$outputs{$fd}};
    if (sysread $handle, $command->{$name}, 65536, length $command->{$name}) {
        substr $command->{$name}, OUTPUT_LIMIT, length $command->{$name}, '' if length $command->{$name} > OUTPUT_LIMIT;
        return;
    }
    delete $outputs{$fd};
    close $handle;
    $command->{open_outputs}--;
    report_end($command);
}

# Reports the end of a command once it is reaped and all processes have closed its outputs.
sub report_end {
    my ($command) = @_;
    return if $command->{open_outputs} > 0 || !defined $command->{code};
    my @outputs = map { unpack 'H*', $command->{$_} } 'stdout', 'stderr';
    say_line("ended $command->{number} $command->{code} @outputs");
}

sub run_command {
    my ($number, $fields) = @_;
    my ($folder, $netns, $stdin, @command) = split_fields($fields);
    my @pipes;
    for (0 .. 2) {
        pipe my $out, my $in or return say_line("failed $number pipe: $!");
        push @pipes, [$out, $in];
    }
    my ($input, $stdout, $stderr) = @pipes;
    my @descriptors = ($input->[0], $stdout->[1], $stderr->[1]);
    my ($pid, $error) = start_program(sub { enter_place($folder, $netns, @descriptors) }, @command);
    return say_line("failed $number $error") if !defined $pid;
    close $_ for @descriptors;
    syswrite $input->[1], $stdin if length $stdin; # less than a pipe holds, so the write never waits
    close $input->[1];
    my %command = (number => $number, stdout => '', stderr => '', open_outputs => 2);
    $by_pid{$pid} = \%command;
    $outputs{fileno $stdout->[0]} = [\%command, 'stdout', $stdout->[0]];
    $outputs{fileno $stderr->[0]} = [\%command, 'stderr', $stderr->[0]];
    say_line("started $number $pid");
}

# Enters the command's folder and network namespace. Runs in the child process. Returns the reason if that fails, and
# otherwise nothing.
sub enter_place {
    my ($folder, $netns, @descriptors) = @_;
    chdir $folder or return "$folder: $!";
    if ($netns ne '') {
        sysopen my $namespace, $netns, O_RDONLY or return "$netns: $!";
        eval { enter_network($namespace); 1 } or return $@ =~ s/\s+$//r;
    }
    for my $fd (0 .. 2) {
        POSIX::dup2(fileno $descriptors[$fd], $fd) // return "dup2: $!";
    }
    return undef;
}
