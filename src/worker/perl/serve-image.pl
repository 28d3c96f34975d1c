# Serves the file system of a disk image. Runs as process 1 in the namespaces that disk-image.pl makes, where it may reach
# nothing but the image. A reason on standard error is for the image's owner.
#
# perl serve-image.pl FORMAT FSTYPE ro|rw [disk …]     FORMAT is one of an image, or folder
#
# With disk, it serves the raw disk in the image, and ends when it gets SIGTERM.
use strict;
use warnings;
use Fcntl qw(:DEFAULT :seek);
use POSIX ();

# libfuse looks at the path that it is told to mount on. It would wait for itself if that were the mount.
use constant {FILES_AT => '/served', DISK_AT => '/served-disk'};
use constant {EXT_MAGIC_AT => 1080, EXT_MAGIC => "\x53\xEF", SQUASHFS_MAGIC => 'hsqs', START_BYTES => 4096};
use constant {QCOW2_MAGIC => "QFI\xFB", EXTERNAL_DATA => 4, VMDK_MAGIC => 'KDMV', SECTOR => 512, DESCRIPTOR_SECTORS => 128};

my ($format, $fstype, $access, $is_disk) = @ARGV;
# What a server makes belongs to whom it acts for. Nobody changes an owner. The kernel has checked the permissions.
run_program('bindfs', '-f', '--create-as-user', '--chown-deny', '--chgrp-deny', '/image', FILES_AT) if $format eq 'folder';
my %checks = (raw => sub { }, qcow2 => \&check_qcow2, vmdk => \&check_vmdk);
$checks{$format}->(read_bytes('/image', 0, START_BYTES));
serve_disk() if $is_disk;
my $translator = $format eq 'raw' ? undef : start_translator();
my $device = defined $translator ? '/disk' : '/image';
my $type = type_of(read_bytes($device, 0, START_BYTES));
refuse('it has no file system that can be mounted here; accepted: ext2, ext3, ext4 and squashfs, without partitions') if !defined $type;
refuse("its file system is $type, not $fstype") if $fstype ne '' && $fstype !~ ($type eq 'ext4' ? qr/^ext[234]$/ : qr/^\Q$type\E$/);
refuse('squashfs is always readonly, and the mount is not') if $type eq 'squashfs' && $access eq 'rw';
check_ext($device) if $type eq 'ext4' && $access eq 'rw';
my @server = $type eq 'squashfs' ? ('squashfuse', '-f', '-s', $device, FILES_AT)
    : ('fuse2fs', $device, FILES_AT, '-f', '-s', '-o', $access eq 'ro' ? 'fakeroot,ro,norecovery' : 'fakeroot');
run_program(@server) if !defined $translator;
my $pid = fork // refuse("fork: $!");
run_program(@server) if $pid == 0;
POSIX::close($ENV{FILES_FD}); # the file system has to end with its server
waitpid $pid, 0;
my $code = $? == 0 ? 0 : 1;
kill 'TERM', $translator; # it writes what it holds in memory
waitpid $translator, 0;
POSIX::_exit($code);

# Serves the disk until the translator ends. It is told to by SIGTERM, and then writes what it holds in memory.
sub serve_disk {
    my $pid = start_translator();
    local $SIG{TERM} = sub { kill 'TERM', $pid };
    my $ended = 0;
    $ended = waitpid $pid, 0 until $ended == $pid;
    POSIX::_exit($? == 0 ? 0 : 1);
}

sub refuse {
    print STDERR "$_[0]\n";
    POSIX::_exit(1);
}

sub run_program {
    { no warnings 'exec'; exec @_ }
    refuse("this worker has no program '$_[0]'");
}

sub read_bytes {
    my ($path, $at, $count) = @_;
    sysopen my $file, $path, O_RDONLY or refuse("it can't be opened: $!");
    sysseek $file, $at, SEEK_SET;
    sysread($file, my $bytes, $count) // refuse("it can't be read: $!");
    return $bytes;
}

sub type_of {
    my ($start) = @_;
    return 'squashfs' if substr($start, 0, 4) eq SQUASHFS_MAGIC;
    return 'ext4' if length $start >= EXT_MAGIC_AT + 2 && substr($start, EXT_MAGIC_AT, 2) eq EXT_MAGIC;
    return undef;
}

# Replays the journal, and repairs what the end of an earlier server left undone. A file system that was unmounted is not
# checked.
sub check_ext {
    my ($path) = @_;
    my $pid = fork // refuse("fork: $!");
    if ($pid == 0) {
        open STDOUT, '>', '/dev/null';
        open STDERR, '>', '/dev/null';
        run_program('e2fsck', '-p', $path);
    }
    waitpid $pid, 0;
    refuse('its file system is damaged; repair it with e2fsck -f') if $? >> 8 >= 4 || $? & 127;
}

sub check_qcow2 {
    my ($header) = @_;
    refuse('it is not in the format qcow2') if length $header < 104 || substr($header, 0, 4) ne QCOW2_MAGIC;
    my ($version, $backing_at) = unpack 'N Q>', substr $header, 4, 12;
    refuse("it has version $version of qcow2; accepted: 2 and 3") if $version != 2 && $version != 3;
    refuse('it has a backing file; accepted: images without one') if $backing_at != 0;
    refuse('it is encrypted') if unpack('N', substr $header, 32, 4) != 0;
    refuse('its data is in another file; accepted: images with their own data') if $version == 3 && unpack('Q>', substr $header, 72, 8) & EXTERNAL_DATA;
}

# A VMDK is one file with its own descriptor, or it names other files.
sub check_vmdk {
    my ($header) = @_;
    refuse('its data is in other files; accepted: one file (monolithicSparse or streamOptimized)') if $header =~ /^\s*#\s*Disk DescriptorFile/i;
    refuse('it is not in the format vmdk') if length $header < SECTOR || substr($header, 0, 4) ne VMDK_MAGIC;
    my ($capacity, undef, $at, $count) = unpack 'Q<4', substr $header, 12, 32;
    refuse('its descriptor is missing or too large') if $capacity == 0 || $at == 0 || $count == 0 || $at > DESCRIPTOR_SECTORS || $count > DESCRIPTOR_SECTORS;
    my $descriptor = read_bytes('/image', $at * SECTOR, $count * SECTOR) =~ s/\0.*//sr;
    my ($kind) = $descriptor =~ /^\s*createType\s*=\s*"([^"]*)"/m;
    refuse('it is not one file; accepted: monolithicSparse and streamOptimized') if ($kind // '') !~ /^(monolithicSparse|streamOptimized)$/;
    refuse('streamOptimized can only be mounted readonly') if $kind eq 'streamOptimized' && $access eq 'rw';
    refuse('its data is in more than one file') if (() = $descriptor =~ /^\s*(?:RW|RDONLY|NOACCESS)\s/mg) != 1;
    refuse('it has a parent image; accepted: images without one') if $descriptor =~ /parentFileNameHint/i || $descriptor !~ /^\s*parentCID\s*=\s*ffffffff\s*$/mi;
}

# Starts the program that shows the image as a raw disk at /disk, and waits until it answers. Returns its process id. The
# program opens no other file, whatever the image names.
sub start_translator {
    my $pid = fork // refuse("fork: $!");
    if ($pid == 0) {
        POSIX::close($ENV{FILES_FD}) if defined $ENV{FILES_FD};
        my $reads = $access eq 'ro' ? 'true' : 'false';
        run_program('qemu-storage-daemon',
            '--blockdev', qq({"driver":"file","node-name":"file","filename":"/image","locking":"off","read-only":$reads}),
            '--blockdev', qq({"driver":"$format","node-name":"disk","file":"file",@{[$format eq 'raw' ? '' : '"backing":null,']}"read-only":$reads}),
            '--export', 'type=fuse,id=disk,node-name=disk,allow-other=off,mountpoint=' . DISK_AT . ($access eq 'ro' ? '' : ',writable=on'));
    }
    POSIX::close($ENV{DISK_FD}); # reads of the disk have to fail when the program ends
    my $size = (stat '/disk')[7];
    return $pid if $size;
    waitpid $pid, 0 if !defined $size;
    POSIX::_exit(1);
}
