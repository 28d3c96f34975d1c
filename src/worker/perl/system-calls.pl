# Makes the system calls that a sandbox's start needs and Node can't make: sparse copies, named pipes, mounts and
# network namespaces. The programs for the same tasks (mkfifo, mount, ip, nsenter) take 2 to 4 ms of processor time
# each, mostly for forking, loading and linking (measured 2026-11). perl-process.pl explains the reason for Perl.
#
# perl system-calls.pl CALL ARGUMENTS…     makes one call; exits with 0, or with 1 and the reason on standard error
# perl system-calls.pl serve WORKER_PID    makes one call after another
#
# %CALLS lists the names of the calls and the functions that make them. The fields of a request to `serve`: the name of
# the call and its arguments. The replies: `ended N`, or `failed N TEXT` when the kernel refused.
use strict;
use warnings;
use Errno qw(EBUSY EINVAL ENOTTY);
use Fcntl qw(:DEFAULT :flock :seek);
use POSIX ();
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);
require(__FILE__ =~ s{[^/]+$}{netlink.pl}r);
require(__FILE__ =~ s{[^/]+$}{idmapped-mounts.pl}r);
require(__FILE__ =~ s{[^/]+$}{disk-copies.pl}r);

use constant {MS_NOSUID => 2, MS_NODEV => 4, MS_NOATIME => 1024, MS_BIND => 4096, MS_REC => 16384, MS_SHARED => 1 << 20};
use constant NETNS_FOLDER => '/run/netns';

my %CALLS = (
    copy => \&copy_sparsely,
    snapshot => \&snapshot_disk,
    thaw => \&thaw_disk,
    fifos => \&make_fifos,
    disk => \&mount_disk,
    devices => \&mount_devices,
    root => \&mount_root,
    pin => \&mount_mapped,
    'try-idmap' => \&try_idmap,
    'try-idmapped-layers' => \&try_idmapped_layers,
    network => \&make_network,
    hostname => \&set_hostname,
);

# Makes a call. Returns the reason if it fails, and otherwise nothing.
sub make_call {
    my ($name, @arguments) = @_;
    my $make = $CALLS{$name} // return "$name: unknown";
    return undef if eval { $make->(@arguments); 1 };
    return $@ =~ s/\s+/ /gr;
}

sub serve {
    my ($worker) = @_;
    close_inherited();
    binmode STDIN;
    while (1) {
        take_requests($worker, sub {
            my ($number, $fields) = @_;
            my $why = make_call(split_fields($fields));
            say_line(defined $why ? "failed $number $why" : "ended $number");
        });
    }
}

# fifos PATH…: makes named pipes, replacing what is there. Any user who can reach a pipe may open it.
sub make_fifos {
    for my $path (@_) {
        unlink $path;
        POSIX::mkfifo($path, 0666) && chmod 0666, $path or die "$path: $!\n"; # chmod, because the umask takes bits away
    }
}

# disk IMAGE FOLDER OWNER: mounts a disk image and makes the folders that an overlay needs in it.
sub mount_disk {
    my ($image, $folder, $owner) = @_;
    my $device = attach_loop($image);
    mount_ext4(defined $device ? "$device->[0]" : $image, $folder, $device);
    chmod 0711, $folder or die "$folder: $!\n";
    for my $made ("$folder/upper", "$folder/work") {
        next if -d $made; # keeps the mode that the sandbox gave its root
        mkdir $made, 0755 and chmod 0755, $made or die "$made: $!\n"; # chmod, because the umask takes bits away
    }
    chown $owner, $owner, "$folder/upper" or die "$folder/upper: $!\n";
}

sub mount_ext4 {
    my ($source, $folder, $device) = @_;
    if (!defined $device) {
        system('mount', '-t', 'ext4', '-o', 'loop,nosuid,nodev,noatime,discard', $source, $folder) == 0 or die "mount failed\n";
        return;
    }
    call('mount', $source, $folder, 'ext4', MS_NOSUID | MS_NODEV | MS_NOATIME, 'discard');
}

use constant {LOOP_CONFIGURE => 0x4C0A, LOOP_CTL_GET_FREE => 0x4C82, LO_FLAGS_AUTOCLEAR => 4, ATTACH_TRIES => 100};

# Attaches a file to a loop device, which the kernel detaches when the device is no longer in use. Returns the device's
# path and an open handle. Keep the handle open until the device is mounted. Returns undef on a kernel before 5.8, which
# has no LOOP_CONFIGURE.
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
        die "$path: $!\n" if $! != EBUSY; # another process took the same device
    }
    die "no loop device is free\n";
}

use constant CHARACTER_DEVICE => 0020000; # S_IFCHR
my %DEVICES = (null => [1, 3], zero => [1, 5], full => [1, 7], random => [1, 8], urandom => [1, 9], tty => [5, 0]);
my %LINKS = (core => '/proc/kcore', fd => '/proc/self/fd', stdin => '/proc/self/fd/0', stdout => '/proc/self/fd/1', stderr => '/proc/self/fd/2', ptmx => 'pts/ptmx');

# devices FOLDER: mounts a small file system on FOLDER that holds the device nodes of one sandbox. Once they belong to the
# sandbox's user, the sandbox can change its own nodes, and the nodes of the host stay out of its reach.
sub mount_devices {
    my ($folder) = @_;
    call('mount', 'tmpfs', $folder, 'tmpfs', MS_NOSUID, 'mode=755,size=64k');
    for my $name (keys %DEVICES) {
        my ($major, $minor) = @{$DEVICES{$name}};
        call('mknodat', AT_FDCWD(), "$folder/$name", CHARACTER_DEVICE | 0666, $major << 8 | $minor);
        chmod 0666, "$folder/$name" or die "$folder/$name: $!\n"; # chmod, because the umask takes bits away
    }
    mkdir "$folder/$_", 0755 or die "$folder/$_: $!\n" for qw(pts shm mqueue);
    symlink $LINKS{$_}, "$folder/$_" or die "$folder/$_: $!\n" for keys %LINKS;
}

# root BASE OPTIONS MAP LAYER…: mounts an overlay of a run's disk over the image's layers, the lowest first. With MAP, the
# path of a user namespace, the owners of all files appear by its map. The mount options refer to each layer by a short
# symlink, because all options together must fit into one page.
sub mount_root {
    my ($base, $options, $map, @layers) = @_;
    my ($links, $mapped) = ("$base/layers", "$base/mapped");
    make_links($links, @layers); # they also tell which layers are in use
    my $lower = @layers ? join ':', reverse 0 .. $#layers : '0';
    my $is_mounted = eval {
        make_mapped_layers($mapped, $map, "$base/disk", @layers) if $map ne '';
        symlink "$links/0", "$mapped/0" or die "$mapped/0: $!\n" if $map ne '' && !@layers; # an empty folder needs no map
        my $folder = $map eq '' ? $links : $mapped;
        chdir $folder or die "$folder: $!\n";
        my $disk = $map eq '' ? "$base/disk" : 'disk';
        call('mount', 'overlay', "$base/root", 'overlay', MS_NODEV, "$options,lowerdir=$lower,upperdir=$disk/upper,workdir=$disk/work");
        1;
    };
    my $why = $@;
    chdir '/'; # a current folder keeps its file system from being unmounted
    remove_mapped_layers($mapped) if $map ne '';
    die $why if !$is_mounted;
}

# Makes a folder with a symlink to each layer, named by the layer's number.
sub make_links {
    my ($links, @layers) = @_;
    if (-d $links) {
        opendir my $folder, $links or die "$links: $!\n";
        -l "$links/$_" ? unlink "$links/$_" : rmdir "$links/$_" for grep { !/^\.\.?$/ } readdir $folder;
    }
    else {
        mkdir $links, 0700 or die "$links: $!\n";
    }
    @layers or mkdir "$links/0" or die "$links/0: $!\n";
    symlink $layers[$_], "$links/$_" or die "$links/$_: $!\n" for 0 .. $#layers;
}

# network PATH [ROUTER DEVICE GATEWAY ADDRESS PREFIX]: makes a network namespace in which programs may listen on every port.
# With ROUTER, a veth pair leads to the router's namespace. The router's end is DEVICE with the address GATEWAY; the end in
# the new namespace is eth0 with ADDRESS.
sub make_network {
    my ($path) = @_;
    share_netns_folder() if index($path, NETNS_FOLDER . '/') == 0;
    sysopen my $name, $path, O_RDONLY | O_CREAT | O_EXCL, 0 or die "$path: $!\n";
    sysopen my $own, '/proc/self/ns/net', O_RDONLY or die "/proc/self/ns/net: $!\n";
    call('unshare', CLONE_NEWNET());
    my $is_made = eval { set_up_network(@_); 1 };
    my $why = $@;
    eval { enter_network($own); 1 } or POSIX::_exit(1); # later calls would be made in the sandbox's namespace
    die $why if !$is_made;
}

# Makes the folder of namespaces a shared mount, as `ip netns add` does. A namespace that is mounted before would be hidden below
# that mount, and `ip netns delete` could not remove it. The lock is that of `ip`.
sub share_netns_folder {
    mkdir NETNS_FOLDER, 0755;
    sysopen my $folder, NETNS_FOLDER, O_RDONLY or die NETNS_FOLDER . ": $!\n";
    flock $folder, LOCK_EX or die NETNS_FOLDER . ": $!\n";
    my @share = ('mount', '', NETNS_FOLDER, 'none', MS_SHARED | MS_REC, 0);
    return if eval { call(@share); 1 };
    die $@ if $! != EINVAL; # EINVAL: it is no mount yet
    call('mount', NETNS_FOLDER, NETNS_FOLDER, 'none', MS_BIND | MS_REC, 0);
    call(@share);
}

sub set_up_network {
    my ($path, $router_path, $device, $gateway, $address, $prefix) = @_;
    call('mount', '/proc/self/ns/net', $path, 'none', MS_BIND, 0);
    put_text('/proc/sys/net/ipv4/ip_unprivileged_port_start', '0');
    put_text('/proc/sys/net/ipv4/ping_group_range', '0 2147483647');
    my $inside = open_netlink();
    return send_messages($inside, set_link('lo', IFF_UP())) if !defined $router_path;
    sysopen my $router, $router_path, O_RDONLY or die "$router_path: $!\n";
    send_messages($inside, add_veth('eth0', $device, fileno $router), without_ipv6('eth0'));
    my $index = index_of($inside, 'eth0');
    send_messages($inside, set_link('lo', IFF_UP()), add_address($index, $address, $prefix), set_link('eth0', IFF_UP()), add_default_route($gateway), keep_from_neighbours($index));
    enter_network($router);
    my $outside = open_netlink();
    send_messages($outside, without_ipv6($device), add_address(index_of($outside, $device), $gateway, $prefix), set_link($device, IFF_UP()));
}

use constant CLONE_NEWUTS => 0x4000000; # linux/sched.h

# hostname PID TICKS NAME: names the host that the process sees, which must have a UTS namespace of its own. TICKS is the
# process's start time. It is read after the namespace was opened: another process with the same id has another time.
sub set_hostname {
    my ($pid, $ticks, $name) = @_;
    sysopen my $own, '/proc/self/ns/uts', O_RDONLY or die "/proc/self/ns/uts: $!\n";
    sysopen my $namespace, "/proc/$pid/ns/uts", O_RDONLY or die "/proc/$pid/ns/uts: $!\n";
    die "process $pid has ended\n" if start_ticks($pid) ne $ticks;
    die "process $pid has the host name of this machine\n" if (stat $own)[1] == (stat $namespace)[1];
    call('setns', fileno $namespace, CLONE_NEWUTS);
    my $is_set = eval { call('sethostname', $name, length $name); 1 };
    my $why = $@;
    eval { call('setns', fileno $own, CLONE_NEWUTS); 1 } or POSIX::_exit(1); # later calls would be made in the sandbox's namespace
    die $why if !$is_set;
}

# The start time of a process, in clock ticks since boot: field 22 of its `stat` (proc(5)).
sub start_ticks {
    my ($pid) = @_;
    open my $file, '<', "/proc/$pid/stat" or return '';
    return ((split ' ', (<$file> // '') =~ s/^.*\) //sr)[19]) // '';
}

sub put_text {
    my ($path, $text) = @_;
    sysopen my $file, $path, O_WRONLY or die "$path: $!\n";
    syswrite $file, $text or die "$path: $!\n";
}

serve($ARGV[1]) if $ARGV[0] eq 'serve';
my $why = make_call(@ARGV);
exit 0 if !defined $why;
syswrite STDERR, "$why\n";
exit 1;
