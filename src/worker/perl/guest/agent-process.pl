# Starts one process for agent.pl, which loads this file.
use strict;
use warnings;
use Errno qw(EPERM EINVAL);
use Fcntl qw(O_NOCTTY O_RDWR);

use constant { TIOCSPTLCK => 0x40045431, TIOCGPTN => 0x80045430, TIOCSCTTY => 0x540e, TIOCSWINSZ => 0x5414 };
my %SETSID = (x64 => 112, arm64 => 157, riscv64 => 157);
my $SCRIPTS = '/.msb/scripts';
my $DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

our ($architecture, $WINDOW_BYTES);
my (undef, @sandbox_limits) = take_limits();
my %sandbox_environment = sandbox_environment();

# The environment of commands: that of the container, without what Kubernetes adds to every Pod.
sub sandbox_environment {
    my %variables = %ENV;
    delete $variables{$_} for grep { /^KUBERNETES_/ } keys %variables;
    $variables{PATH} //= $DEFAULT_PATH;
    $variables{PATH} = "$SCRIPTS:$variables{PATH}" if !grep { $_ eq $SCRIPTS } split /:/, $variables{PATH};
    $variables{HOME} //= '/';
    return %variables;
}

# Starts a process from the fields of a message S. Returns it with pid, input, outputs, or only `failure`: the fields of a
# message F.
sub start_process {
    my ($fields) = @_;
    my ($flags, $rows, $cols, @texts) = unpack 'C n n (N/a)*', $fields;
    my ($cwd, $user) = splice @texts, 0, 2;
    my @limits = (@sandbox_limits, split / /, $flags & 4 ? shift @texts : '');
    @limits = () if $flags & 2;
    my $count = shift @texts;
    my @variables = splice @texts, 0, $count;
    my ($program, @arguments) = @texts;
    my $is_terminal = $flags & 1;
    my %variables = $flags & 2 ? () : %sandbox_environment;
    for my $variable (@variables) {
        my ($name, $value) = split /=/, $variable, 2;
        $variables{$name} = $value;
    }
    my $refusal = length $user ? refuse_user($user) : undef;
    return $refusal if defined $refusal;

    my (%process, @ends);
    if ($is_terminal) {
        my $failure = open_terminal(\%process, \@ends, $rows, $cols);
        return $failure if defined $failure;
    }
    else { open_pipes(\%process, \@ends) or return failure('o') }
    pipe my $told, my $tell or return failure('o');
    my $pid = fork;
    return failure('o') if !defined $pid;
    if ($pid == 0) {
        $SIG{$_} = 'DEFAULT' for 'PIPE', 'CHLD';
        my $stage = begin($is_terminal, \@ends, $cwd);
        $stage = 'l' if $stage eq '' && defined refuse_limits($architecture, @limits);
        if ($stage eq '') {
            %ENV = %variables;
            no warnings 'exec';
            exec { $program } $program, @arguments;
            $stage = 'e';
        }
        syswrite $tell, pack 'a N', $stage, $! + 0;
        kill 'KILL', $$; # without the clean-up of the parent's handles
    }
    close $tell;
    close $_ for @ends;
    my $got = sysread $told, my $said, 16; # ends at once when the program begins
    if ($got) {
        waitpid $pid, 0;
        my ($stage, $number) = unpack 'a N', $said;
        $! = $number;
        return failure($stage);
    }
    set_nonblocking($_) for grep { defined } $process{input}, map { $_->{handle} } @{ $process{outputs} };
    return { %process, pid => $pid, is_terminal => $is_terminal, unwritten => '', is_input_over => 0, is_reaped => 0 };
}

# Makes the process a leader, connects its standard streams and enters its folder. Returns the stage that failed, or ''.
sub begin {
    my ($is_terminal, $ends, $cwd) = @_;
    if ($is_terminal) {
        syscall($SETSID{$architecture}) >= 0 or return 'p';
        ioctl $ends->[0], TIOCSCTTY, 0 or return 'p';
    }
    else { setpgrp }
    my ($stdin, $stdout, $stderr) = @$ends == 1 ? (@$ends) x 3 : @$ends;
    open STDIN, '<&', $stdin or return 'o';
    open STDOUT, '>&', $stdout or return 'o';
    open STDERR, '>&', $stderr or return 'o';
    return '' if $cwd eq '' || chdir $cwd;
    return 'c';
}

sub open_pipes {
    my ($process, $ends) = @_;
    pipe $ends->[0], $process->{input} or return 0;
    for my $stream (1, 2) {
        pipe my $handle, $ends->[$stream] or return 0;
        push @{ $process->{outputs} }, { handle => $handle, stream => $stream, credit => $WINDOW_BYTES };
    }
    return 1;
}

sub open_terminal {
    my ($process, $ends, $rows, $cols) = @_;
    sysopen my $own, '/dev/ptmx', O_RDWR | O_NOCTTY or return failure('p');
    my $zero = pack 'i', 0;
    my $number = pack 'i', 0;
    ioctl $own, TIOCSPTLCK, $zero or return failure('p');
    ioctl $own, TIOCGPTN, $number or return failure('p');
    sysopen $ends->[0], '/dev/pts/' . unpack('i', $number), O_RDWR | O_NOCTTY or return failure('p');
    set_size($own, $rows, $cols);
    $process->{input} = $own;
    $process->{outputs} = [{ handle => $own, stream => 1, credit => $WINDOW_BYTES }];
    return;
}

sub set_size {
    my ($terminal, $rows, $cols) = @_;
    my $size = pack 'S4', $rows || 24, $cols || 80, 0, 0;
    ioctl $terminal, TIOCSWINSZ, $size;
}

# Which of the sandbox's limits a process can't have, or undef. Tries them in a process of its own.
sub refusal_of_limits {
    return if !@sandbox_limits;
    pipe my $told, my $tell or return $!;
    my $pid = fork // return $!;
    if ($pid == 0) {
        my $refused = refuse_limits($architecture, @sandbox_limits);
        syswrite $tell, "$refused: $!" if defined $refused;
        kill 'KILL', $$; # without the clean-up of the parent's handles
    }
    close $tell;
    my $got = sysread $told, my $text, 1000;
    waitpid $pid, 0;
    return $got ? $text : undef;
}

# A Pod without privileges has one user. Another one is refused.
sub refuse_user {
    my ($user) = @_;
    my ($uid, $gid) = eval { ids_of($user) };
    if (!defined $uid) {
        my $text = $@;
        chomp $text;
        $! = EINVAL;
        return { failure => pack('a N', 'u', EINVAL) . $text };
    }
    return if $uid == $> && ($gid == (split ' ', $))[0] || $user =~ /^[^:]*$/);
    return { failure => pack('a N', 'u', EPERM) . "user '$user': commands of this sandbox run as its own user, $>" };
}

sub failure {
    my ($stage) = @_;
    return { failure => pack('a N', $stage, $! + 0) . sprintf '%s (os error %d)', "$!", $! + 0 };
}

1;
