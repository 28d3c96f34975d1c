# Listens inside a sandbox for the SSH server, which forwards what connects here to an SSH client (`ssh -R`, and `ssh -A`).
# One process serves all connections of one listener.
#
# perl listen.pl tcp HOST PORT    HOST: an address, `localhost`, or empty for all addresses. PORT 0: any free port.
# perl listen.pl unix PATH
# perl listen.pl agent            makes a socket in a folder of its own, which only the user can enter
#
# The SSH server fetches each connection at the `door`, a port of loopback: it connects there and sends a line with the secret
# and the number of the connection. What follows on both sides is carried unchanged, and each direction ends independently.
# Carrying it here, and not over this script's own pipes, leaves flow control to the kernel.
#
# Standard input:    the secret in the first line, then lines `refuse NUMBER`. Its end ends the script.
# Standard output:   listening NAME DOOR     NAME: the port, or the path of the socket
#                    open NUMBER HOST PORT   something has connected; the host and port are `- 0` for a Unix socket
#                    failed TEXT             nothing follows
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket qw(getaddrinfo getnameinfo pack_sockaddr_in pack_sockaddr_un unpack_sockaddr_in AI_NUMERICHOST AI_PASSIVE
    AF_INET AF_INET6 AF_UNIX INADDR_LOOPBACK IPPROTO_IPV6 IPPROTO_TCP IPV6_V6ONLY NI_NUMERICHOST NI_NUMERICSERV
    SHUT_WR SOCK_STREAM SOL_SOCKET SO_REUSEADDR SOMAXCONN TCP_NODELAY);

my $PIECE_BYTES = 65_536;
# Connections that wait to be fetched and those that are carried, together. select(2) knows 1,024 descriptors.
my $CONNECTIONS_MAX = 128;
my $GREETINGS_MAX = 64;
my $FETCH_LIMIT_SECS = 60;
my $GREETING_MAX_BYTES = 256;

my ($kind, @where) = @ARGV;
my ($alive); # a pipe that is open as long as this process runs
my (%waiting, @greetings, @pairs);
my ($last, $input) = (0, '');

$SIG{PIPE} = 'IGNORE';

my ($name, @listeners) = $kind eq 'tcp' ? listen_tcp(@where) : $kind eq 'unix' ? listen_unix($where[0]) : listen_agent();
my $door = bound(AF_INET, pack_sockaddr_in(0, INADDR_LOOPBACK)) || fail('door: ' . reason());
set_nonblocking($_) for \*STDIN, $door, @listeners;
my $secret;
say_line("listening $name " . (unpack_sockaddr_in(getsockname($door)))[0]);
serve() while 1;

sub listen_tcp {
    my ($host, $port) = @_;
    my @found;
    for my $one ($host eq 'localhost' ? ('127.0.0.1', '::1') : $host eq '' || $host eq '*' ? ('0.0.0.0', '::') : ($host)) {
        my ($problem, @addresses) = getaddrinfo($one, $port, { flags => AI_NUMERICHOST | AI_PASSIVE, socktype => SOCK_STREAM });
        fail("listen: $one is not an address") if $problem;
        push @found, @addresses;
    }
    my ($chosen, @sockets) = ($port);
    for my $address (@found) {
        my $addr = $address->{addr};
        # Both families get the same port when any will do. The port is at the same place of both addresses.
        substr($addr, 2, 2) = pack('n', $chosen);
        my $socket = bound($address->{family}, $addr);
        # A sandbox may have no IPv6. A port that is taken on one address is not free.
        if (!$socket) { next if @sockets && $address->{family} == AF_INET6; fail("listen $host:$port: " . reason()) }
        $chosen = unpack('n', substr(getsockname($socket), 2, 2));
        push @sockets, $socket;
    }
    return ($chosen, @sockets);
}

sub listen_unix {
    my ($path, $folder) = @_;
    my $before = umask 0177; # as OpenSSH's server: only the user may connect
    my $socket = bound(AF_UNIX, pack_sockaddr_un($path)) || fail("listen $path: " . reason());
    umask $before;
    unlink_at_end($path, $folder);
    return ($path, $socket);
}

sub listen_agent {
    open(my $random, '<', '/dev/urandom') || fail('/dev/urandom: ' . reason());
    sysread($random, my $bytes, 8) == 8 || fail('/dev/urandom: ' . reason());
    my $path = '/tmp/ssh-' . unpack('H*', $bytes);
    mkdir($path, 0700) || fail("mkdir $path: " . reason());
    return listen_unix("$path/agent.$$", $path);
}

# Removes a socket when this process has ended, however it ends: the worker kills its process group.
sub unlink_at_end {
    my ($path, $folder) = @_;
    pipe(my $ended, $alive) || fail('pipe: ' . reason());
    my $pid = fork;
    fail('fork: ' . reason()) if !defined $pid;
    return if $pid;
    setpgrp;
    close $_ for $alive, \*STDIN, \*STDOUT, \*STDERR;
    sysread($ended, my $byte, 1);
    unlink $path;
    rmdir $folder if defined $folder;
    exit 0;
}

sub bound {
    my ($family, $addr) = @_;
    socket(my $socket, $family, SOCK_STREAM, 0) || return;
    setsockopt($socket, SOL_SOCKET, SO_REUSEADDR, 1) if $family != AF_UNIX;
    setsockopt($socket, IPPROTO_IPV6, IPV6_V6ONLY, 1) if $family == AF_INET6;
    return bind($socket, $addr) && listen($socket, SOMAXCONN) ? $socket : undef;
}

sub serve {
    my ($readable, $writable) = ('', '');
    vec($readable, fileno($_), 1) = 1 for \*STDIN, $door, @listeners, map { $_->{socket} } @greetings;
    for my $way (map { @{ $_->{ways} } } @pairs) {
        next if !$way->{is_open};
        if ($way->{bytes} eq '') { vec($readable, fileno($way->{from}), 1) = 1 }
        else { vec($writable, fileno($way->{to}), 1) = 1 }
    }
    my $limit = %waiting || @greetings ? 1 : undef;
    if (select($readable, $writable, undef, $limit) < 0) {
        $! == EINTR || fail('select: ' . reason());
        return;
    }
    read_input() if vec($readable, fileno(STDIN), 1);
    my $oldest = time - $FETCH_LIMIT_SECS;
    delete $waiting{$_} for grep { $waiting{$_}{since} < $oldest } keys %waiting;
    @greetings = grep { $_->{since} >= $oldest } @greetings;
    my @ready = grep { vec($readable, fileno($_->{socket}), 1) } @greetings;
    greet($_) for @ready;
    for my $pair (@pairs) { carry($_, $pair, $readable, $writable) for @{ $pair->{ways} } }
    @pairs = grep { !$_->{is_broken} && grep { $_->{is_open} } @{ $_->{ways} } } @pairs;
    if (vec($readable, fileno($door), 1) && accept(my $socket, $door)) {
        set_nonblocking($socket);
        push @greetings, { socket => $socket, line => '', since => time } if @greetings < $GREETINGS_MAX;
    }
    for my $listener (@listeners) { take($listener) if vec($readable, fileno($listener), 1) }
}

sub take {
    my ($listener) = @_;
    my $peer = accept(my $socket, $listener) || return;
    return if keys(%waiting) + @pairs >= $CONNECTIONS_MAX; # closes it
    set_nonblocking($socket);
    my ($host, $port) = ('-', 0);
    if ($kind eq 'tcp') {
        setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1);
        (undef, $host, $port) = getnameinfo($peer, NI_NUMERICHOST | NI_NUMERICSERV);
    }
    $last += 1;
    $waiting{$last} = { socket => $socket, since => time };
    say_line("open $last $host $port");
}

sub read_input {
    my $got = sysread(STDIN, $input, 4096, length $input);
    exit 0 if defined $got ? $got == 0 : !is_later();
    while ($input =~ s/^([^\n]*)\n//) {
        my $line = $1;
        if (!defined $secret) { $secret = $line }
        elsif ($line =~ /^refuse (\d+)$/) { delete $waiting{$1} }
    }
}

# Reads a line byte by byte, because what follows it belongs to the connection.
sub greet {
    my ($greeting) = @_;
    my ($socket, $got) = ($greeting->{socket});
    while ($greeting->{line} !~ /\n$/) {
        $got = length $greeting->{line} < $GREETING_MAX_BYTES
            ? sysread($socket, $greeting->{line}, 1, length $greeting->{line})
            : 0;
        return if !defined $got && is_later();
        last if !$got;
    }
    @greetings = grep { $_ != $greeting } @greetings;
    my ($said, $number) = $greeting->{line} =~ /^(\w+) (\d+)\n$/;
    return if !defined $secret || !defined $said || $said ne $secret || !$waiting{$number}; # closes it
    my $other = delete($waiting{$number})->{socket};
    setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1);
    my ($out, $in) = map { { from => $_->[0], to => $_->[1], bytes => '', at => 0, is_open => 1 } } [$socket, $other], [$other, $socket];
    push @pairs, { ways => [$out, $in], is_broken => 0 };
}

sub carry {
    my ($way, $pair, $readable, $writable) = @_;
    my ($from, $to) = @$way{qw(from to)};
    return if !$way->{is_open} || $pair->{is_broken};
    if ($way->{bytes} eq '' && vec($readable, fileno($from), 1)) {
        my $got = sysread($from, $way->{bytes}, $PIECE_BYTES);
        if (!defined $got) { $pair->{is_broken} = 1 if !is_later() }
        elsif ($got == 0) { $way->{is_open} = 0; shutdown($to, SHUT_WR) }
    }
    elsif ($way->{bytes} eq '' || !vec($writable, fileno($to), 1)) { return }
    return if $way->{bytes} eq '';
    my $put = syswrite($to, $way->{bytes}, length($way->{bytes}) - $way->{at}, $way->{at});
    if (!defined $put) { $pair->{is_broken} = 1 if !is_later() }
    elsif (($way->{at} += $put) == length $way->{bytes}) { @$way{qw(bytes at)} = ('', 0) }
}

sub set_nonblocking {
    my ($handle) = @_;
    fcntl($handle, F_SETFL, fcntl($handle, F_GETFL, 0) | O_NONBLOCK) || fail('fcntl: ' . reason());
}

sub is_later { return $! == EAGAIN || $! == EINTR }

sub reason { return sprintf('%s (os error %d)', "$!", $! + 0) }

sub say_line { syswrite(STDOUT, "$_[0]\n") }

sub fail {
    say_line("failed $_[0]");
    exit 1;
}
