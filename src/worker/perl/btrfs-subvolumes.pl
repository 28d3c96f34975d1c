# Reads the subvolumes of a btrfs file system from its root tree (btrfs(5), BTRFS_IOC_TREE_SEARCH in linux/btrfs.h). `btrfs
# subvolume list` prints paths as they are. Sandboxes choose names within their volumes, and a name may contain lines that look
# like those of the list.
#
# perl btrfs-subvolumes.pl list ROOT
#     prints a line for each subvolume: its id, the id of the subvolume that it is in, the inode of its folder there, and its
#     name in hexadecimal. A subvolume that is deleted but not yet cleaned up has only its id.
# perl btrfs-subvolumes.pl graft SNAPSHOT VOLUME GROUP…
#     A snapshot of a volume has an empty folder for each subvolume in the volume. Mounts snapshots of the subvolumes there, which
#     join the quota groups. They are beside SNAPSHOT, because the volume may have no space left for them. SNAPSHOT becomes a
#     mount point; detaching it detaches all. Prints how many are missing, because they were moved meanwhile.
# perl btrfs-subvolumes.pl exchange PATH PATH
#     lets two folders of one file system swap their places, at once (renameat2(2)).
use strict;
use warnings;
use Fcntl;
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);

use constant {AT_FDCWD => -100, RENAME_EXCHANGE => 2};
use constant {MS_BIND => 4096, MS_PRIVATE => 1 << 18};
use constant {TREE_SEARCH => 0xd0009411, INO_LOOKUP => 0xd0009412, BUFFER_BYTES => 4096, KEY_BYTES => 104};
use constant {ROOT_TREE => 1, FIRST_SUBVOLUME => 256, LAST_SUBVOLUME => ~0 - 255, ROOT_FOLDER => 256};
use constant {ROOT_ITEM => 132, ROOT_BACKREF => 144, HEADER_BYTES => 32, BACKREF_BYTES => 18, EMPTY_SUBVOLUME_INODE => 2};
use constant MANY => 0xffffffff;

# Returns the ids of all subvolumes, and a table of where they are: the id of the subvolume around, its folder's inode, the name.
sub read_subvolumes {
    my ($path) = @_;
    sysopen my $root, $path, O_RDONLY | O_DIRECTORY or die "$path: $!\n";
    my (%place, @ids);
    my @from = (FIRST_SUBVOLUME, 0, 0); # id, type and offset of the next item to read
    while (1) {
        my $request = pack 'Q7 L4 Q4', ROOT_TREE, $from[0], LAST_SUBVOLUME, $from[2], ~0, 0, ~0, $from[1], 255, MANY, 0, 0, 0, 0, 0;
        $request .= "\0" x (BUFFER_BYTES - length $request);
        ioctl $root, TREE_SEARCH, $request or die "$path: $!\n";
        my $count = unpack 'x64 L', $request or last;
        my $at = KEY_BYTES;
        for (1 .. $count) {
            my (undef, $id, $offset, $type, $bytes) = unpack 'Q3 L2', substr $request, $at, HEADER_BYTES;
            my $item = substr $request, $at + HEADER_BYTES, $bytes;
            $at += HEADER_BYTES + $bytes;
            @from = ($id, $type, $offset);
            push @ids, $id if $type == ROOT_ITEM && $id <= LAST_SUBVOLUME;
            next if $type != ROOT_BACKREF;
            my ($folder, undef, $length) = unpack 'Q2 S', $item;
            $place{$id} = [$offset, $folder, substr $item, BACKREF_BYTES, $length];
        }
        if ($from[2] != ~0) { $from[2]++ }
        elsif ($from[1] < 255) { @from = ($from[0], $from[1] + 1, 0) }
        else { @from = ($from[0] + 1, 0, 0) }
    }
    return (\@ids, \%place);
}

sub list {
    my ($ids, $place) = read_subvolumes(@_);
    for my $id (@$ids) {
        my ($parent, $folder, $name) = @{$place->{$id} // []};
        print defined $parent ? "$id $parent $folder " . unpack('H*', $name) . "\n" : "$id\n";
    }
}

sub graft {
    my ($snapshot, $path, @groups) = @_;
    my ($ids, $place) = read_subvolumes($path);
    open my $reply, '>&', \*STDOUT or die "standard output: $!\n";
    open STDOUT, '>', '/dev/null' or die "/dev/null: $!\n";
    sysopen my $volume, $path, O_RDONLY | O_DIRECTORY or die "$path: $!\n";
    my $id = (look_up($volume, ROOT_FOLDER))[0];
    my $missing = 0;
    if (grep { $_->[0] == $id } values %$place) {
        bind_mount($snapshot, $snapshot);
        call('mount', '', $snapshot, '', MS_PRIVATE, '');
        $missing = graft_below($snapshot, $snapshot, $volume, $place, map { ('-i', $_) } @groups);
    }
    print $reply "$missing\n";
}

# Grafts what is in an open subvolume, of which $snapshot is the snapshot. Returns how many are missing.
sub graft_below {
    my ($prefix, $snapshot, $subvolume, $place, @options) = @_;
    my $missing = 0;
    my $own_id = (look_up($subvolume, ROOT_FOLDER))[0];
    for my $id (grep { $place->{$_}[0] == $own_id } keys %$place) {
        my (undef, $inode, $name) = @{$place->{$id}};
        my $inner = open_inner($subvolume, $inode, $name, $id);
        my $target = folder_for($snapshot, $inode, $name);
        if (!defined $inner || !defined $target) { $missing++; next }
        fcntl $inner, F_SETFD, 0; # the program inherits it
        my $beside = "$prefix.$id";
        system('btrfs', 'subvolume', 'snapshot', '-r', @options, '--', '/proc/self/fd/' . fileno $inner, $beside) == 0 or exit 1;
        bind_mount($beside, $target);
        $missing += graft_below($prefix, $target, $inner, $place, @options);
    }
    return $missing;
}

sub exchange {
    my ($one, $other) = @_;
    call('renameat2', AT_FDCWD, $one, AT_FDCWD, $other, RENAME_EXCHANGE);
}

sub bind_mount {
    my ($source, $target) = @_;
    call('mount', $source, $target, '', MS_BIND, '');
}

# Opens a subvolume in another one. Returns nothing if it is no longer there. A sandbox may put a symlink in its place at any
# moment, so the id of what was opened decides.
sub open_inner {
    my ($subvolume, $inode, $name, $id) = @_;
    my $folder = (look_up($subvolume, $inode))[1] // return;
    sysopen my $inner, '/proc/self/fd/' . fileno($subvolume) . "/$folder$name", O_RDONLY | O_DIRECTORY or return;
    my ($found) = look_up($inner, ROOT_FOLDER);
    return (stat $inner)[1] == ROOT_FOLDER && $found == $id ? $inner : undef;
}

# Returns the path of the empty folder that a snapshot has for a subvolume. No sandbox can change a snapshot.
sub folder_for {
    my ($snapshot, $inode, $name) = @_;
    sysopen my $opened, $snapshot, O_RDONLY | O_DIRECTORY or die "$snapshot: $!\n";
    my $folder = (look_up($opened, $inode))[1] // return;
    my $found = (lstat "$snapshot/$folder$name")[1] // return;
    return $found == EMPTY_SUBVOLUME_INODE ? "$snapshot/$folder$name" : undef;
}

# Returns the id of the subvolume of an open folder, and the path in it of the folder with an inode, with a slash at the end. No
# part of the path is a symlink. Returns nothing if there is no such folder.
sub look_up {
    my ($opened, $inode) = @_;
    my $request = pack 'Q2', 0, $inode;
    $request .= "\0" x (BUFFER_BYTES - length $request);
    ioctl $opened, INO_LOOKUP, $request or return;
    return unpack 'Q x8 Z*', $request;
}

my ($command, @arguments) = @ARGV;
my %commands = (list => \&list, graft => \&graft, exchange => \&exchange);
($commands{$command} // die "$command: unknown\n")->(@arguments);
