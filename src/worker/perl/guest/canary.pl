# Shows whether packets pass between two Pods. The helper image has it, and the worker runs it in Pods of its own, never in a sandbox.
#
# perl canary.pl listen PORT…             accepts connections on all IPv4 addresses, and ends at SIGTERM
# perl canary.pl reach ADDRESS PORT SECS  exits with 0 if a connection was accepted, and with 3 if none was within the time or it was
#                                         refused. Any other code: it could not try.
use strict;
use warnings;
use Errno qw(EINPROGRESS);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket qw(inet_aton pack_sockaddr_in AF_INET INADDR_ANY IPPROTO_TCP SOCK_STREAM SOL_SOCKET SO_ERROR SO_REUSEADDR SOMAXCONN);

my ($mode, @rest) = @ARGV;
my $CLOSED = 3;

if ($mode eq 'listen') { listen_on(@rest) } else { exit(reach(@rest) ? 0 : $CLOSED) }

sub listen_on {
    my @listeners = map { listener_on($_) } @_;
    $SIG{TERM} = sub { exit 0 }; # a container's first process ignores signals that it doesn't handle
    my $all = '';
    vec($all, fileno $_, 1) = 1 for @listeners;
    while (1) {
        next if select(my $ready = $all, undef, undef, undef) < 1;
        for my $listener (@listeners) { accept my $client, $listener if vec($ready, fileno $listener, 1) }
    }
}

sub listener_on {
    my ($port) = @_;
    socket my $listener, AF_INET, SOCK_STREAM, IPPROTO_TCP or die "socket: $!\n";
    setsockopt $listener, SOL_SOCKET, SO_REUSEADDR, 1;
    bind $listener, pack_sockaddr_in($port, INADDR_ANY) or die "bind: $!\n";
    listen $listener, SOMAXCONN or die "listen: $!\n";
    return $listener;
}

sub reach {
    my ($address, $port, $secs) = @_;
    socket my $socket, AF_INET, SOCK_STREAM, IPPROTO_TCP or die "socket: $!\n";
    fcntl $socket, F_SETFL, fcntl($socket, F_GETFL, 0) | O_NONBLOCK;
    return 1 if connect $socket, pack_sockaddr_in($port, inet_aton($address));
    return 0 if $! != EINPROGRESS;
    my $writable = '';
    vec($writable, fileno $socket, 1) = 1;
    return 0 if select(undef, $writable, undef, $secs) < 1;
    return unpack('i', getsockopt($socket, SOL_SOCKET, SO_ERROR)) == 0;
}
