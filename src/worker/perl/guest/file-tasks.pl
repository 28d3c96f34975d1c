# The file operations that may take long: copying a file, and removing a folder with all its contents. They run in
# steps, so that operations of other sessions can run between two steps. files.pl loads this file.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EBADF ENOENT ENOTEMPTY);
use Fcntl qw(:DEFAULT :mode);

use constant COPY_PIECE_BYTES => 1024 * 1024;
use constant COPY_PIECES_PER_STEP => 8;
use constant REMOVALS_PER_STEP => 256;
# How many times a folder is read again if files were added to it during the removal.
use constant REMOVAL_ROUNDS => 5;

our ($request, %slots);

# Runs a bounded part of a task and replies whether the task is finished. A failure ends the task.
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

# Starts a removal, which is a stack of open folders. Each folder has the path by which it is removed once it is empty.
# Except for the first folder, that path starts at the handle of the parent folder. A symlink that is created meanwhile
# is therefore not followed.
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

1;
