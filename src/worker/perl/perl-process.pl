# What the small processes that start programs for the worker have in common. Requests come on standard input, each after its
# length (u32, big-endian); at the end of input the process leaves.
use strict;
use warnings;
use POSIX qw(:signal_h);

use constant SFD_CLOEXEC => 0x80000;
use constant SIGNAL_SET_BYTES => 8;
my %SIGNALFD4 = (x64 => 289, arm64 => 74);

# What the worker had open, such as others' terminals, would stay open as long as this process.
sub close_inherited {
    opendir my $inherited, '/proc/self/fd' or die "/proc/self/fd: $!\n";
    POSIX::close($_) for grep { /^\d+$/ && $_ > 2 } readdir $inherited;
    closedir $inherited;
}

# A child's end is read like input, so that none is missed between a look and the wait for the next. Answers the handle to read.
sub watch_ends {
    my ($architecture) = @_;
    sigprocmask(SIG_SETMASK, POSIX::SigSet->new(SIGCHLD)) or die "sigprocmask: $!\n";
    my $mask = pack 'Q', 1 << SIGCHLD - 1;
    my $fd = syscall $SIGNALFD4{$architecture}, -1, $mask, SIGNAL_SET_BYTES, SFD_CLOEXEC;
    die "signalfd: $!\n" if $fd < 0;
    open my $ends, '<&=', $fd or die "signalfd: $!\n";
    return $ends;
}

# Takes what lies on standard input and calls for each whole request.
my $input = '';
sub take_requests {
    my ($begin) = @_;
    sysread(STDIN, $input, 65536, length $input) or exit 0;
    while (length $input >= 4 && length $input >= 4 + unpack 'N', $input) {
        my $request = substr $input, 4, unpack 'N', $input;
        substr $input, 0, 4 + length $request, '';
        $begin->($request);
    }
}

sub say_line {
    my $line = "$_[0]\n";
    while (length $line) {
        my $written = syswrite(STDOUT, $line) // exit 1;
        substr $line, 0, $written, '';
    }
}

1;
