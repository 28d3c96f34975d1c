# Resolves paths so that they can't leave the volume. volume.pl loads this file. Sandboxes may change the tree at any moment. Each step
# therefore opens one name relative to the open handle of its folder, without following symlinks. Targets of symlinks are resolved in the
# same way. At a `..`, which only symlinks contain, resolving restarts at the root, so a folder that was moved meanwhile can't lead out of
# the volume. This is src/worker/volumes/resolve-beneath.ts again, with the same limits.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EEXIST EINVAL EINTR ENOENT ENOTDIR);
use Fcntl qw(:DEFAULT :mode);

use constant { O_PATH => 0x200000, AT_EMPTY_PATH => 0x1000, AT_SYMLINK_NOFOLLOW => 0x100, STATX_ALL => 0xfff, STATX_BTIME => 0x800 };
use constant { FILE_MODE => 0644, FOLDER_MODE => 0755 };
my %STATX = (x64 => 332, arm64 => 291, riscv64 => 291);
my %FSYNC = (x64 => 74, arm64 => 82, riscv64 => 82);
# How many steps a path may take, how many symlinks it may lead through, and how many steps all symlinks of a folder may take.
my ($STEPS_MAX, $SYMLINKS_MAX, $LINK_STEPS_MAX) = (8_192, 40, 400_000);
my $UNFINISHED = '.sandyard-unfinished-';

our ($architecture, $ROOT);

# Ends the operation. `at`: 0 for its first path, 1 for its second. Kinds: n not found, i invalid path, c conflict, w the second path lies
# within the first, e error of the kernel, x fault.
sub refuse {
    my ($at, $kind, $text, $number) = @_;
    die { at => $at, kind => $kind, number => $number // 0, text => $text // '' };
}

sub refuse_errno {
    my ($at) = @_;
    refuse($at, 'e', '', $! + 0);
}

# Resolves a path. The options: `at` as in refuse(); `follow`: follow a symlink at the last name; `steps`: a budget that several calls share;
# `makes`: what to do with a missing name. Absent: refuse it. `report`: there is no `found`. `parents` makes missing folders above the
# last name, and `all` also a folder with the last name.
#
# Returns `folder`, the handle of the folder of the last name, or the deepest existing one; `name`, the last name in it, undefined for the root and
# when folders are missing; `found`, the attributes of the file with its `handle`; `trail`, the folders from the root.
sub resolve_beneath {
    my ($path, $options) = @_;
    my ($at, $makes) = ($options->{at} // 0, $options->{makes} // '');
    my $steps = $options->{steps} // { left => $STEPS_MAX };
    my $folder = open_root();
    my @trail = (stat_handle($folder)->{inode});
    my (@passed, $links);
    my @pending = split m{/}, $path;
    for (;;) {
        my $name = shift @pending;
        return { folder => $folder, name => undef, found => with_handle($folder), trail => \@trail } if !defined $name;
        refuse($at, 'i', 'symlinks make it too long') if --$steps->{left} < 0;
        if ($name eq '..') {
            refuse($at, 'i', 'it leads through a symlink out of the volume') if !@passed;
            $folder = open_root();
            pop @passed;
            unshift @pending, @passed;
            (@passed, @trail) = ();
            @trail = (stat_handle($folder)->{inode});
            next;
        }
        my $is_last = !@pending;
        my $handle = open_or_make($folder, $name, $makes eq 'all' || $makes eq 'parents' && !$is_last, $at);
        if (!defined $handle) {
            refuse($at, 'n') if $makes eq '';
            return { folder => $folder, name => $is_last ? $name : undef, found => undef, trail => \@trail };
        }
        my $found = with_handle($handle);
        if (S_ISLNK($found->{mode}) && !($is_last && !$options->{follow})) {
            refuse($at, 'i', 'it leads through too many symlinks') if ++$links > $SYMLINKS_MAX;
            unshift @pending, target_of($folder, $name, $at);
        }
        elsif ($is_last) { return { folder => $folder, name => $name, found => $found, trail => \@trail } }
        elsif (S_ISDIR($found->{mode})) {
            $folder = $handle;
            push @passed, $name;
            push @trail, $found->{inode};
        }
        elsif ($makes eq '') { refuse($at, 'n') }
        else { refuse($at, 'c', "leads through '$name', which is not a folder") }
    }
}

# The file that a path was resolved to.
sub found {
    my ($resolved) = @_;
    return $resolved->{found} // refuse(0, 'n');
}

sub open_root {
    sysopen my $root, $ROOT, O_PATH | O_DIRECTORY or die "the volume is not mounted: $!\n";
    return $root;
}

# Opens a name in a folder. Makes a folder if it is missing and `is_made`, and otherwise returns nothing.
sub open_or_make {
    my ($folder, $name, $is_made, $at) = @_;
    my $handle = open_name($folder, $name);
    return $handle if defined $handle;
    refuse_errno($at) if $! != ENOENT;
    return if !$is_made;
    mkdir path_of($folder) . "/$name", 0700 or $! == EEXIST or refuse_errno($at);
    my $made = open_name($folder, $name) // refuse_errno($at);
    own_folder($made);
    return $made;
}

# Opens a name without following a symlink. Reads nothing, so it never waits for a FIFO.
sub open_name {
    my ($folder, $name) = @_;
    sysopen my $handle, path_of($folder) . "/$name", O_PATH | O_NOFOLLOW or return;
    return $handle;
}

# Opens the file of a handle for reading.
sub reopen {
    my ($handle, $is_folder) = @_;
    sysopen my $file, path_of($handle), O_RDONLY | O_NONBLOCK | ($is_folder ? O_DIRECTORY : 0) or refuse_errno(0);
    return $file;
}

# Gives a new folder its mode. Its group may be that of the folder above, and so is that of what will be in it.
sub own_folder {
    my ($made) = @_;
    my $stat = stat_handle($made);
    return if !S_ISDIR($stat->{mode}) || $stat->{uid} != $>; # a sandbox has replaced it
    chmod FOLDER_MODE | $stat->{mode} & S_ISGID, path_of($made) or refuse_errno(0);
}

# The names in the target of a symlink. If it was replaced meanwhile, its name again.
sub target_of {
    my ($folder, $name, $at) = @_;
    my $target = readlink(path_of($folder) . "/$name");
    if (!defined $target) {
        return $name if $! == EINVAL || $! == ENOENT;
        refuse_errno($at);
    }
    my $copy = $target;
    utf8::decode($copy) or refuse($at, 'i', 'it leads through a symlink that is not UTF-8');
    refuse($at, 'i', 'it leads through a symlink out of the volume') if $target =~ m{^/};
    return grep { $_ ne '' && $_ ne '.' } split m{/}, $target;
}

# The attributes of a symlink's target. Nothing if it is outside of the volume, missing or hidden.
sub stat_target {
    my ($path, $steps) = @_;
    my $found = eval { resolve_beneath($path, { follow => 1, steps => $steps })->{found} };
    die $@ if !defined $found && !ref $@; # a fault of this machine
    return defined $found && is_visible($found) ? $found : undef;
}

sub link_steps { return { left => $LINK_STEPS_MAX } }

# A path that leads to the file of an open handle, whatever it is called now.
sub path_of {
    my ($handle) = @_;
    return '/proc/self/fd/' . fileno $handle;
}

sub with_handle {
    my ($handle) = @_;
    return { %{ stat_handle($handle) }, handle => $handle };
}

sub stat_handle {
    my ($handle) = @_;
    my $stat = statx(fileno $handle, '', AT_EMPTY_PATH) // refuse_errno(0);
    return $stat;
}

# The attributes of a name in a folder, of a symlink itself. Nothing if it is gone.
sub stat_name {
    my ($folder, $name) = @_;
    my $stat = statx(fileno $folder, $name, AT_SYMLINK_NOFOLLOW);
    refuse_errno(0) if !defined $stat && $! != ENOENT;
    return $stat;
}

# Times with fractions, and that of the creation: Perl's own stat has neither.
sub statx {
    my ($number, $name, $flags) = @_;
    my $buffer = "\0" x 256;
    my $path = "$name\0";
    syscall($STATX{$architecture}, $number, $path, $flags, STATX_ALL, $buffer) == 0 or return;
    my ($mask, $uid, $gid, $mode, $inode, $size, @rest) = unpack 'L x16 L L S x2 Q Q x16 (q L x4)4 x8 L L', $buffer;
    my @times = map { $rest[2 * $_] * 1000 + int($rest[2 * $_ + 1] / 1_000_000) } 0 .. 3;
    my ($accessed, $created, $changed, $modified) = @times;
    $created = $changed if !($mask & STATX_BTIME);
    return {
        mode => $mode, uid => $uid, gid => $gid, size => $size, inode => "$rest[8]:$rest[9]:$inode",
        accessed => $accessed, modified => $modified, created => $created,
    };
}

# Attributes as claim-files.ts reads them: times are in milliseconds.
sub packed {
    my ($stat) = @_;
    return pack 'N N N Q> q> q> q>', @$stat{qw(mode uid gid size accessed modified created)};
}

# Whether clients see files of this kind.
sub is_visible {
    my ($stat) = @_;
    return S_ISREG($stat->{mode}) || S_ISDIR($stat->{mode});
}

sub is_unfinished { return index($_[0], $UNFINISHED) == 0 }

sub sync {
    my ($handle) = @_;
    syscall($FSYNC{$architecture}, fileno $handle) == 0 or refuse_errno(0);
}

sub write_all {
    my ($file, $bytes) = @_;
    my $done = 0;
    while ($done < length $bytes) {
        my $put = syswrite $file, $bytes, length($bytes) - $done, $done;
        if (defined $put) { $done += $put }
        elsif ($! != EINTR) { return 0 }
    }
    return 1;
}

1;
