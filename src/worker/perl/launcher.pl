# Starts programs for the worker, so that the worker doesn't have to fork. The worker names the files that a program
# gets as its descriptors. perl-process.pl explains the cost of a fork, and the reason for Perl.
#
# perl launcher.pl WORKER_PID [DEADLINE_FILE]
#
# The fields of a request: the number of the program's descriptors (u8), the number of its cgroups (u8), the path for
# each descriptor from 0 on, the path of each cgroup's `cgroup.procs`, and the command line. The replies: `started N PID`; `failed N TEXT` when the program could not be started; and `ended N CODE`,
# where CODE is `-` when a signal ended the program. Programs continue when the launcher exits. With DEADLINE_FILE, it
# starts no program after the renew deadline, because the sandbox may already run elsewhere.
use strict;
use warnings;
use Fcntl;
use POSIX ();
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
require(__FILE__ =~ s{[^/]+$}{renew-deadline.pl}r);

use constant OPEN_LIMIT_SECS => 5;
my ($worker, $deadline_file) = @ARGV;

close_inherited();
my $exits = watch_exits();
my $exits_fd = fileno $exits;

binmode STDIN;
my %number_of; # the number of the request by the id of the running process
while (1) {
    my $ready = '';
    vec($ready, $_, 1) = 1 for 0, $exits_fd;
    next if select($ready, undef, undef, undef) < 0;
    if (vec $ready, $exits_fd, 1) {
        reap_children($exits, sub {
            my ($pid, $code) = @_;
            say_line('ended ' . delete($number_of{$pid}) . " $code");
        });
    }
    take_requests($worker, \&launch) if vec $ready, 0, 1;
}

sub launch {
    my ($number, $request) = @_;
    return say_line("failed $number the renew deadline of this worker has passed")
        if defined $deadline_file && has_deadline_passed($deadline_file);
    my ($count, $cgroup_count, $fields) = unpack 'C C a*', $request;
    my @command = split_fields($fields);
    my @files = splice @command, 0, $count;
    my @cgroups = splice @command, 0, $cgroup_count;
    my ($pid, $error) = start_program(sub { join_cgroups(@cgroups) // open_files(@files) }, @command);
    return say_line("failed $number $error") if !defined $pid;
    $number_of{$pid} = $number;
    say_line("started $number $pid");
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
