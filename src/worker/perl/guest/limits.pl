# The resource limits of a sandbox that is a Pod. Nothing in Kubernetes sets them, so the processes that start others there do.
# agent.pl and workload.pl load this file.
use strict;
use warnings;
use Errno qw(EINVAL);

my %PRLIMIT64 = (x64 => 302, arm64 => 261, riscv64 => 261);
# asm-generic/resource.h
my @RESOURCES = qw(cpu fsize data stack core rss nproc nofile memlock as locks sigpending msgqueue nice rtprio rttime);
my %NUMBER_OF = map { $RESOURCES[$_] => $_ } 0 .. $#RESOURCES;

# Takes the limits out of the environment: the architecture as Node names it, then RESOURCE=SOFT:HARD for each. Returns the
# architecture and the limits.
sub take_limits {
    my ($architecture, @limits) = split / /, delete $ENV{SANDYARD_RLIMITS} // '';
    return ($architecture // '', @limits);
}

# Sets limits of this process. Returns undef, or the one that can't be set, with $!.
sub refuse_limits {
    my ($architecture, @limits) = @_;
    for my $limit (@limits) {
        $! = EINVAL;
        my ($resource, $soft, $hard) = $limit =~ /^(\w+)=(\d+):(\d+)$/ or return $limit;
        my $number = $NUMBER_OF{$resource} // return $limit;
        my $values = pack 'Q Q', $soft, $hard;
        return $limit if syscall($PRLIMIT64{$architecture}, 0, $number, $values, 0) < 0;
    }
    return;
}

1;
