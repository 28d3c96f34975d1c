# Kills the sandboxes of a worker whose renew deadline has passed, because the control plane may soon declare them lost
# and start them elsewhere. The worker kills them itself if it can. This process kills them when the worker is stopped,
# stuck or dead, and also kills sandboxes that such a worker starts later. It is written in Perl because it must outlive
# the worker, start fast and use little memory.
#
# perl watchdog.pl DEADLINE_FILE LOCK_FILE RUNS…
#
# RUNS is `cgroups:FOLDER`, in which each subfolder is the cgroup of one run, or `vms:FOLDER`, which contains the
# records of virtual machines. Several watchdogs may watch the same worker, but only the holder of the lock acts. When
# the worker ends, standard input ends. The holder of the lock then stays as long as there are runs. A later process of
# the worker starts its own watchdog, which takes over the lock. If the deadline file is missing, the watchdog exits.
# That happens, for example, after `sandyard up` has taken over the data folder.
use strict;
use warnings;
use Fcntl qw(:flock);
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
require(__FILE__ =~ s{[^/]+$}{renew-deadline.pl}r);

use constant LOOK_SECS => 0.2;
my ($deadline_file, $lock, @run_folders) = @ARGV;
my %ends_of = (cgroups => \&cgroups, vms => \&vms);

close_inherited();
open my $held, '>>', $lock or die "$lock: $!\n";
my ($acts, $is_alone) = (0, 0);
while (1) {
    $acts ||= flock $held, LOCK_EX | LOCK_NB;
    exit 0 if !-e $deadline_file;
    my $has_passed = $acts && has_deadline_passed($deadline_file);
    my @ends = $has_passed || $is_alone && $acts ? map { my ($kind, $folder) = split /:/, $_, 2; $ends_of{$kind}->($folder) } @run_folders : ();
    exit 0 if $is_alone && !@ends;
    if ($has_passed) { $_->() for @ends }
    my $ready = '';
    vec($ready, 0, 1) = 1 if !$is_alone;
    my $is_told = select($ready, undef, undef, LOOK_SECS) > 0;
    $is_alone ||= $is_told && !sysread STDIN, my $ignored, 100;
}

# Returns functions that each kill one run in a folder of cgroups. If the cgroup has a file `cgroup.kill` (cgroup v2),
# the kernel kills all its processes at once. Otherwise the run may start no new processes, and its processes are killed
# one by one. The next check repeats this for any that are left.
sub cgroups {
    return map {
        my $folder = $_;
        sub {
            return put("$folder/cgroup.kill", 1) if -e "$folder/cgroup.kill";
            put("$folder/pids.max", 0) if -e "$folder/pids.max";
            for my $group ($folder, below($folder)) {
                kill KILL => $_ for grep { /^[1-9]\d*$/ } split /\n/, read_whole("$group/cgroup.procs");
            }
        }
    } subfolders($_[0]);
}

# Returns functions that each kill one running virtual machine with a record. A virtual machine is found by its command
# line, `msb sandbox … --name NAME …`, as in vm-process.ts.
sub vms {
    my %is_ours;
    for my $run (subfolders($_[0])) {
        $is_ours{"sy-$1"} = 1 if read_whole("$run/state.json") =~ /"sandbox_id":"([0-9a-f-]+)"/;
    }
    return () if !%is_ours;
    opendir my $processes, '/proc' or return ();
    return map {
        my ($pid, @words) = ($_, split /\0/, read_whole("/proc/$_/cmdline"));
        my ($at) = grep { $words[$_] eq '--name' } 0 .. $#words - 1;
        my $is_vm = defined $at && $is_ours{$words[$at + 1]} && grep { $_ eq 'sandbox' } @words;
        $is_vm ? sub { kill KILL => $pid } : ();
    } grep { /^\d+$/ } readdir $processes;
}

sub subfolders {
    opendir my $folder, $_[0] or return ();
    return map { "$_[0]/$_" } grep { !/^\./ && -d "$_[0]/$_" } readdir $folder;
}

sub below {
    return map { ($_, below($_)) } subfolders($_[0]);
}

sub put {
    my ($path, $value) = @_;
    open my $file, '>', $path or return;
    syswrite $file, $value;
}
