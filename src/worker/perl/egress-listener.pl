# Makes the socket to which the packet filter sends connections of sandboxes, then becomes the egress process.
#
# perl egress-listener.pl NAMESPACE PORT USER PROGRAM…
#
# NAMESPACE is the path of the router's network namespace. PROGRAM gets two more arguments: the descriptor of the socket
# and USER. It is still root, because it may only be readable for root; it becomes USER as soon as it is loaded. It is
# written in Perl because Node can't set IP_TRANSPARENT, without which the kernel gives no redirected connections.
use strict;
use warnings;
use Fcntl qw(F_SETFD);
use Socket qw(:DEFAULT IPPROTO_IP IPPROTO_TCP);
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);

use constant IP_TRANSPARENT => 19;
use constant PR_SET_NO_NEW_PRIVS => 38;
use constant RLIMIT_CORE => 4;
use constant BACKLOG => 4096;
my ($namespace, $port, $user, @program) = @ARGV;

open my $network, '<', $namespace or die "$namespace: $!\n";
enter_network($network);
close $network;
socket(my $listener, PF_INET, SOCK_STREAM, IPPROTO_TCP) or die "socket: $!\n";
setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, 1) or die "SO_REUSEADDR: $!\n";
setsockopt($listener, IPPROTO_IP, IP_TRANSPARENT, 1) or die "IP_TRANSPARENT: $!\n";
bind($listener, sockaddr_in($port, INADDR_LOOPBACK)) or die "bind to port $port: $!\n";
listen($listener, BACKLOG) or die "listen: $!\n";
fcntl($listener, F_SETFD, 0) or die "fcntl: $!\n";
# no core may have the values of secrets
call('prlimit64', 0, RLIMIT_CORE, pack('QQ', 0, 0), 0);
call('prctl', PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
exec(@program, fileno $listener, $user) or die "$program[0]: $!\n";
