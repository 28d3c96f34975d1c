# Reads the lease that `src/worker/agent/lease.ts` writes. A library for `require`, in Perl because the launcher and the
# watchdog check the lease while the worker itself may be stopped or stuck.
use strict;
use warnings;

# Whether the lease is over. A lease that can't be read, or one of an earlier boot, is.
sub is_lease_over {
    my $written = read_whole($_[0]);
    my $boot = read_whole('/proc/sys/kernel/random/boot_id') =~ s/\s+$//r;
    return 1 if $written !~ /"boot":"\Q$boot\E","over_at_ms":(\d+)/;
    my $over_at_ms = $1;
    my ($uptime_secs) = split ' ', read_whole('/proc/uptime');
    return $uptime_secs * 1000 >= $over_at_ms;
}

# The content of a file; empty when it can't be read.
sub read_whole {
    open my $file, '<', $_[0] or return '';
    local $/;
    return <$file> // '';
}

1;
