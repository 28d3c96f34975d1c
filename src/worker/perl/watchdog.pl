# Kills the sandboxes of a worker when its lease is over: the control plane may call them lost soon, and start them elsewhere.
# The worker does so itself while it can. This process does so when the worker is stopped, stuck or dead, and also destroys what
# such a worker still has started.
#
# Arguments: the lease's file, a file to lock, and where the runs are: `cgroups:` with a folder whose subfolders are the cgroups
# of one run each, or `vms:` with the folder of the records of virtual machines. Of all that watch the same worker, one acts:
# the one that has the lock. Standard input ends with the worker. The one with the lock stays as long as there are runs, whoever
# started them; a later life of the worker brings its own, which takes its place then. Without the file of a lease nobody
# leases any more, as after `sandyard up` took the data folder over: then it leaves.
use strict;
use warnings;
use Fcntl qw(:flock);
use POSIX ();

require(__FILE__ =~ s{[^/]+$}{lease.pl}r);

use constant LOOK_SECS => 0.2;
my ($lease, $lock, @places) = @ARGV;
my %ends_of = (cgroups => \&cgroups, vms => \&vms);

# What the worker had open, such as others' terminals, would stay open as long as this process.
opendir my $inherited, '/proc/self/fd' or die "/proc/self/fd: $!\n";
POSIX::close($_) for grep { /^\d+$/ && $_ > 2 } readdir $inherited;
closedir $inherited;

open my $held, '>>', $lock or die "$lock: $!\n";
my ($acts, $is_alone) = (0, 0);
while (1) {
    $acts ||= flock $held, LOCK_EX | LOCK_NB;
    exit 0 if !-e $lease;
    my $is_over = $acts && is_lease_over($lease);
    my @ends = $is_over || $is_alone && $acts ? map { my ($kind, $folder) = split /:/, $_, 2; $ends_of{$kind}->($folder) } @places : ();
    exit 0 if $is_alone && !@ends;
    if ($is_over) { $_->() for @ends }
    my $ready = '';
    vec($ready, 0, 1) = 1 if !$is_alone;
    my $is_told = select($ready, undef, undef, LOOK_SECS) > 0;
    $is_alone ||= $is_told && !sysread STDIN, my $ignored, 100;
}

# How to end each run of a folder of cgroups: by the kernel where it can; elsewhere one by one, with new ones forbidden, and again
# at the next look.
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

# How to end each virtual machine that lives, of those that are on record: `msb sandbox … --name NAME …`, as in vm-process.ts.
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
