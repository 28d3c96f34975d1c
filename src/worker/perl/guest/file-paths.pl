# The file operations on paths: stat, set attributes, links, folders, remove and rename. files.pl loads this file.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EEXIST ENOENT EOPNOTSUPP);
use Fcntl qw(:DEFAULT :mode);

use constant O_PATH => 0x200000;
use constant UTIME_OMIT => 0x3ffffffe;
use constant AT_FDCWD => -100;
# The number of the system call utimensat(2). Perl's own utime() can't change only one of the two times.
my %UTIMENSAT = (x64 => 280, arm64 => 88, riscv64 => 88);

our ($architecture, $request);
my $utimensat = $UTIMENSAT{$architecture};

sub real_path {
    my ($reply) = @_;
    my $path = substr $request, 5;
    my $real = resolve($path);
    if (!defined $real) {
        # A file that does not exist yet also has a real path: the real path of its folder, followed by its name.
        my $number = $! + 0;
        my ($folder, $name) = $path =~ m{^(?:(.*)/)?([^/]+)/*$}s;
        my $is_name = defined $name && $name ne '.' && $name ne '..';
        fail_with('realpath', $number) if $number != ENOENT || !$is_name;
        $folder = !defined $folder ? '.' : $folder eq '' ? '/' : $folder;
        my $parent = resolve($folder) // fail_with('realpath', $number);
        $real = ($parent eq '/' ? '' : $parent) . "/$name";
    }
    $$reply .= $real;
}

# Returns the kernel's path of the file at a path, with all symlinks resolved. Returns undef when there is no such file.
sub resolve {
    my ($path) = @_;
    sysopen my $handle, $path, O_PATH or return undef;
    return readlink path_of($handle);
}

# Returns a path that leads to the file of an open handle, even if the file was renamed.
sub path_of {
    my ($handle) = @_;
    return '/proc/self/fd/' . fileno $handle;
}

sub stat_path {
    my ($reply) = @_;
    my ($follow, $path) = unpack 'x5 C a*', $request;
    my @stat = $follow ? stat $path : lstat $path;
    @stat or fail('stat');
    $$reply .= packed(@stat);
}

# Encodes the result of Perl's `stat` as files-client.ts expects it.
sub packed {
    my (undef, undef, $mode, undef, $uid, $gid, undef, $size, $atime, $mtime) = @_;
    return pack 'NNNQ>q>q>', $mode, $uid, $gid, $size, $atime, $mtime;
}

sub set_stat {
    my ($follow, $attrs, $path) = unpack 'x5 C a37 a*', $request;
    my ($has, $size) = unpack 'C Q>', $attrs;
    if ($has & 1) {
        sysopen my $file, $path, O_WRONLY | O_NONBLOCK | O_NOCTTY | ($follow ? 0 : O_NOFOLLOW) or fail('setstat');
        truncate $file, $size or fail('setstat');
    }
    return if !($has & ~1);
    # All further calls use this handle, so they change the same file even if a symlink replaces the path meanwhile.
    sysopen my $handle, $path, O_PATH | ($follow ? 0 : O_NOFOLLOW) or fail('setstat');
    my @stat = stat $handle or fail('setstat');
    fail_with('setstat', EOPNOTSUPP) if ($has & 2) && S_ISLNK($stat[2]);
    change('setstat', $attrs, path_of($handle));
}

# Sets mode, owner and times, in this order.
sub change {
    my ($what, $attrs, $path) = @_;
    my ($has, undef, $mode, $uid, $gid, $atime, $mtime) = unpack 'C Q> N N N q> q>', $attrs;
    if ($has & 2) { chmod $mode & 07777, $path or fail($what) }
    if ($has & 12) { chown $has & 4 ? $uid : -1, $has & 8 ? $gid : -1, $path or fail($what) }
    return if !($has & 48);
    defined $utimensat or fail_with($what, EOPNOTSUPP);
    my $times = pack 'q4', $has & 16 ? ($atime, 0) : (0, UTIME_OMIT), $has & 32 ? ($mtime, 0) : (0, UTIME_OMIT);
    my $name = "$path\0";
    syscall($utimensat, AT_FDCWD, $name, $times, 0) == 0 or fail($what);
}

sub read_link {
    my ($reply) = @_;
    $$reply .= readlink(substr $request, 5) // fail('readlink');
}

sub make_symlink {
    my ($target, $path) = unpack 'x5 N/a a*', $request;
    symlink $target, $path or fail('symlink');
}

# Creates a folder and its missing parents. An existing folder is fine.
sub make_folder {
    my ($has_mode, $mode, $path) = unpack 'x5 C N a*', $request;
    my @missing = ($path);
    while (@missing) {
        my $folder = $missing[-1];
        if (mkdir $folder) { pop @missing }
        elsif ($! == EEXIST) {
            -d $folder or fail_with('mkdir', EEXIST);
            pop @missing;
        }
        elsif ($! == ENOENT && $folder =~ m{^(.*[^/])/+[^/]+/*$}s) { push @missing, $1 }
        else { fail('mkdir') }
    }
    if ($has_mode) { chmod $mode & 07777, $path or fail('chmod') }
}

sub remove_file {
    unlink substr $request, 5 or fail('remove');
}

sub remove_folder {
    rmdir substr $request, 5 or fail('remove_dir');
}

sub rename_path {
    my ($from, $to) = unpack 'x5 N/a a*', $request;
    rename $from, $to or fail('rename');
}

1;
