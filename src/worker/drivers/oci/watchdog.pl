# Kills the sandboxes of a worker when its lease is over: the control plane may call them lost soon, and start them elsewhere.
# The worker does so itself while it can. This process does so when the worker is stopped, stuck or dead, and also destroys what
# such a worker still has started.
#
# Arguments: the lease's file, a file to lock, and the folders of cgroups whose subfolders are the runs'. Of all that watch the
# same worker, one acts: the one that has the lock. Standard input ends with the worker. The one with the lock stays as long as
# there are runs, whoever started them; a later life of the worker brings its own, which takes its place then. Without the file
# of a lease nobody leases any more, as after `sandyard up` took the folder over: then it leaves.
use strict;
use warnings;
use Fcntl qw(:flock);
use POSIX ();

require(__FILE__ =~ s{[^/]+$}{lease.pl}r);

use constant LOOK_SECS => 0.2;
my ($lease, $lock, @folders) = @ARGV;

# What the worker had open, such as others' terminals, would stay open as long as this process.
opendir my $inherited, '/proc/self/fd' or die "/proc/self/fd: $!\n";
POSIX::close($_) for grep { /^\d+$/ && $_ > 2 } readdir $inherited;
closedir $inherited;

open my $held, '>>', $lock or die "$lock: $!\n";
my ($acts, $is_alone) = (0, 0);
while (1) {
    $acts ||= flock $held, LOCK_EX | LOCK_NB;
    my @runs = $acts ? map { subfolders($_) } @folders : ();
    exit 0 if !-e $lease || $is_alone && !@runs;
    if (@runs && is_lease_over($lease)) { end_run($_) for @runs }
    my $ready = '';
    vec($ready, 0, 1) = 1 if !$is_alone;
    $is_alone ||= select($ready, undef, undef, LOOK_SECS) > 0 && !sysread STDIN, my $ignored, 100;
}

sub subfolders {
    opendir my $folder, $_[0] or return ();
    return map { "$_[0]/$_" } grep { !/^\./ && -d "$_[0]/$_" } readdir $folder;
}

# By the kernel where it can; elsewhere one by one, with new ones forbidden, and again at the next look.
sub end_run {
    my ($folder) = @_;
    return put("$folder/cgroup.kill", 1) if -e "$folder/cgroup.kill";
    put("$folder/pids.max", 0) if -e "$folder/pids.max";
    for my $group ($folder, below($folder)) {
        open my $processes, '<', "$group/cgroup.procs" or next;
        while (my $pid = <$processes>) { kill KILL => $1 if $pid =~ /^([1-9]\d*)$/ }
    }
}

sub below {
    return map { ($_, below($_)) } subfolders($_[0]);
}

sub put {
    my ($path, $value) = @_;
    open my $file, '>', $path or return;
    syswrite $file, $value;
}
