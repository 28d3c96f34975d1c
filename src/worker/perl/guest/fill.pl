# Fills the folders that the worker brings into a Pod: the toolbox and the scripts of the sandbox. A container of the Pod runs it from
# the helper image, which has the toolbox and nothing else.
#
# perl fill.pl once FROM TOOLS SCRIPTS [NAME COUNT PIECE…]…     each script in pieces, because an argument has at most 128 KiB
# perl fill.pl hold …            the same, then stays until `wait` has ended in the same container
# perl fill.pl wait FROM TOOLS   returns once `hold` has filled the folders
use strict;
use warnings;
use Fcntl qw(:mode);

my ($mode, $from, $tools, $scripts, @rest) = @ARGV;
# An abstract name in the network namespace of the Pod, so that nothing is left in the folders. No sandbox runs there yet.
my ($AF_UNIX, $SOCK_STREAM) = (1, 1);
my $address = pack 'S a*', $AF_UNIX, "\0fill $tools";
my $POLL_SECS = 0.002;
# If the kubelet is restarted before it runs `wait`, it never does.
my $HOLD_SECS = 60;

if ($mode eq 'wait') {
    for (;;) {
        socket my $socket, $AF_UNIX, $SOCK_STREAM, 0 or die "socket: $!\n";
        exit 0 if connect $socket, $address;
        select undef, undef, undef, $POLL_SECS;
    }
}
# A container's first process ignores signals that it doesn't handle.
$SIG{TERM} = sub { exit 1 };
umask 0022;
while (@rest) {
    my ($name, $count) = splice @rest, 0, 2;
    put("$scripts/$name", join('', splice @rest, 0, $count), 0755);
}
copy($from, $tools);
exit 0 if $mode eq 'once';
socket my $listener, $AF_UNIX, $SOCK_STREAM, 0 or die "socket: $!\n";
bind $listener, $address or die "bind: $!\n";
listen $listener, 1 or die "listen: $!\n";
$SIG{ALRM} = sub { exit 0 };
alarm $HOLD_SECS;
accept my $waiter, $listener or die "accept: $!\n";
sysread $waiter, my $nothing, 1; # the end of its process, whose exit code is certain by then
exit 0;

# The programs that a Pod starts are last: until the toolbox is complete, they can't be executed.
sub copy {
    my ($source, $target) = @_;
    mkdir $target;
    opendir my $folder, $source or die "$source: $!\n";
    my @names = grep { !/^\.\.?$/ } readdir $folder;
    for my $name ((grep { !/^(init|loader)$/ } @names), (grep { /^(init|loader)$/ } @names)) {
        my @stat = stat "$source/$name" or die "$source/$name: $!\n";
        if (S_ISDIR($stat[2])) { copy("$source/$name", "$target/$name"); next }
        open my $file, '<:raw', "$source/$name" or die "$source/$name: $!\n";
        local $/;
        put("$target/$name", scalar <$file>, $stat[2] & 0777);
    }
}

sub put {
    my ($path, $content, $mode) = @_;
    open my $file, '>:raw', $path or die "$path: $!\n";
    print {$file} $content or die "$path: $!\n";
    close $file or die "$path: $!\n";
    chmod $mode, $path or die "$path: $!\n";
}
