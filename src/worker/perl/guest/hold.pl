# Keeps a Pod of the worker until nothing has run in it for $IDLE_SECS, besides this first process. The worker may be gone for ever, and
# a Pod that stays would keep a volume mounted.
#
# perl hold.pl
use strict;
use warnings;

my ($IDLE_SECS, $LOOK_SECS) = (300, 5);

$SIG{TERM} = sub { exit 0 }; # a container's first process ignores signals that it doesn't handle
$SIG{CHLD} = 'IGNORE'; # processes whose parents have ended
my $used = time;
while (time - $used < $IDLE_SECS) {
    opendir my $processes, '/proc' or die "/proc: $!\n";
    $used = time if grep { /^\d+$/ && $_ != $$ } readdir $processes;
    closedir $processes;
    select undef, undef, undef, $LOOK_SECS;
}
