# Reads the renew deadline that `src/worker/agent/renew-deadline.ts` writes. The launcher and the watchdog load this
# library with `require`. They check the deadline while the worker itself may be stopped or stuck.
use strict;
use warnings;

# Whether the deadline has passed. A deadline that can't be read or comes from an earlier boot counts as passed.
sub has_deadline_passed {
    my $written = read_whole($_[0]);
    my $boot = read_whole('/proc/sys/kernel/random/boot_id') =~ s/\s+$//r;
    return 1 if $written !~ /"boot":"\Q$boot\E","over_at_ms":(\d+)/;
    my $over_at_ms = $1;
    my ($uptime_secs) = split ' ', read_whole('/proc/uptime');
    return $uptime_secs * 1000 >= $over_at_ms;
}

# The content of a file. Empty when it can't be read.
sub read_whole {
    open my $file, '<', $_[0] or return '';
    local $/;
    return <$file> // '';
}

1;
