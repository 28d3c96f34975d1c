# Removes folders of any depth from a volume, and unfinished files of operations that were killed. volume.pl loads this file. No symlink
# is followed: each folder is entered by one name from the open handle of the folder above.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EEXIST ENOENT ENOTDIR ENOTEMPTY ELOOP);
use Fcntl qw(:DEFAULT :mode);

# How many handles may be open: a folder below is moved up first.
my $DEPTH_MAX = 200;
# How many times a folder is read again if files were added to it meanwhile.
my $ROUNDS_MAX = 5;

our $ROOT;

# Removes a folder with everything in it. Returns whether nothing is left.
sub remove_tree {
    my ($path) = @_;
    my $first = entered($path) // return 0;
    my @stack = ($first);
    my $moved = 0;
    while (my $top = $stack[-1]) {
        my $name = readdir $top->{folder};
        if (!defined $name) {
            if (rmdir $top->{path} or $! == ENOENT) { pop @stack }
            elsif (($! == ENOTEMPTY || $! == EEXIST) && $top->{rounds}++ < $ROUNDS_MAX) { rewinddir $top->{folder} }
            else { return 0 }
            next;
        }
        next if $name eq '.' || $name eq '..';
        my $at = path_of($top->{folder}) . "/$name";
        next if unlink $at or $! == ENOENT;
        if (@stack >= $DEPTH_MAX) {
            # Its parent changes, and it comes to the first folder, which is read again.
            $moved++;
            rename $at, path_of($first->{folder}) . sprintf("/.sandyard-unfinished-%032x", $moved) or return 0;
            $first->{rounds} = 0;
            next;
        }
        my $below = entered($at);
        if (defined $below) { push @stack, $below }
        elsif ($! != ENOENT) { return 0 }
    }
    return 1;
}

# A folder to empty. Its owner may have taken away its own rights.
sub entered {
    my ($path) = @_;
    my $flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK;
    sysopen my $handle, $path, $flags or return;
    opendir my $folder, path_of($handle) or return;
    return { folder => $folder, path => $path, rounds => 0 };
}

# Removes unfinished files that were last written before a time, wherever they are.
sub remove_unfinished {
    my ($before) = @_;
    my @stack = (entered($ROOT) // return);
    while (my $top = $stack[-1]) {
        my $name = readdir $top->{folder};
        if (!defined $name) { pop @stack; next }
        next if $name eq '.' || $name eq '..';
        my $at = path_of($top->{folder}) . "/$name";
        my @stat = lstat $at or next;
        if ($name =~ /^\.sandyard-unfinished-[0-9a-f]{32}\z/) {
            next if $stat[9] > $before;
            unlink $at or remove_tree($at);
        }
        elsif (S_ISDIR($stat[2]) && @stack < $DEPTH_MAX) {
            my $below = entered($at);
            push @stack, $below if defined $below;
        }
    }
}

1;
