# Becomes the workload of a sandbox that is a Pod: removes the variables that Kubernetes adds to every Pod, puts the folder of
# scripts on the PATH, sets the limits of the sandbox, and executes the command. It is written in Perl because the worker brings a Perl into every sandbox
# (toolbox.ts).
#
# perl workload.pl [--wait NAME] PROGRAM ARGUMENT…     with NAME, it waits until the other call has ended in the same sandbox
# perl workload.pl --begin NAME                       says `ready` once the workload is only waiting for the end of its standard input
use strict;
use warnings;

require(__FILE__ =~ s{[^/]+$}{limits.pl}r);

use constant { AF_UNIX => 1, SOCK_STREAM => 1, ATTEMPTS => 1000, PAUSE_SECS => 0.01 };
if ($ARGV[0] eq '--begin') { exit(begin($ARGV[1]) ? 0 : 1) }
if ($ARGV[0] eq '--wait') { wait_until_begun((splice @ARGV, 0, 2)[1]) }

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

# Waits for a connection to a socket with a name in the network namespace of the sandbox, where nothing else runs yet.
sub wait_until_begun {
    my ($name) = @_;
    local $SIG{TERM} = sub { exit 143 }; # process 1 ignores it otherwise
    socket my $socket, AF_UNIX, SOCK_STREAM, 0 or die "socket: $!\n";
    bind $socket, address_of($name) or die "bind: $!\n";
    listen $socket, 1 or die "listen: $!\n";
    accept my $connection, $socket or die "accept: $!\n";
    sysread $connection, my $nothing, 1; # returns when the other process closes it
}

# Connects to that socket, for which the other process may need some moments, and keeps the connection until its standard input ends.
# The workload may end at once, and every process of the sandbox with it. So what called this one learns before that that all is well.
sub begin {
    my ($name) = @_;
    for (1 .. ATTEMPTS) {
        socket my $socket, AF_UNIX, SOCK_STREAM, 0 or die "socket: $!\n";
        if (connect $socket, address_of($name)) {
            syswrite STDOUT, "ready\n";
            sysread STDIN, my $nothing, 1;
            return 1;
        }
        select undef, undef, undef, PAUSE_SECS;
    }
    return 0;
}

sub address_of { return pack 'S a*', AF_UNIX, "\0sandyard-workload-$_[0]" }
