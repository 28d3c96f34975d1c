# Starts processes in a sandbox for the worker, all over one stream: standard input and output of this process. It is for sandboxes
# on other machines, such as Pods, where the worker has one connection and can't start processes itself. It is written in Perl
# because the worker brings a Perl into every sandbox (toolbox.ts). It runs as the sandbox's user and has no more rights.
#
# perl agent.pl ARCHITECTURE     the architecture as Node names it: x64, arm64 or riscv64
#
# A message is its length without these four bytes (u32), a type (one character), the number of a process (u32) and its fields.
# Numbers are big-endian. The worker chooses the numbers of processes. From the worker:
#
#   S flags(u8) rows(u16) cols(u16), then texts with their lengths (u32): cwd, user, the number of variables as a text,
#     the variables, the program, its arguments. Flag 1: with a terminal. Flag 2: without the sandbox's environment and limits.
#     Flag 4: after the user comes a text with limits, each RESOURCE=SOFT:HARD, which replace the sandbox's.
#   I bytes        input; no bytes: its end
#   A stream(u8) count(u32)   so many more bytes of output may be sent: 1 standard output, 2 error output
#   K signal(u32)  to the process group
#   R rows(u16) cols(u16)
#   D              nobody reads the process any more: its input and outputs are closed
#   P              the worker is there; without any message for $SILENCE_SECS this process ends
#
# To the worker:
#
#   H version(u8) text   once: this process is ready, or `text` says which limit of the sandbox can't be set. An agent without
#     a version reads no flag 4.
#   S pid(u32)     the process runs
#   F stage errno(u32) text    it could not be started; stage is one character: c cwd, u user, p terminal, l limits, e exec, o other
#   O bytes, E bytes   output; no bytes: its end
#   A count(u32)   so many bytes of input were written
#   C errno(u32)   the process takes no more input
#   X code(i32)    it was reaped; -1 if a signal ended it
#
# When its input ends, this process kills all processes that it started, with their groups. agent-process.pl starts a process.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR EIO);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);

# How many bytes of output a process may send before the worker allows more.
our $WINDOW_BYTES = 1024 * 1024;
my $PIECE_BYTES = 65_536;
my $MESSAGE_MAX_BYTES = 8 * 1024 * 1024;
# Above so many unsent bytes, no output of processes is read.
my $UNSENT_MAX_BYTES = 2 * 1024 * 1024;
my $SILENCE_SECS = 90;
use constant { WNOHANG => 1, PR_SET_DUMPABLE => 4 };
my %PRCTL = (x64 => 157, arm64 => 167, riscv64 => 167);

our $architecture = $ARGV[0] // '';
require(__FILE__ =~ s{[^/]+$}{$_}r) for 'file-users.pl', 'limits.pl', 'agent-process.pl';

our $request = ''; # for file-users.pl
our @operations;

my %processes; # by number: see start_process()
my %number_of; # by process id
my ($in, $out, $out_at) = ('', '', 0);
my $heard = time;

# No process of the sandbox may trace this one, which starts processes that have no limits yet.
syscall $PRCTL{$architecture}, PR_SET_DUMPABLE, 0, 0, 0, 0;
$SIG{PIPE} = 'IGNORE';
$SIG{CHLD} = sub { }; # so that select() returns
umask 0022;
set_nonblocking($_) for \*STDIN, \*STDOUT;
say_message('H', 0, "\1" . (refusal_of_limits() // ''));
serve() while time - $heard < $SILENCE_SECS;
end_all();

sub serve {
    my ($readable, $writable) = ('', '');
    vec($readable, fileno(STDIN), 1) = 1;
    vec($writable, fileno(STDOUT), 1) = 1 if length $out;
    my $may_read = length($out) - $out_at < $UNSENT_MAX_BYTES;
    my $is_ending = 0;
    for my $process (values %processes) {
        for my $output (@{ $process->{outputs} }) {
            vec($readable, fileno($output->{handle}), 1) = 1 if $may_read && $output->{handle} && $output->{credit} > 0;
        }
        vec($writable, fileno($process->{input}), 1) = 1 if $process->{input} && length $process->{unwritten};
        $is_ending = 1 if !$process->{is_reaped} && !grep { $_->{handle} } @{ $process->{outputs} };
    }
    # A process is reaped some moments after its outputs end; its signal may come just before select() begins.
    if (select($readable, $writable, undef, $is_ending ? 0.01 : 1) >= 0) {
        write_out() if vec($writable, fileno(STDOUT), 1);
        for my $number (keys %processes) {
            my $process = $processes{$number};
            write_input($number, $process) if $process->{input} && vec($writable, fileno($process->{input}), 1);
            for my $output (@{ $process->{outputs} }) {
                read_output($number, $process, $output) if $output->{handle} && vec($readable, fileno($output->{handle}), 1);
            }
        }
        read_messages() if vec($readable, fileno(STDIN), 1);
    }
    elsif ($! != EINTR) { end_all() }
    reap();
    for my $number (keys %processes) {
        my $process = $processes{$number};
        delete $processes{$number} if $process->{is_reaped} && !grep { $_->{handle} } @{ $process->{outputs} };
    }
}

sub read_messages {
    my $got = sysread STDIN, $in, 4 * $PIECE_BYTES, length $in;
    if (!defined $got) { return if is_later(); end_all() }
    end_all() if $got == 0;
    $heard = time;
    my $at = 0;
    while (length($in) - $at >= 9) {
        my ($length, $type, $number) = unpack "\@$at N a N", $in;
        end_all() if $length < 5 || $length > $MESSAGE_MAX_BYTES;
        last if length($in) - $at < 4 + $length;
        handle($type, $number, substr $in, $at + 9, $length - 5);
        $at += 4 + $length;
    }
    substr($in, 0, $at) = '' if $at;
}

sub handle {
    my ($type, $number, $fields) = @_;
    if ($type eq 'S') {
        my $process = start_process($fields);
        if (defined $process->{failure}) { say_message('F', $number, $process->{failure}); return }
        $processes{$number} = $process;
        $number_of{ $process->{pid} } = $number;
        say_message('S', $number, pack 'N', $process->{pid});
        return;
    }
    my $process = $processes{$number} or return; # it has ended meanwhile
    if ($type eq 'I') {
        if (length $fields) { $process->{unwritten} .= $fields if $process->{input} }
        else { $process->{is_input_over} = 1 }
        write_input($number, $process) if $process->{input};
    }
    elsif ($type eq 'A') {
        my ($stream, $count) = unpack 'C N', $fields;
        my ($output) = grep { $_->{stream} == $stream } @{ $process->{outputs} };
        $output->{credit} += $count if defined $output;
    }
    elsif ($type eq 'K') { kill unpack('N', $fields), -$process->{pid} if !$process->{is_reaped} }
    elsif ($type eq 'R') { set_size($process->{outputs}[0]{handle}, unpack 'n n', $fields) if $process->{is_terminal} && $process->{outputs}[0]{handle} }
    elsif ($type eq 'D') {
        close_input($process);
        for my $output (@{ $process->{outputs} }) {
            close $output->{handle} if $output->{handle};
            $output->{handle} = undef;
        }
    }
}

sub write_input {
    my ($number, $process) = @_;
    if (length $process->{unwritten}) {
        my $put = syswrite $process->{input}, $process->{unwritten}, $PIECE_BYTES;
        if (defined $put) {
            substr($process->{unwritten}, 0, $put) = '';
            say_message('A', $number, pack 'N', $put);
        }
        elsif (!is_later()) {
            say_message('C', $number, pack 'N', $! + 0);
            close_input($process);
            return;
        }
    }
    close_input($process) if $process->{is_input_over} && !length $process->{unwritten} && !$process->{is_terminal};
}

sub close_input {
    my ($process) = @_;
    close $process->{input} if $process->{input} && !$process->{is_terminal}; # a terminal's input is its output, too
    $process->{input} = undef;
    $process->{unwritten} = '';
}

sub read_output {
    my ($number, $process, $output) = @_;
    my $most = $output->{credit} < $PIECE_BYTES ? $output->{credit} : $PIECE_BYTES;
    my $got = sysread($output->{handle}, my $piece, $most);
    return if !defined $got && is_later();
    if ($got) { # undefined with EIO: all processes have closed their terminal
        $output->{credit} -= $got;
        say_message($output->{stream} == 1 ? 'O' : 'E', $number, $piece);
        return;
    }
    close_input($process) if $process->{is_terminal};
    close $output->{handle};
    $output->{handle} = undef;
    say_message($output->{stream} == 1 ? 'O' : 'E', $number, '');
}

sub reap {
    while ((my $pid = waitpid(-1, WNOHANG)) > 0) {
        my $status = $?;
        my $number = delete $number_of{$pid};
        next if !defined $number;
        my $process = $processes{$number} or next;
        $process->{is_reaped} = 1;
        say_message('X', $number, pack 'l>', $status & 127 ? -1 : $status >> 8);
    }
}

sub say_message {
    my ($type, $number, $fields) = @_;
    $out .= pack('N a N', 5 + length $fields, $type, $number) . $fields;
    write_out();
}

sub write_out {
    while ($out_at < length $out) {
        my $put = syswrite STDOUT, $out, length($out) - $out_at, $out_at;
        if (!defined $put) { last if is_later(); end_all() }
        $out_at += $put;
    }
    if ($out_at == length $out) { ($out, $out_at) = ('', 0) }
    elsif ($out_at > $UNSENT_MAX_BYTES) { substr($out, 0, $out_at) = ''; $out_at = 0 }
}

sub end_all {
    for my $process (values %processes) { kill 'KILL', -$process->{pid} if !$process->{is_reaped} }
    exit 0;
}

sub set_nonblocking {
    my ($handle) = @_;
    fcntl $handle, F_SETFL, fcntl($handle, F_GETFL, 0) | O_NONBLOCK;
}

sub is_later { return $! == EAGAIN || $! == EINTR }
