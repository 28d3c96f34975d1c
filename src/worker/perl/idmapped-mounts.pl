# Makes idmapped mounts (mount_setattr(2)): copies of mounts that show the owners of files by another map. Load it with
# `require`. It is written in Perl because mount(8) knows these mounts only from util-linux 2.39 on. The numbers are
# those of linux/mount.h and linux/fcntl.h.
use strict;
use warnings;
use Fcntl;
use POSIX ();

use constant {AT_FDCWD => -100, AT_EMPTY_PATH => 0x1000, OPEN_TREE_CLONE => 1, OPEN_TREE_CLOEXEC => 0x80000};
use constant {MOUNT_ATTR_RDONLY => 1, MOUNT_ATTR_IDMAP => 0x100000, MOVE_MOUNT_F_EMPTY_PATH => 4, MNT_DETACH => 2};

# pin SOURCE PIN MAP SET CLEAR: mounts a file or folder on PIN with the map of the user namespace MAP. SET and CLEAR are
# sums of the MOUNT_ATTR flags that the mount has and has not.
sub mount_mapped {
    my ($source, $target, $map, $set, $clear) = @_;
    my $tree = clone_mapped($source, $map, $set, $clear);
    my $is_attached = eval { call('move_mount', $tree, '', AT_FDCWD, $target, MOVE_MOUNT_F_EMPTY_PATH); 1 };
    my $why = $@;
    POSIX::close($tree);
    die "$target: $why" if !$is_attached;
}

# Returns the descriptor of a new mount of a file or folder, which is in no place yet.
sub clone_mapped {
    my ($source, $map, $set, $clear) = @_;
    sysopen my $namespace, $map, O_RDONLY or die "$map: $!\n";
    my $tree = call('open_tree', AT_FDCWD, $source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    my $attributes = pack 'Q4', MOUNT_ATTR_IDMAP | $set, $clear, 0, fileno $namespace;
    return $tree if eval { call('mount_setattr', $tree, '', AT_EMPTY_PATH, $attributes, length $attributes); 1 };
    my $why = $@;
    POSIX::close($tree);
    die "$source: $why";
}

# Makes `$folder` with idmapped mounts for an overlay: the mount point `disk` of a disk, and for each layer a short name
# that leads into a mount of the layer's parent folder. Layers of one store so need only one mount.
sub make_mapped_layers {
    my ($folder, $map, $disk, @layers) = @_;
    remove_mapped_layers($folder);
    mkdir $folder, 0700 and mkdir "$folder/disk", 0700 or die "$folder: $!\n";
    mount_mapped($disk, "$folder/disk", $map, 0, 0);
    my %mount_of;
    for my $number (0 .. $#layers) {
        my ($parent, $name) = $layers[$number] =~ m{^(.+)/([^/]+)$} or die "$layers[$number]: not the path of a layer\n";
        if (!defined $mount_of{$parent}) {
            $mount_of{$parent} = 'store' . keys %mount_of;
            mkdir "$folder/$mount_of{$parent}", 0700 or die "$folder: $!\n";
            mount_mapped($parent, "$folder/$mount_of{$parent}", $map, MOUNT_ATTR_RDONLY, 0);
        }
        symlink "$mount_of{$parent}/$name", "$folder/$number" or die "$folder/$number: $!\n";
    }
}

# Removes that folder. An overlay has its own copies of the mounts. Only empty folders and symlinks are removed, so no
# content is deleted even if a mount stays.
sub remove_mapped_layers {
    my ($folder) = @_;
    opendir my $entries, $folder or return;
    for my $path (map { "$folder/$_" } grep { !/^\.\.?$/ } readdir $entries) {
        next if -l $path && unlink $path;
        eval { call('umount2', $path, MNT_DETACH) }; # most are no mount points
        rmdir $path or die "$path: $!\n";
    }
    rmdir $folder or die "$folder: $!\n";
}

# try-idmap MAP FOLDER…: dies unless mounts of the folders can be idmapped.
sub try_idmap {
    my ($map, @folders) = @_;
    POSIX::close(clone_mapped($_, $map, 0, 0)) for @folders;
}

# try-idmapped-layers MAP SCRATCH: dies unless an overlay accepts idmapped layers. SCRATCH is a folder that it makes and removes.
sub try_idmapped_layers {
    my ($map, $scratch) = @_;
    my @folders = map { "$scratch/$_" } 'disk', 'low', 'high', 'root';
    eval { call('umount2', "$scratch/root", MNT_DETACH) }; # an interrupted trial may have left it
    remove_mapped_layers("$scratch/mapped");
    for ($scratch, @folders) { -d or mkdir $_, 0700 or die "$_: $!\n" }
    my $is_mounted = eval {
        make_mapped_layers("$scratch/mapped", $map, "$scratch/disk", "$scratch/low", "$scratch/high");
        call('mount', 'overlay', "$scratch/root", 'overlay', 0, "lowerdir=$scratch/mapped/1:$scratch/mapped/0");
        call('umount2', "$scratch/root", MNT_DETACH);
        1;
    };
    my $why = $@;
    remove_mapped_layers("$scratch/mapped");
    rmdir for @folders, $scratch;
    die $why if !$is_mounted;
}

1;
