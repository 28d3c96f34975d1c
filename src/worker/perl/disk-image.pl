# Mounts the file system in a disk image for one sandbox. The kernel of the machine never reads the image: a program that
# serves FUSE does. That program runs as a user of its own without capabilities, in namespaces of its own, with a root
# folder that has only libraries, the image and itself.
#
# perl disk-image.pl SOURCE PIN NAMESPACE FIRST USER FORMAT FSTYPE FLAG…
#
# SOURCE is the image, PIN the folder to mount on. NAMESPACE is the path of the sandbox's user namespace, FIRST the host's
# id of its user 0. USER is the id in it that serves the image. FORMAT is raw, qcow2 or vmdk; FSTYPE may be empty. The
# flags are ro, noexec and nosuid. With the flag disk, PIN is a file that becomes the raw disk in the image, for the kernel of
# a virtual machine. NAMESPACE is then empty, and a last flag such as for=NAME stays in the command line of the server. It
# ends when it gets SIGTERM. `perl disk-image.pl try` only mounts FUSE in a user namespace, out of sight. Exits with 0 once the file system answers. The server ends when nothing uses the
# mount any more. Exits with 2 and a reason for the image's owner on standard error, or with another code and a reason
# for the operator.
use strict;
use warnings;
use Errno ();
use Fcntl qw(:DEFAULT :flock);
use POSIX ();
BEGIN { require(__FILE__ =~ s{[^/]+$}{$_}r) for 'perl-process.pl', 'idmapped-mounts.pl', 'mapped-users.pl', 'folder-server-limits.pl' }

use constant {CLONE_NEWNS => 0x20000, CLONE_NEWUTS => 0x4000000, CLONE_NEWIPC => 0x8000000, CLONE_NEWPID => 0x20000000};
use constant {MS_RDONLY => 1, MS_NOSUID => 2, MS_NODEV => 4, MS_NOEXEC => 8, MS_REMOUNT => 32, MS_BIND => 4096, MS_REC => 16384, MS_PRIVATE => 1 << 18};
use constant {CHARACTER_DEVICE => 0020000, FUSE_DEVICE => 10 << 8 | 229, NULL_DEVICE => 1 << 8 | 3};
use constant {START_LIMIT_SECS => 60, REASON_BYTES => 2000, PR_SET_NO_NEW_PRIVS => 38, RLIMIT_FSIZE => 1, RLIMIT_CORE => 4, RLIMIT_NOFILE => 7};
use constant {WITH_REASON => 2};

my @PROGRAMS = qw(perl fuse2fs e2fsck squashfuse qemu-storage-daemon bindfs);
my ($source, $pin, $namespace, $first, $user, $format, $fstype, @flags) = @ARGV;
my %flag = map { $_ => 1 } @flags;
# Each file that the sandbox has open is open in the server of its folder.
my $open_files = read_text('/proc/self/limits') =~ /^Max open files +\d+ +(\d+)/m ? $1 : 65536;
my $is_folder = ($format // '') eq 'folder';
my $is_disk = $flag{disk};

my $is_mounted = eval { @ARGV == 1 && $ARGV[0] eq 'try' ? try_fuse() : mount_image(); 1 };
exit 0 if $is_mounted;
print STDERR ref $@ ? ${$@} : $@;
exit(ref $@ ? WITH_REASON : 1);

# Dies unless this machine can mount FUSE in a user namespace. Changes nothing outside of its own mount namespace.
sub try_fuse {
    my ($pid, $release) = make_map("0 65536 65536\n", "0 65536 65536\n");
    my $is_possible = eval {
        my $users = open_users("/proc/$pid/ns/user");
        call('unshare', CLONE_NEWNS);
        call('mount', 'none', '/', 'none', MS_REC | MS_PRIVATE, 0);
        call('mount', 'tmpfs', '/dev', 'tmpfs', MS_NOSUID, 'mode=755,size=64k');
        make_device('/dev/fuse', FUSE_DEVICE);
        mkdir '/dev/files', 0755 or die "/dev/files: $!\n";
        call('setns', fileno $users, CLONE_NEWUSER);
        become(0);
        call('unshare', CLONE_NEWNS);
        mount_fuse('/dev/files', MS_NODEV, 'rootmode=40000,user_id=0,group_id=0,allow_other');
        1;
    };
    my $why = $@;
    close $release;
    waitpid $pid, 0;
    die $why if !$is_possible;
}

sub mount_image {
    close_inherited();
    my $scripts = __FILE__ =~ s{[^/]+$}{}r;
    sysopen my $home, '/proc/self/ns/mnt', O_RDONLY or die "/proc/self/ns/mnt: $!\n";
    my $users = $is_disk ? undef : $namespace eq '' ? make_users($first) : open_users($namespace);
    my $image = $is_folder ? clone_folder() : clone_for_server();
    call('unshare', CLONE_NEWNS);
    call('mount', 'none', '/', 'none', MS_REC | MS_PRIVATE, 0);
    make_root($image, $scripts);
    my $lock = $is_folder ? undef : lock_image();
    pipe my $ready, my $tell_ready or die "pipe: $!\n";
    pipe my $attached, my $tell_attached or die "pipe: $!\n";
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
        close $tell_attached;
        my $is_served = eval { serve_image($users, $lock, $tell_ready, $attached); 1 };
        POSIX::_exit(0) if $is_served;
        print STDERR ref $@ ? ${$@} : $@;
        POSIX::_exit(ref $@ ? WITH_REASON : 1);
    }
    close $tell_ready;
    close $lock if defined $lock; # the server holds it as long as it runs
    my $word = '';
    sysread $ready, $word, 1;
    if ($word eq '') {
        waitpid $pid, 0;
        exit(POSIX::WIFEXITED($?) && $? != 0 ? POSIX::WEXITSTATUS($?) : 1); # the child has told the reason
    }
    attach($pid, $home);
    syswrite $tell_attached, '.';
    waitpid $pid, 0;
    $? == 0 or die "the mount was left in the server's namespace\n";
}

# Returns the descriptor of a new mount of the image that shows it as the server's own file.
sub clone_for_server {
    my @stat = stat $source or die "$source: $!\n";
    -f _ or die \"it is not a regular file\n";
    my ($mode, $owner, $group) = @stat[2, 4, 5];
    $mode & 0400 or die \"its owner may not read it\n";
    $flag{ro} || $mode & 0200 or die \"its owner may not write to it, and the mount is not readonly\n";
    my ($pid, $release) = make_map("$owner @{[$first + $user]} 1\n", "$group @{[$first + $user]} 1\n");
    my $tree = eval { clone_mapped($source, "/proc/$pid/ns/user", ($flag{ro} ? MOUNT_ATTR_RDONLY : 0) | MS_NOSUID | MS_NODEV | MS_NOEXEC, 0) };
    my $why = $@;
    close $release;
    waitpid $pid, 0;
    return $tree // die $why;
}

# Returns the descriptor of a new mount of the folder.
sub clone_folder {
    my $set = ($flag{ro} ? MOUNT_ATTR_RDONLY : 0) | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    return clone_mapped($source, $fstype, $set, 0) if $fstype ne '';
    return call('open_tree', AT_FDCWD, $source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

# Makes the root folder of the server in memory, and makes it the root of this mount namespace.
sub make_root {
    my ($image, $scripts) = @_;
    my $base = $is_disk ? $pin =~ s{/[^/]+$}{}r : $pin; # only this mount namespace sees the root
    my %texts = ('/serve' => read_text("${scripts}serve-image.pl"), map { $_ => "#!/usr/bin/perl\n" . read_text("${scripts}fusermount.pl") } '/bin/fusermount', '/bin/fusermount3', '/usr/bin/fusermount3');
    call('mount', 'tmpfs', $base, 'tmpfs', MS_NOSUID, 'mode=755,size=1m');
    for (qw(dev bin usr usr/bin usr/lib files served)) { mkdir "$base/$_", 0755 or die "$base/$_: $!\n" }
    bind_readonly('/usr/lib', "$base/usr/lib");
    for my $folder (qw(lib lib64 usr/lib64)) {
        if (-l "/$folder") { symlink readlink("/$folder"), "$base/$folder" or die "$folder: $!\n" }
        elsif (-d "/$folder") { mkdir "$base/$folder", 0755 or die "$folder: $!\n"; bind_readonly("/$folder", "$base/$folder") }
    }
    for my $name (@PROGRAMS) {
        my ($path) = grep { -x } map { "$_/$name" } qw(/usr/sbin /usr/bin /sbin /bin);
        next if !defined $path;
        write_text("$base/usr/bin/$name", '', 0755);
        bind_readonly($path, "$base/usr/bin/$name");
    }
    write_text("$base$_", $texts{$_}, 0755) for keys %texts;
    make_device("$base/dev/fuse", FUSE_DEVICE);
    make_device("$base/dev/null", NULL_DEVICE);
    write_text("$base/$_", '', 0644) for $is_folder ? () : 'image', 'disk', 'served-disk';
    if ($is_folder) { mkdir "$base/image", 0755 or die "$base/image: $!\n" }
    call('move_mount', $image, '', AT_FDCWD, "$base/image", MOVE_MOUNT_F_EMPTY_PATH);
    POSIX::close($image);
    chdir $base or die "$base: $!\n";
    call('mount', 'tmpfs', '.', 'tmpfs', MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, 0);
    call('pivot_root', '.', '.');
    call('umount2', '.', MNT_DETACH);
    chdir '/' or die "/: $!\n";
}

sub make_device {
    my ($path, $number) = @_;
    call('mknodat', AT_FDCWD, $path, CHARACTER_DEVICE | 0666, $number);
    chmod 0666, $path or die "$path: $!\n"; # chmod, because the umask takes bits away
}

sub bind_readonly {
    my ($from, $to) = @_;
    call('mount', $from, $to, 'none', MS_BIND, 0);
    call('mount', 'none', $to, 'none', MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, 0);
}

sub read_text {
    my ($path) = @_;
    open my $file, '<', $path or die "$path: $!\n";
    local $/;
    return scalar <$file>;
}

sub write_text {
    my ($path, $text, $mode) = @_;
    sysopen my $file, $path, O_WRONLY | O_CREAT | O_EXCL, $mode or die "$path: $!\n";
    syswrite $file, $text;
    chmod $mode, $path or die "$path: $!\n"; # chmod, because the umask takes bits away
}

# Opens the image and locks it: for one sandbox that writes, or for any number that read.
sub lock_image {
    sysopen my $lock, '/image', $flag{ro} ? O_RDONLY : O_RDWR or die "the image: $!\n";
    return $lock if flock $lock, ($flag{ro} ? LOCK_SH : LOCK_EX) | LOCK_NB;
    die "flock: $!\n" if !$!{EWOULDBLOCK};
    die \($flag{ro} ? "it is mounted read-write elsewhere\n" : "it is mounted elsewhere; only a readonly image can be mounted more than once\n");
}

# Mounts FUSE in the sandbox's user namespace and starts the server. Waits until the file system answers and the mount is
# in its place.
sub serve_image {
    my ($users, $lock, $tell_ready, $attached) = @_;
    my $is_for_host = $namespace eq '';
    if (!$is_for_host) {
        call('setns', fileno $users, CLONE_NEWUSER);
        become(0);
    }
    call('unshare', CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
    my $flags = ($flag{ro} ? MS_RDONLY : 0) | ($flag{noexec} ? MS_NOEXEC : 0) | ($flag{nosuid} ? MS_NOSUID : 0) | MS_NODEV;
    my $files = $is_disk ? undef : mount_fuse('/files', $flags, 'rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions');
    my $disk = $is_disk ? mount_fuse('/disk', ($flag{ro} ? MS_RDONLY : 0) | MS_NOSUID | MS_NODEV | MS_NOEXEC, 'rootmode=100600,user_id=0,group_id=0,allow_other')
        : $format eq 'raw' || $is_folder ? undef
        : mount_fuse('/disk', MS_NOSUID | MS_NODEV | MS_NOEXEC, "rootmode=100600,user_id=$user,group_id=$user");
    pipe my $errors, my $tell_errors or die "pipe: $!\n";
    my $server = fork // die "fork: $!\n";
    if ($server == 0) {
        call('setns', fileno $users, CLONE_NEWUSER) if $is_for_host && !$is_disk;
        become_server($files, $disk, $lock, $tell_errors);
    }
    close $_ for grep { defined } $tell_errors, $files, $lock, $disk;
    my $prober = fork // die "fork: $!\n";
    POSIX::_exit(defined((lstat shown_at())[0]) ? 0 : 1) if $prober == 0;
    await_answer($server, $prober, $errors);
    syswrite $tell_ready, '.';
    sysread $attached, my $word, 1 or do { kill 'KILL', $server; die "the mount was not put in its place\n" };
    call('umount2', shown_at(), MNT_DETACH); # otherwise the server would use the file system itself, and never end
}

# The path, for the server, of what the sandbox gets.
sub shown_at { return $is_disk ? '/disk' : '/files' }

sub mount_fuse {
    my ($folder, $flags, $options) = @_;
    sysopen my $device, '/dev/fuse', O_RDWR or die "/dev/fuse: $!\n";
    my $number = fileno $device;
    call('mount', 'disk_image', $folder, 'fuse', $flags, "fd=$number,$options");
    return $device;
}

# Waits until the prober has seen the root of the file system. Dies with the server's last words if it ends before.
sub await_answer {
    my ($server, $prober, $errors) = @_;
    my $is_late = 0;
    local $SIG{ALRM} = sub { $is_late = 1; kill 'KILL', $server };
    alarm START_LIMIT_SECS;
    waitpid $prober, 0;
    my $answers = $? == 0;
    alarm 0;
    return if $answers;
    kill 'KILL', $server;
    waitpid $server, 0;
    die \"its file system did not answer in time\n" if $is_late;
    my $reason = '';
    1 while length $reason < REASON_BYTES && sysread $errors, $reason, REASON_BYTES, length $reason;
    die \($reason || "its server ended\n");
}

sub become_server {
    my ($files, $disk, $lock, $errors) = @_;
    become($is_disk ? $first + $user : $user + 0); # a system call takes a text for a pointer
    call('prctl', PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    call('prlimit64', 0, RLIMIT_CORE, pack('Q2', 0, 0), 0);
    if ($is_folder) { limit_folder_server($open_files) }
    else { call('prlimit64', 0, RLIMIT_NOFILE, pack('Q2', 256, 256), 0) }
    call('prlimit64', 0, RLIMIT_FSIZE, pack('Q2', (-s '/image') x 2), 0) if $format eq 'raw';
    $SIG{PIPE} = $SIG{XFSZ} = 'IGNORE'; # a write to the closed pipe of errors, or behind the image's end, only fails
    POSIX::setsid();
    open my $null, '+<', '/dev/null' or POSIX::_exit(127);
    POSIX::dup2(fileno $null, 0);
    POSIX::dup2(fileno $errors, $_) for 1, 2;
    fcntl $_, F_SETFD, 0 for grep { defined } $files, $disk, $lock;
    %ENV = (PATH => '/usr/bin:/bin', defined $files ? (FILES_FD => fileno $files) : (), defined $disk ? (DISK_FD => fileno $disk) : ());
    exec '/usr/bin/perl', '/serve', $format, $fstype, $flag{ro} ? 'ro' : 'rw', grep { /^(disk|for=.*)$/ } @flags or POSIX::_exit(127);
}

# Moves the mount from the server's namespace to the pin in the worker's.
sub attach {
    my ($pid, $home) = @_;
    my $process = call('pidfd_open', $pid, 0);
    call('setns', $process, CLONE_NEWNS);
    my $tree = call('open_tree', AT_FDCWD, shown_at(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    call('setns', fileno $home, CLONE_NEWNS);
    call('move_mount', $tree, '', AT_FDCWD, $pin, MOVE_MOUNT_F_EMPTY_PATH);
}
