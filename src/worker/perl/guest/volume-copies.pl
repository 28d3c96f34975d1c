# Writes and copies files of a volume under an unfinished name, then renames them. volume.pl loads this file. It does what
# src/worker/volumes/replace-atomically.ts and copy-tree.ts do, as a user without rights over the files of others.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EINTR ENOENT EINVAL EPERM);
use Fcntl qw(:DEFAULT :mode :seek);

use constant { FICLONE => 0x40049409, BLOCK_BYTES => 1024 * 1024 };
# Each level keeps three handles open.
my $DEPTH_MAX = 256;


# Makes a file or folder under the name `temporary` and renames it to its path. Readers see the old file or the complete new one. Missing
# folders are made just before the rename, so that an earlier failure leaves none. `steps` has check (of the target, which may refuse it),
# stage (makes the file in a folder, returns its handle) and finish (owner and mode, from the replaced file).
sub replace_atomically {
    my ($path, $at, $temporary, $steps) = @_;
    my $check = sub {
        my ($target) = @_;
        my $mode = defined $target->{found} ? $target->{found}{mode} : S_IFREG;
        refuse($at, 'c', 'is a folder') if S_ISDIR($mode);
        refuse($at, 'c', 'is neither a file nor a folder') if !S_ISREG($mode);
        $steps->{check}->($target) if $steps->{check};
    };
    my $checked = resolve_beneath($path, { at => $at, follow => 1, makes => 'report' });
    $check->($checked);
    my $made_at = path_of($checked->{folder}) . "/$temporary";
    my $is_done = eval {
        my $made = $steps->{stage}->($checked->{folder});
        my $target = resolve_beneath($path, { at => $at, follow => 1, makes => 'parents' });
        $check->($target);
        $steps->{finish}->($made, $target->{found});
        rename $made_at, path_of($target->{folder}) . "/$target->{name}" or refuse_errno($at);
        sync(reopen($target->{folder}, 1));
        1;
    };
    return if $is_done;
    my $error = $@;
    unlink $made_at or $! == ENOENT or remove_tree($made_at);
    die $error;
}

sub create_file {
    my ($folder, $name, $at) = @_;
    sysopen my $file, path_of($folder) . "/$name", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600 or refuse_errno($at);
    return $file;
}

# Gives a file the owner, group and mode of another. A user may give nothing away. Then the group gets what the owner had, or the owner, a
# user of another sandbox of the volume, could not use the file any more.
sub own {
    my ($handle, $stat, $mode) = @_;
    my $own = stat_handle($handle);
    if ($own->{uid} != $stat->{uid}) {
        chown($stat->{uid}, -1, path_of($handle)) or $mode = ($mode | ($mode & 0700) >> 3) & ~S_ISUID;
    }
    if ($own->{gid} != $stat->{gid}) {
        chown(-1, $stat->{gid}, path_of($handle)) or $mode &= ~S_ISGID | (S_ISDIR($stat->{mode}) ? S_ISGID : 0);
    }
    chmod $mode, path_of($handle) or refuse_errno(0);
}

# Copies a file or folder with owners, modes and symlinks. FIFOs, sockets and devices are left out. Returns the handle of the copy, which
# nobody else can enter yet.
sub stage_copy {
    my ($folder, $name, $source) = @_;
    return S_ISDIR($source->{mode}) ? copy_folder($folder, $name, $source, 1) : copy_content($folder, $name, $source);
}

sub copy_folder {
    my ($folder, $name, $source, $depth) = @_;
    refuse(0, 'c', "holds folders more than $DEPTH_MAX deep") if $depth > $DEPTH_MAX;
    mkdir path_of($folder) . "/$name", 0700 or refuse_errno(0);
    my $made = open_name($folder, $name) // refuse_errno(0);
    opendir my $names, path_of($source->{handle}) or refuse_errno(0);
    while (defined(my $entry = readdir $names)) {
        next if $entry eq '.' || $entry eq '..' || is_unfinished($entry);
        my $handle = open_name($source->{handle}, $entry);
        if (!defined $handle) { next if $! == ENOENT; refuse_errno(0) }
        my $one = with_handle($handle);
        if (S_ISLNK($one->{mode})) { copy_symlink($source->{handle}, $made, $entry, $one); next }
        next if !is_visible($one);
        my $copied = S_ISDIR($one->{mode}) ? copy_folder($made, $entry, $one, $depth + 1) : copy_content($made, $entry, $one);
        own($copied, $one, $one->{mode} & 07777);
    }
    return $made;
}

sub copy_symlink {
    my ($from, $to, $name, $stat) = @_;
    my $target = readlink(path_of($from) . "/$name");
    if (!defined $target) { return if $! == ENOENT || $! == EINVAL; refuse_errno(0) }
    symlink $target, path_of($to) . "/$name" or refuse_errno(0);
}

# Shares the blocks of the source if the file system can. Holes stay holes.
sub copy_content {
    my ($folder, $name, $source) = @_;
    my $from = reopen($source->{handle}, 0);
    my $made = create_file($folder, $name, 0);
    return $made if ioctl $made, FICLONE, fileno $from;
    my ($size, $at) = ($source->{size}, 0); # a fixed size, because copying a growing file might never end
    my $zeros = "\0" x BLOCK_BYTES;
    while ($at < $size) {
        my $most = $size - $at < BLOCK_BYTES ? $size - $at : BLOCK_BYTES;
        my $got = sysread($from, my $block, $most) // ($! == EINTR ? next : refuse_errno(0));
        last if $got == 0;
        if ($block ne substr $zeros, 0, $got) {
            sysseek $made, $at, SEEK_SET or refuse_errno(0);
            write_all($made, $block) or refuse_errno(0);
        }
        $at += $got;
    }
    truncate $made, $at or refuse_errno(0);
    return $made;
}

1;
