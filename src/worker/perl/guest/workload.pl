# Becomes the workload of a sandbox that is a Pod: removes the variables that Kubernetes adds to every Pod, puts the folder of
# scripts on the PATH, sets the limits of the sandbox, and executes the command. It is written in Perl because the worker brings a Perl into every sandbox
# (toolbox.ts).
#
# perl workload.pl PROGRAM ARGUMENT…
use strict;
use warnings;

require(__FILE__ =~ s{[^/]+$}{limits.pl}r);

my $SCRIPTS = '/.msb/scripts';
delete $ENV{$_} for grep { /^KUBERNETES_/ } keys %ENV;
$ENV{PATH} = "$SCRIPTS:" . ($ENV{PATH} // '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin');
my $refused = refuse_limits(take_limits());
if (defined $refused) {
    print STDERR "rlimits: $refused: $!\n";
    exit 126;
}
no warnings 'exec';
exec { $ARGV[0] } @ARGV;
print STDERR "$ARGV[0]: $! (os error " . ($! + 0) . ")\n";
exit($!{ENOENT} ? 127 : 126);
