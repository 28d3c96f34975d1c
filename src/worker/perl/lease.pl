# Whether a worker's lease is over, by the file that `src/worker/agent/lease.ts` writes. Without one that can be read, it is.
use strict;
use warnings;

sub is_lease_over {
    my $written = read_whole($_[0]);
    my $boot = read_whole('/proc/sys/kernel/random/boot_id') =~ s/\s+$//r;
    return 1 if $written !~ /"boot":"\Q$boot\E","over_at_ms":(\d+)/;
    my $over_at_ms = $1;
    my ($uptime_secs) = split ' ', read_whole('/proc/uptime');
    return $uptime_secs * 1000 >= $over_at_ms;
}

sub read_whole {
    open my $file, '<', $_[0] or return '';
    local $/;
    return <$file> // '';
}

1;
