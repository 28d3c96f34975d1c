# Connects from inside a sandbox to a host and port and carries the bytes: standard input goes to the other end, what
# comes from there to standard output. Each direction ends by itself. On standard error it says what happens, one line
# each, to the worker that started it:
#
#   connected     once, before any byte is carried
#   eof N         the other end sends nothing more; N bytes were written to standard output in all. The worker can't see
#                 the end of that pipe: the runtime's command line has it open too, for as long as this script runs.
#   failed WORDS  no connection came about, or it broke; nothing follows
#
# It ends when both directions have ended (0), or after a failure (1).
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket qw(getaddrinfo IPPROTO_TCP SHUT_WR SOCK_STREAM SOL_SOCKET SO_ERROR TCP_NODELAY);

# What a pipe of the usual size holds.
my $PIECE_BYTES = 65_536;

my ($host, $port) = @ARGV;

$SIG{PIPE} = 'IGNORE'; # a write to a closed connection fails instead, and is told

my $socket = connect_to($host, $port);
say_line('connected');
carry($socket);
exit 0;

# Tries every address of the host, in the order of the sandbox's own look-up, as programs do. The worker watches the time.
sub connect_to {
    my ($host, $port) = @_;
    my ($problem, @found) = getaddrinfo($host, $port, { socktype => SOCK_STREAM, protocol => IPPROTO_TCP });
    fail("connect $host:$port: failed to lookup address information: $problem") if $problem;
    my $why = 'no address';
    for my $address (@found) {
        if (!socket(my $socket, $address->{family}, SOCK_STREAM, IPPROTO_TCP)) { $why = reason() }
        elsif (!connect_one($socket, $address->{addr})) { $why = reason() }
        else {
            # A terminal's single letters must not wait for the answer to the one before.
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
    # Interrupted, it goes on by itself.
    my $writable = '';
    vec($writable, fileno($socket), 1) = 1;
    select(undef, $writable, undef, undef);
    $! = unpack('i', getsockopt($socket, SOL_SOCKET, SO_ERROR));
    return $! == 0;
}

# Carries both directions until both have ended. A piece is read only when the one before it was written, so a slow
# reader at either end stops the writer at the other.
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
        # Written at once: mostly there is room, and a look whether there is costs as much as the try.
        if ($out ne '') {
            my $put = syswrite($socket, $out, length($out) - $out_at, $out_at);
            if (!defined $put) { is_later() || fail('write TCP stream: ' . reason()) }
            elsif (($out_at += $put) == length $out) { ($out, $out_at) = ('', 0) }
        }
        if ($in ne '') {
            my $put = syswrite(STDOUT, $in, length($in) - $in_at, $in_at);
            if (!defined $put) { is_later() || exit 1 } # the worker has let go of it
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

# Whether what failed only has to be tried again.
sub is_later { return $! == EAGAIN || $! == EINTR }

# The last error in the words and form that clients of the agent protocol know.
sub reason { return sprintf('%s (os error %d)', "$!", $! + 0) }

sub say_line { syswrite(STDERR, "$_[0]\n") }

sub fail {
    say_line("failed $_[0]");
    exit 1;
}
