# What a start needs of the kernel, asked for directly: the programs that do the same (mkfifo, mount, ip, nsenter) take 2 to 4 ms of
# processor each, most of it to be forked, loaded and linked (decision 29).
#
# perl system-calls.pl WORD ARGUMENTS…, where the words are the keys of %WORDS. It exits with 0, or with 1 and why on standard
# error.
#
# perl system-calls.pl serve PARENT does one such call after another. A request on standard input: length of what follows (u32,
# big-endian), then the call's parts, each ended by a NUL. A reply is a line: `done`, or `failed TEXT`. At the end of input it leaves.
# What a worker still asked for as it died is not done: the next one may have put in order already what that would change.
use strict;
use warnings;
use Errno qw(EBUSY EINVAL ENOTTY);
use Fcntl qw(:DEFAULT :seek);
use POSIX ();

require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
require(__FILE__ =~ s{[^/]+$}{netlink.pl}r);

my $is_arm = (POSIX::uname())[4] eq 'aarch64';
my %NUMBER = $is_arm
    ? (mount => 40, fsync => 82, unshare => 97, setns => 268)
    : (mount => 165, fsync => 74, unshare => 272, setns => 308);
use constant {MS_NOSUID => 2, MS_NODEV => 4, MS_NOATIME => 1024, MS_BIND => 4096, CLONE_NEWNET => 0x40000000};

my %WORDS = (copy => \&copy_sparsely, fifos => \&make_fifos, disk => \&mount_disk, root => \&mount_root, network => \&make_network);

# Answers with why it was not done, or nothing.
sub do_word {
    my ($word, @arguments) = @_;
    my $do = $WORDS{$word} // return "$word: unknown";
    return undef if eval { $do->(@arguments); 1 };
    return $@ =~ s/\s+/ /gr;
}

sub serve {
    my ($parent) = @_;
    close_inherited();
    binmode STDIN;
    while (1) {
        take_requests(sub {
            exit 0 if getppid != $parent;
            my @call = split /\0/, $_[0], -1;
            pop @call; # behind the last NUL
            my $why = do_word(@call);
            say_line(defined $why ? "failed $why" : 'done');
        });
    }
}

sub call {
    my ($name, @arguments) = @_;
    return if syscall($NUMBER{$name}, @arguments) >= 0;
    die "$name: $!\n";
}

# PATH…: named pipes that everybody may open who gets to them, in place of what is there.
sub make_fifos {
    for my $path (@_) {
        unlink $path;
        POSIX::mkfifo($path, 0666) && chmod 0666, $path or die "$path: $!\n"; # chmod: whatever the umask is
    }
}

use constant {SEEK_DATA => 3, SEEK_HOLE => 4, BLOCK => 4096, PIECE => 1024 * 1024};

# FROM TO: copies a file to a new one, for its owner alone, without the blocks in which nothing is. It is on the disk then, as
# after mkfs: the file system that it holds can be repaired after a crash of the machine, whenever that comes.
sub copy_sparsely {
    my ($from, $to) = @_;
    sysopen my $source, $from, O_RDONLY or die "$from: $!\n";
    sysopen my $target, $to, O_WRONLY | O_CREAT | O_EXCL, 0600 or die "$to: $!\n";
    my $size = -s $source;
    truncate $target, $size or die "$to: $!\n";
    my $nothing = "\0" x BLOCK;
    for (my $at = 0; defined($at = sysseek $source, $at, SEEK_DATA);) {
        my $end = sysseek($source, $at, SEEK_HOLE) // die "$from: $!\n";
        while ($at < $end) {
            sysseek $source, $at, SEEK_SET or $at == 0 or die "$from: $!\n";
            my $count = sysread($source, my $piece, $end - $at < PIECE ? $end - $at : PIECE) || die "$from: $!\n";
            for (my $first = 0; $first < $count;) {
                my $last = $first;
                $last += BLOCK while $last < $count && substr($piece, $last, BLOCK) ne $nothing;
                if ($last > $first) {
                    my $length = ($last < $count ? $last : $count) - $first;
                    sysseek $target, $at + $first, SEEK_SET;
                    (syswrite($target, $piece, $length, $first) // 0) == $length or die "$to: $!\n";
                }
                $first = $last + BLOCK;
            }
            $at += $count;
        }
    }
    $!{ENXIO} or die "$from: $!\n"; # no data from there on (lseek(2))
    call('fsync', fileno $target);
}

# IMAGE FOLDER OWNER: mounts a disk, which is a file, and makes the folders that an overlay needs in it.
sub mount_disk {
    my ($image, $folder, $owner) = @_;
    my $device = attach_loop($image);
    mount_it(defined $device ? "$device->[0]" : $image, $folder, $device);
    chmod 0711, $folder or die "$folder: $!\n";
    for my $made ("$folder/upper", "$folder/work") {
        next if -d $made; # with the mode that the sandbox gave its root
        mkdir $made, 0755 and chmod 0755, $made or die "$made: $!\n"; # chmod: whatever the umask is
    }
    chown $owner, $owner, "$folder/upper" or die "$folder/upper: $!\n";
}

sub mount_it {
    my ($source, $folder, $device) = @_;
    if (!defined $device) {
        system('mount', '-t', 'ext4', '-o', 'loop,nosuid,nodev,noatime,discard', $source, $folder) == 0 or die "mount failed\n";
        return;
    }
    call('mount', $source, $folder, 'ext4', MS_NOSUID | MS_NODEV | MS_NOATIME, 'discard');
}

use constant {LOOP_CONFIGURE => 0x4C0A, LOOP_CTL_GET_FREE => 0x4C82, LO_FLAGS_AUTOCLEAR => 4, ATTACH_TRIES => 100};

# A loop device that goes with its last user: its path and a handle, to be held until it is mounted. Nothing on a kernel
# before 5.8, where it takes more than one call.
sub attach_loop {
    my ($image) = @_;
    sysopen my $file, $image, O_RDWR or die "$image: $!\n";
    sysopen my $control, '/dev/loop-control', O_RDWR or die "/dev/loop-control: $!\n";
    # struct loop_config: file, block size, struct loop_info64 (its flags at 52), reserved (linux/loop.h)
    my $config = pack 'L L x52 L a64 x112 x64', fileno $file, 0, LO_FLAGS_AUTOCLEAR, substr $image, 0, 63;
    for (1 .. ATTACH_TRIES) {
        my $number = ioctl($control, LOOP_CTL_GET_FREE, 0) // die "loop-control: $!\n";
        my $path = '/dev/loop' . int $number;
        sysopen my $device, $path, O_RDWR or die "$path: $!\n";
        return [$path, $device] if ioctl $device, LOOP_CONFIGURE, $config;
        return undef if $! == EINVAL || $! == ENOTTY;
        die "$path: $!\n" if $! != EBUSY; # somebody else was given the same
    }
    die "no loop device could be had\n";
}

# BASE OPTIONS LAYER…: mounts layers, the lowest first, beneath the disk of a run. A short link stands for each, because all of
# them together must fit into one page of options.
sub mount_root {
    my ($base, $options, @layers) = @_;
    my $links = "$base/layers";
    if (-d $links) {
        opendir my $folder, $links or die "$links: $!\n";
        -l "$links/$_" ? unlink "$links/$_" : rmdir "$links/$_" for grep { !/^\.\.?$/ } readdir $folder;
    }
    else {
        mkdir $links, 0700 or die "$links: $!\n";
    }
    @layers or mkdir "$links/0" or die "$links/0: $!\n";
    symlink $layers[$_], "$links/$_" or die "$links/$_: $!\n" for 0 .. $#layers;
    chdir $links or die "$links: $!\n";
    my $lower = @layers ? join ':', reverse 0 .. $#layers : '0';
    my $data = "$options,lowerdir=$lower,upperdir=$base/disk/upper,workdir=$base/disk/work";
    my $is_mounted = eval { call('mount', 'overlay', "$base/root", 'overlay', MS_NODEV, $data); 1 };
    my $why = $@;
    chdir '/'; # a folder that something stands in keeps its file system from being unmounted
    die $why if !$is_mounted;
}

# PATH [ROUTER DEVICE GATEWAY ADDRESS PREFIX]: a network namespace with that name, in which every port may be listened on, with a cable to
# the router's: there its end is called DEVICE and has the address GATEWAY, here eth0 and ADDRESS.
sub make_network {
    my ($path) = @_;
    sysopen my $name, $path, O_RDONLY | O_CREAT | O_EXCL, 0 or die "$path: $!\n";
    sysopen my $own, '/proc/self/ns/net', O_RDONLY or die "/proc/self/ns/net: $!\n";
    call('unshare', CLONE_NEWNET);
    my $is_made = eval { furnish_network(@_); 1 };
    my $why = $@;
    eval { call('setns', fileno $own, CLONE_NEWNET); 1 } or POSIX::_exit(1); # what came next would be done in a sandbox
    die $why if !$is_made;
}

sub furnish_network {
    my ($path, $router_path, $device, $gateway, $address, $prefix) = @_;
    call('mount', '/proc/self/ns/net', $path, 'none', MS_BIND, 0);
    put_text('/proc/sys/net/ipv4/ip_unprivileged_port_start', '0');
    put_text('/proc/sys/net/ipv4/ping_group_range', '0 2147483647');
    my $inside = open_netlink();
    return talk($inside, set_link('lo', IFF_UP())) if !defined $router_path;
    sysopen my $router, $router_path, O_RDONLY or die "$router_path: $!\n";
    talk($inside, add_cable('eth0', $device, fileno $router), without_ipv6('eth0'));
    my $index = index_of($inside, 'eth0');
    talk($inside, set_link('lo', IFF_UP()), add_address($index, $address, $prefix), set_link('eth0', IFF_UP()), add_default_route($gateway));
    call('setns', fileno $router, CLONE_NEWNET);
    my $outside = open_netlink();
    talk($outside, without_ipv6($device), add_address(index_of($outside, $device), $gateway, $prefix), set_link($device, IFF_UP()));
}

sub put_text {
    my ($path, $text) = @_;
    sysopen my $file, $path, O_WRONLY or die "$path: $!\n";
    syswrite $file, $text or die "$path: $!\n";
}

serve($ARGV[1]) if $ARGV[0] eq 'serve';
my $why = do_word(@ARGV);
exit 0 if !defined $why;
syswrite STDERR, "$why\n";
exit 1;
