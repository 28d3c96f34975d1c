# Connects to a host and port from inside a sandbox. Sends standard input to the other end, and writes received bytes to
# standard output. Each direction ends independently. It is written in Perl because the worker brings a Perl into every
# sandbox (toolbox.ts). A sandbox may have no other programs.
#
# perl tcp.pl HOST PORT
#
# Standard error reports these events to the worker, one line each:
#
#   connected     once, before any byte is carried
#   eof N         the other end sends no more; N bytes were written to standard output in all. The worker can't see the end
#                 of that pipe, because the runtime's command line keeps it open as long as this script runs.
#   failed TEXT   the connection could not be made, or it broke; nothing follows
#
# Exits with 0 when both directions have ended, and with 1 after a failure.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket qw(getaddrinfo IPPROTO_TCP SHUT_WR SOCK_STREAM SOL_SOCKET SO_ERROR TCP_NODELAY);

# The usual size of a pipe.
my $PIECE_BYTES = 65_536;

my ($host, $port) = @ARGV;

$SIG{PIPE} = 'IGNORE'; # a write to a closed connection fails with an error instead

my $socket = connect_to($host, $port);
say_line('connected');
carry($socket);
exit 0;

# Tries each address of the host in the order of the sandbox's own name resolution. The worker enforces the time limit.
sub connect_to {
    my ($host, $port) = @_;
    my ($problem, @found) = getaddrinfo($host, $port, { socktype => SOCK_STREAM, protocol => IPPROTO_TCP });
    fail("connect $host:$port: failed to lookup address information: $problem") if $problem;
    my $why = 'no address';
    for my $address (@found) {
        if (!socket(my $socket, $address->{family}, SOCK_STREAM, IPPROTO_TCP)) { $why = reason() }
        elsif (!connect_one($socket, $address->{addr})) { $why = reason() }
        else {
            # A key stroke must not wait for the acknowledgement of the previous key stroke.
            setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1);
            return $socket;
        }
    }
    fail("connect $host:$port: $why");
}

sub connect_one {
    my ($socket, $address) = @_;
    return 1 if connect($socket, $address);
    return 0 if $! != EINTR;
    # An interrupted connect continues in the background.
    my $writable = '';
    vec($writable, fileno($socket), 1) = 1;
    select(undef, $writable, undef, undef);
    $! = unpack('i', getsockopt($socket, SOL_SOCKET, SO_ERROR));
    return $! == 0;
}

# Forwards data in both directions until both have ended. Each direction reads its next piece only after it has written
# the previous one, so a slow reader at either end stops the writer at the other end.
sub carry {
    my ($socket) = @_;
    set_nonblocking($_) for \*STDIN, \*STDOUT, $socket;
    my ($stdin_fd, $stdout_fd, $socket_fd) = (fileno(STDIN), fileno(STDOUT), fileno($socket));
    my ($out, $out_at, $out_open) = ('', 0, 1); # from standard input to the socket
    my ($in,  $in_at,  $in_open)  = ('', 0, 1); # from the socket to standard output
    my $in_bytes = 0;

    while ($out_open || $in_open) {
        my ($readable, $writable) = ('', '');
        if ($out_open) { $out eq '' ? vec($readable, $stdin_fd, 1) = 1 : vec($writable, $socket_fd, 1) = 1 }
        if ($in_open) { $in eq '' ? vec($readable, $socket_fd, 1) = 1 : vec($writable, $stdout_fd, 1) = 1 }
        if (select($readable, $writable, undef, undef) < 0) {
            $! == EINTR || fail('select: ' . reason());
            next;
        }

        if ($out_open && $out eq '' && vec($readable, $stdin_fd, 1)) {
            my $got = sysread(STDIN, $out, $PIECE_BYTES);
            if (!defined $got) { is_later() || fail('read the input: ' . reason()) }
            elsif ($got == 0) {
                $out_open = 0;
                shutdown($socket, SHUT_WR) || fail('shutdown TCP stream: ' . reason());
            }
        }
        if ($in_open && $in eq '' && vec($readable, $socket_fd, 1)) {
            my $got = sysread($socket, $in, $PIECE_BYTES);
            if (!defined $got) { is_later() || fail('read TCP stream: ' . reason()) }
            elsif ($got == 0) {
                $in_open = 0;
                say_line("eof $in_bytes");
            }
        }
        # Writes without a check whether the socket is ready. The check would cost as much as a write, and the socket
        # usually is ready.
        if ($out ne '') {
            my $put = syswrite($socket, $out, length($out) - $out_at, $out_at);
            if (!defined $put) { is_later() || fail('write TCP stream: ' . reason()) }
            elsif (($out_at += $put) == length $out) { ($out, $out_at) = ('', 0) }
        }
        if ($in ne '') {
            my $put = syswrite(STDOUT, $in, length($in) - $in_at, $in_at);
            if (!defined $put) { is_later() || exit 1 } # the worker has closed it
            else {
                $in_bytes += $put;
                ($in, $in_at) = ('', 0) if ($in_at += $put) == length $in;
            }
        }
    }
}

sub set_nonblocking {
    my ($handle) = @_;
    fcntl($handle, F_SETFL, fcntl($handle, F_GETFL, 0) | O_NONBLOCK) || fail('fcntl: ' . reason());
}

# Whether the last system call failed only temporarily and has to be repeated.
sub is_later { return $! == EAGAIN || $! == EINTR }

# The error of the last system call, in the form that clients of the agent protocol expect.
sub reason { return sprintf('%s (os error %d)', "$!", $! + 0) }

sub say_line { syswrite(STDERR, "$_[0]\n") }

sub fail {
    say_line("failed $_[0]");
    exit 1;
}
