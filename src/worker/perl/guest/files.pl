# Serves file operations from within a sandbox: requests come on standard input, replies go to standard output, in order.
# It runs as the sandbox's user 0 and asks the kernel, so a path means here what it means to every program of the sandbox.
#
# Both ways a message is: length of what follows (u32), number of the request (u32), then for a request the operation
# (u8) and its fields, for a reply 0 and the result or 1 and a text. All numbers are big-endian. What a field means is
# said in src/worker/channel/guest-files.ts, the only other place that knows this format.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Fcntl qw(:DEFAULT :mode :seek);

use constant MAX_REQUEST_BYTES => 4 * 1024 * 1024;
use constant PIPE_BYTES => 1024 * 1024;
use constant F_SETPIPE_SZ => 1031;
use constant O_PATH => 0x200000;
use constant COPY_PIECE_BYTES => 1024 * 1024;
use constant COPY_PIECES_PER_STEP => 8;
use constant REMOVALS_PER_STEP => 256;
use constant REMOVAL_ROUNDS => 5;
use constant UTIME_OMIT => 0x3ffffffe;
use constant AT_FDCWD => -100;
# utimensat(2): perl's own utime() can't leave one of the two times as it is.
my %UTIMENSAT = (x64 => 280, arm64 => 88, riscv64 => 88);
use constant { ENOENT => 2, EBADF => 9, EEXIST => 17, EINVAL => 22, ENOTEMPTY => 39, EOPNOTSUPP => 95 };

my $utimensat = $UTIMENSAT{ $ARGV[0] // '' };
# What is open: [handle, kind, what it was opened by], by a number that the other side chose.
my %slots;

$SIG{XFSZ} = 'IGNORE'; # a limit of the size of files is an error of that write, and not the end
umask 0022;
binmode STDIN;
binmode STDOUT;
# Larger pipes are faster, and only that.
fcntl(STDIN, F_SETPIPE_SZ, PIPE_BYTES);
fcntl(STDOUT, F_SETPIPE_SZ, PIPE_BYTES);

my @operations = (
    undef, \&real_path, \&stat_path, \&set_stat, \&read_link, \&make_symlink, \&make_folder, \&remove_file, \&remove_folder,
    \&rename_path, \&open_file, \&open_folder, \&close_slot, \&read_piece, \&write_piece, \&read_folder, \&stat_slot,
    \&set_stat_slot, \&begin_copy, \&begin_removal, \&take_step,
);

my $request = '';
while (read_exactly(4)) {
    my $length = unpack 'N', $request;
    exit 1 if $length < 5 || $length > MAX_REQUEST_BYTES;
    read_exactly($length) or exit 1;
    my ($id, $number) = unpack 'NC', $request;
    my $operation = $operations[$number];
    # Data of a file can be long: the result is made behind the room for the head, and not copied.
    my $reply = "\0" x 9;
    my $is_done = eval { defined $operation or die "no such operation\n"; $operation->(\$reply); 1 };
    if (!$is_done) {
        my $text = $@;
        chomp $text;
        $reply = "\0" x 9 . substr $text, 0, 1000;
    }
    substr $reply, 0, 9, pack 'NNC', length($reply) - 4, $id, $is_done ? 0 : 1;
    write_all(\*STDOUT, \$reply, 0) or exit 1;
}
exit 0;

# --- The pipes ---

# Fills the request with exactly so many bytes; false at the end of input.
sub read_exactly {
    my ($wanted) = @_;
    my $have = 0;
    while ($have < $wanted) {
        my $got = sysread STDIN, $request, $wanted - $have, $have;
        return 0 if !$got;
        $have += $got;
    }
    substr($request, $wanted) = '' if length $request > $wanted;
    return 1;
}

sub write_all {
    my ($handle, $data, $from) = @_;
    while ($from < length $$data) {
        my $put = syswrite $handle, $$data, length($$data) - $from, $from;
        return 0 if !defined $put;
        $from += $put;
    }
    return 1;
}

# --- Errors ---

# Ends an operation as the system said it failed.
sub fail {
    my ($what) = @_;
    die sprintf "%s: %s (os error %d)\n", $what, "$!", $! + 0;
}

sub fail_with {
    my ($what, $number) = @_;
    $! = $number;
    fail($what);
}

# --- Paths ---

sub real_path {
    my ($reply) = @_;
    my $path = substr $request, 5;
    my $real = resolve($path);
    if (!defined $real) {
        # A file that is to be made has a path too: that of its folder, and its name.
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

# The kernel's own name of what a path leads to.
sub resolve {
    my ($path) = @_;
    sysopen my $handle, $path, O_PATH or return undef;
    return readlink path_of($handle);
}

# A path that leads to just what a handle stands for, whatever happens to its name.
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
    # All else is done to one and the same file, and a swapped symlink changes nothing.
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

# --- Open files and folders ---

sub keep {
    my ($slot, $kind, $handle) = @_;
    $slots{$slot} = [$handle, $kind];
}

sub kept {
    my ($slot, $kind, $what) = @_;
    my $open = $slots{$slot};
    defined $open && $open->[1] eq $kind or fail_with($what, EBADF);
    return $open->[0];
}

sub open_file {
    my ($slot, $wants, $has_mode, $mode, $path) = unpack 'x5 N C C N a*', $request;
    my ($read, $write, $append, $create, $truncate, $new) = map { $wants & 1 << $_ } 0 .. 5;
    my $writes = $write || $append;
    # What makes no sense is refused as the genuine agent does, which asks its language's library.
    my $is_odd = !$read && !$writes || !$writes && ($create || $truncate || $new) || $append && $truncate && !$new;
    fail_with('open', EINVAL) if $is_odd;
    my $flags = ($writes ? $read ? O_RDWR : O_WRONLY : O_RDONLY) | ($append ? O_APPEND : 0)
        | ($new ? O_CREAT | O_EXCL : ($create ? O_CREAT : 0) | ($truncate ? O_TRUNC : 0));
    # Nobody may be at the other end of a FIFO, and what is no file would be waited for.
    sysopen my $file, $path, $flags | O_NONBLOCK | O_NOCTTY, $has_mode ? $mode & 07777 : 0666 or fail('open');
    keep($slot, 'file', $file);
}

sub open_folder {
    my ($slot, $path) = unpack 'x5 N a*', $request;
    opendir my $folder, $path or fail('opendir');
    keep($slot, 'folder', $folder);
}

sub close_slot {
    my ($slot) = unpack 'x5 N', $request;
    my $open = delete $slots{$slot};
    close $open->[0] or fail('close') if defined $open && $open->[1] eq 'file';
}

sub read_piece {
    my ($reply) = @_;
    my ($slot, $offset, $length) = unpack 'x5 N Q> N', $request;
    my $file = kept($slot, 'file', 'read');
    sysseek $file, $offset, SEEK_SET or fail('seek');
    defined sysread $file, $$reply, $length, 9 or fail('read');
}

sub write_piece {
    my ($slot, $appends, $offset) = unpack 'x5 N C Q>', $request;
    my $file = kept($slot, 'file', 'write');
    $appends or sysseek $file, $offset, SEEK_SET or fail('seek');
    write_all($file, \$request, 18) or fail('write');
}

sub read_folder {
    my ($reply) = @_;
    my ($slot, $limit) = unpack 'x5 N N', $request;
    my $folder = kept($slot, 'folder', 'readdir');
    my $base = path_of($folder);
    while ($limit > 0) {
        $! = 0;
        my $name = readdir $folder;
        if (!defined $name) { $! == 0 ? last : fail('readdir') }
        next if $name eq '.' || $name eq '..';
        my @stat = lstat "$base/$name";
        $$reply .= pack 'C a36 n/a', @stat ? 1 : 0, @stat ? packed(@stat) : '', $name;
        $limit--;
    }
}

sub stat_slot {
    my ($reply) = @_;
    my ($slot) = unpack 'x5 N', $request;
    my $open = $slots{$slot} or fail_with('fstat', EBADF);
    my @stat = stat $open->[0] or fail('fstat');
    $$reply .= packed(@stat);
}

sub set_stat_slot {
    my ($slot, $attrs) = unpack 'x5 N a37', $request;
    my $file = kept($slot, 'file', 'fsetstat');
    my ($has, $size) = unpack 'C Q>', $attrs;
    if ($has & 1) { truncate $file, $size or fail('fsetstat') }
    change('fsetstat', $attrs, path_of($file));
}

# --- What takes more than one step ---

# Does a bounded part of what was begun; says whether that was all of it. A failure ends it.
sub take_step {
    my ($reply) = @_;
    my ($slot) = unpack 'x5 N', $request;
    my $open = $slots{$slot} or fail_with('step', EBADF);
    my ($task, $kind) = @$open;
    delete $slots{$slot};
    my $is_over = $kind eq 'copy' ? copy_on($task) : $kind eq 'removal' ? remove_on($task) : fail_with('step', EBADF);
    keep($slot, $kind, $task) if !$is_over;
    $$reply .= pack 'C', $is_over;
}

sub begin_copy {
    my ($slot, $from, $to) = unpack 'x5 N N/a a*', $request;
    sysopen my $source, $from, O_RDONLY | O_NONBLOCK | O_NOCTTY or fail('copy');
    my @source = stat $source or fail('copy');
    S_ISREG($source[2]) or die "copy: the source is not a regular file\n";
    sysopen my $target, $to, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY, $source[2] & 0777 or fail('copy');
    my @target = stat $target or fail('copy');
    if (S_ISREG($target[2])) {
        $source[0] == $target[0] && $source[1] == $target[1] and die "copy: source and target are the same file\n";
        truncate $target, 0 or fail('copy');
        chmod $source[2] & 07777, $target or fail('copy');
    }
    keep($slot, 'copy', [$source, $target]);
}

sub copy_on {
    my ($source, $target) = @{ $_[0] };
    for (1 .. COPY_PIECES_PER_STEP) {
        my $got = sysread $source, my $piece, COPY_PIECE_BYTES;
        defined $got or fail('copy');
        return 1 if !$got;
        write_all($target, \$piece, 0) or fail('copy');
    }
    return 0;
}

# A removal is a stack of open folders, each with the path by which it is removed once it is empty. Below the first, paths
# start at the folder above: no symlink that appears meanwhile is followed.
sub begin_removal {
    my ($slot, $path) = unpack 'x5 N a*', $request;
    my @stack;
    lstat $path or fail('remove_dir');
    if (-l _) { unlink $path or fail('remove_dir') }
    else { enter(\@stack, $path) }
    keep($slot, 'removal', \@stack);
}

sub enter {
    my ($stack, $path) = @_;
    sysopen my $handle, $path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK or fail('remove_dir');
    opendir my $folder, path_of($handle) or fail('remove_dir');
    push @$stack, { folder => $folder, path => $path, rounds => 0 };
}

sub remove_on {
    my ($stack) = @_;
    for (1 .. REMOVALS_PER_STEP) {
        my $top = $stack->[-1] or return 1;
        my $name = readdir $top->{folder};
        if (!defined $name) {
            if (rmdir $top->{path} or $! == ENOENT) { pop @$stack }
            elsif ($! == ENOTEMPTY && $top->{rounds}++ < REMOVAL_ROUNDS) { rewinddir $top->{folder} }
            else { fail('remove_dir') }
            next;
        }
        next if $name eq '.' || $name eq '..';
        my $path = path_of($top->{folder}) . "/$name";
        if (!lstat $path) { $! == ENOENT or fail('remove_dir') }
        elsif (-d _) { enter($stack, $path) }
        else { unlink $path or $! == ENOENT or fail('remove_dir') }
    }
    return @$stack ? 0 : 1;
}
