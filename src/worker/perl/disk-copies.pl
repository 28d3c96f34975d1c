# Copies disks, mounted or not. Load it with `require`, after perl-process.pl.
use strict;
use warnings;
use Errno qw(EBUSY EINVAL);
use Fcntl qw(:DEFAULT :seek);
use POSIX ();

use constant {SEEK_DATA => 3, SEEK_HOLE => 4, BLOCK => 4096, PIECE => 1024 * 1024};

# copy FROM TO: copies a file to a new file that only its owner can read. The two share their blocks where the file system can
# do that. Otherwise blocks of zeros become holes. Syncs the copy, as mkfs does. After a crash of the machine, the file system in
# the copy can therefore be repaired.
sub copy_sparsely {
    my ($from, $to) = @_;
    my ($source, $target) = open_copy($from, $to);
    copy_blocks($source, $target);
    call('fsync', fileno $target);
}

sub open_copy {
    my ($from, $to) = @_;
    sysopen my $source, $from, O_RDONLY or die "$from: $!\n";
    sysopen my $target, $to, O_WRONLY | O_CREAT | O_EXCL, 0600 or die "$to: $!\n";
    return ($source, $target);
}

use constant FICLONE => 0x40049409;

sub copy_blocks {
    my ($source, $target) = @_;
    return if ioctl $target, FICLONE, fileno $source;
    truncate $target, -s $source or die "the copy: $!\n";
    my $nothing = "\0" x BLOCK;
    for (my $at = 0; defined($at = sysseek $source, $at, SEEK_DATA);) {
        my $end = sysseek($source, $at, SEEK_HOLE) // die "the file to copy: $!\n";
        while ($at < $end) {
            sysseek $source, $at, SEEK_SET or $at == 0 or die "the file to copy: $!\n";
            my $count = sysread($source, my $piece, $end - $at < PIECE ? $end - $at : PIECE) || die "the file to copy: $!\n";
            for (my $first = 0; $first < $count;) {
                my $last = $first;
                $last += BLOCK while $last < $count && substr($piece, $last, BLOCK) ne $nothing;
                if ($last > $first) {
                    my $length = ($last < $count ? $last : $count) - $first;
                    sysseek $target, $at + $first, SEEK_SET;
                    (syswrite($target, $piece, $length, $first) // 0) == $length or die "the copy: $!\n";
                }
                $first = $last + BLOCK;
            }
            $at += $count;
        }
    }
    $!{ENXIO} or die "the file to copy: $!\n"; # no data from there on (lseek(2))
}

use constant {FIFREEZE => 0xC0045877, FITHAW => 0xC0045878};

# snapshot IMAGE FOLDER TO: copies the disk IMAGE to the new file TO. If the disk is mounted on FOLDER, its file system is frozen
# meanwhile: what was written is in the copy, and writers wait. A process of its own thaws it even if this one is killed.
sub snapshot_disk {
    my ($image, $folder, $to) = @_;
    my $disk = open_mounted($image, $folder);
    my ($source, $target) = open_copy($image, $to);
    if (!defined $disk) { copy_blocks($source, $target) }
    else { copy_frozen($disk, $source, $target) }
    call('fsync', fileno $target);
}

use constant COPY_TRIES => 10;

# Copies a mounted disk. Begins again if another process thawed it meanwhile, such as the helper of a killed worker.
sub copy_frozen {
    my ($disk, $source, $target) = @_;
    for (1 .. COPY_TRIES) {
        truncate $target, 0 or die "the copy: $!\n";
        call('syncfs', fileno $disk); # while writers go on; the frozen file system has little left to write
        my $guard = guard_freeze($disk);
        my $is_copied = eval { freeze($disk); copy_blocks($source, $target); 1 };
        my $why = $@;
        my $was_frozen = $is_copied && ioctl $disk, FITHAW, 0;
        end_guard($guard, $is_copied);
        die $why if !$is_copied;
        return if $was_frozen;
    }
    die "the disk was thawed again and again\n";
}

use constant {FREEZE_TRIES => 1500, FREEZE_PAUSE_SECS => 0.05};

# Freezes a file system. Waits while a backup holds it frozen.
sub freeze {
    my ($disk) = @_;
    for (1 .. FREEZE_TRIES) {
        return if ioctl $disk, FIFREEZE, 0;
        die "the disk can't be frozen: $!\n" if $! != EBUSY;
        select undef, undef, undef, FREEZE_PAUSE_SECS;
    }
    die "the disk is frozen already\n";
}

# thaw IMAGE FOLDER: thaws the disk IMAGE if it is mounted on FOLDER and was left frozen. May be repeated.
sub thaw_disk {
    my ($image, $folder) = @_;
    my $disk = open_mounted($image, $folder) // return;
    ioctl $disk, FITHAW, 0 or $! == EINVAL or die "the disk can't be thawed: $!\n";
}

# Opens the folder on which a disk is mounted. Returns undef if nothing is mounted there. Dies if something else is: the file system of the
# machine must never be frozen. The open folder keeps the disk mounted.
sub open_mounted {
    my ($image, $folder) = @_;
    sysopen my $disk, $folder, O_RDONLY | O_DIRECTORY or return $!{ENOENT} ? undef : die "$folder: $!\n";
    my $number = (stat $disk)[0];
    return undef if $number == (stat "$folder/..")[0];
    my $device = sprintf '/sys/dev/block/%d:%d/loop/backing_file', $number >> 8 & 0xfff, $number & 0xff | $number >> 12 & ~0xff;
    open my $file, '<', $device or die "$folder is no disk in a file: $!\n";
    my $backing = <$file> // '';
    chomp $backing;
    identity($backing) eq identity($image) or die "$folder has another disk\n";
    return $disk;
}

sub identity {
    my ($path) = @_;
    my @stat = stat $path or die "$path: $!\n";
    return "$stat[0]:$stat[1]";
}

# Returns a pipe whose end starts the thaw of a disk, and the id of the process that waits for it.
sub guard_freeze {
    my ($disk) = @_;
    pipe my $is_over, my $tell_over or die "pipe: $!\n";
    my $pid = fork // die "fork: $!\n";
    return [$tell_over, $pid] if $pid != 0;
    close $tell_over;
    $0 = 'sandyard: thaws a disk'; # a worker that starts ends what its dead predecessor left, but not this process
    POSIX::setsid();
    $SIG{$_} = 'IGNORE' for qw(TERM INT HUP);
    POSIX::close($_) for 0, 1; # otherwise the worker would take this process for the one that it asked
    sysread $is_over, my $word, 1;
    ioctl $disk, FITHAW, 0 if ($word // '') eq '';
    POSIX::_exit(0);
}

# Ends the guard. It thaws the disk unless this process has.
sub end_guard {
    my ($guard, $is_thawed) = @_;
    my ($tell_over, $pid) = @$guard;
    syswrite $tell_over, '.' if $is_thawed;
    close $tell_over;
    waitpid $pid, 0;
}

1;
