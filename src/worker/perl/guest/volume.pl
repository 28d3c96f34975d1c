# Does one operation on the files of a volume that is mounted in this Pod, and ends. It is written in Perl because the helper image has
# a perl and nothing else. It has the meaning of src/worker/volumes/volume-files.ts, which serves volumes in folders of a machine.
# Sandboxes may change the volume meanwhile, and nothing that they do leads an operation out of it: see volume-paths.pl.
#
# perl volume.pl ARCHITECTURE OPERATION ARGUMENT…     the architecture as Node names it: x64, arm64 or riscv64
# The variable SANDYARD_VOLUME is the folder of the volume.
#
#   list PATH           stat PATH         read PATH        mkdir PATH        unlisted PATH
#   write PATH NAME     copy FROM TO NAME     NAME is the new name of the file while it is unfinished
#   rename FROM TO      remove PATH 0|1   1: also a folder with everything in it
#   sweep SECONDS       removes unfinished files that nobody wrote to for so long
#
# Paths have no `..` and no empty names, and none of their names is one of unfinished files: the worker has seen to it.
#
# Standard input has the content to write, in pieces after their lengths (u32). An empty piece says that all has arrived. Without
# it, nothing is written. Standard output has `+` and the result, or `!` and why there is none: whether it is about the first or the
# second path (u8), the kind of the refusal (see refuse()), an error number (u32) and a text. Numbers are big-endian. The results are
#
#   list    each file: the length of its name (u16), the name, its attributes (packed()). A symlink has those of what it leads to
#   unlisted  what `list` leaves out or follows, each: its kind (`l` for a symlink, `s` for a FIFO, socket or device), the length of its
#           name (u16), the name, the length of a symlink's target (u16), the target
#   stat    its attributes; read  its size (u64) and the content; write  its size (u64)
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EISDIR ENOENT EPERM);
use Fcntl qw(:DEFAULT :mode);

our ($architecture, $operation, @arguments) = @ARGV;
our $ROOT = $ENV{SANDYARD_VOLUME};
require(__FILE__ =~ s{[^/]+$}{$_}r) for 'volume-paths.pl', 'volume-copies.pl', 'volume-removals.pl';

use constant PIECE_BYTES => 256 * 1024;
my $PIECE_MAX_BYTES = 16 * 1024 * 1024;
my $KEPT_MODE_BITS = 01777;

my %OPERATIONS = (
    list => \&list, stat => \&stat_file, read => \&read_file, mkdir => \&make_folder, write => \&write_file,
    unlisted => \&unlisted, copy => \&copy, rename => \&move, remove => \&remove, sweep => \&sweep,
);

$SIG{PIPE} = 'IGNORE';
$SIG{XFSZ} = 'IGNORE'; # at a limit on file sizes, the write fails instead of ending this process
umask 0;
binmode STDIN;
binmode STDOUT;
my $has_replied = 0;
my $is_done = eval { $OPERATIONS{$operation}->(@arguments); 1 };
if (!$is_done && !$has_replied) {
    my $refusal = ref $@ ? $@ : { at => 0, kind => 'x', number => 0, text => substr $@, 0, 1000 };
    write_all(\*STDOUT, '!' . pack 'C a N a*', @$refusal{qw(at kind number text)});
}
exit($is_done ? 0 : 1);

# Writes the next part of the result.
sub reply {
    my ($bytes) = @_;
    write_all(\*STDOUT, ($has_replied ? '' : '+') . $bytes) or exit 1;
    $has_replied = 1;
}

sub list {
    my ($path) = @_;
    my $found = found(resolve_beneath($path, { follow => 1 }));
    S_ISDIR($found->{mode}) or refuse(0, 'c', 'is not a folder');
    opendir my $folder, path_of($found->{handle}) or refuse_errno(0);
    my $steps = link_steps();
    reply('');
    while (defined(my $name = readdir $folder)) {
        next if $name eq '.' || $name eq '..' || is_unfinished($name);
        my $stat = stat_name($found->{handle}, $name) // next;
        $stat = stat_target(length $path ? "$path/$name" : $name, $steps) // next if S_ISLNK($stat->{mode});
        reply(pack 'n/a* a*', $name, packed($stat)) if is_visible($stat);
    }
}

sub unlisted {
    my ($path) = @_;
    my $found = found(resolve_beneath($path, { follow => 1 }));
    S_ISDIR($found->{mode}) or refuse(0, 'c', 'is not a folder');
    opendir my $folder, path_of($found->{handle}) or refuse_errno(0);
    reply('');
    while (defined(my $name = readdir $folder)) {
        next if is_unfinished($name);
        my $target = readlink(path_of($found->{handle}) . "/$name");
        if (!defined $target) { next if is_visible(stat_name($found->{handle}, $name) // next) }
        reply(pack 'a n/a* n/a*', defined $target ? 'l' : 's', $name, $target // '');
    }
}

sub stat_file {
    my ($path) = @_;
    my $stat = found(resolve_beneath($path, {}));
    $stat = stat_target($path, link_steps()) if S_ISLNK($stat->{mode});
    refuse(0, 'n') if !defined $stat || !is_visible($stat);
    reply(packed($stat));
}

sub read_file {
    my ($path) = @_;
    my $found = found(resolve_beneath($path, { follow => 1 }));
    refuse(0, 'c', 'is a folder') if S_ISDIR($found->{mode});
    refuse(0, 'n') if !S_ISREG($found->{mode});
    my $file = reopen($found->{handle}, 0);
    my $left = stat_handle($file)->{size};
    reply(pack 'Q>', $left);
    while ($left > 0) {
        my $got = sysread $file, my $piece, $left < PIECE_BYTES ? $left : PIECE_BYTES;
        exit 1 if !$got; # the file became shorter
        reply($piece);
        $left -= $got;
    }
}

sub make_folder {
    my ($path) = @_;
    my $found = resolve_beneath($path, { follow => 1, makes => 'all' })->{found};
    refuse(0, 'c', 'exists and is not a folder') if !defined $found || !S_ISDIR($found->{mode});
    reply('');
}

sub write_file {
    my ($path, $temporary) = @_;
    my $size = 0;
    replace_atomically($path, 0, $temporary, {
        stage => sub {
            my ($folder) = @_;
            my $file = create_file($folder, $temporary, 0);
            for (;;) {
                my $length = unpack 'N', read_input(4);
                last if $length == 0;
                die "a piece is too long\n" if $length > $PIECE_MAX_BYTES;
                write_all($file, read_input($length)) or refuse_errno(0);
                $size += $length;
            }
            return $file;
        },
        finish => sub {
            my ($file, $replaced) = @_;
            if (defined $replaced) { own($file, $replaced, $replaced->{mode} & $KEPT_MODE_BITS) }
            else { chmod FILE_MODE(), path_of($file) or refuse_errno(0) }
            sync($file);
        },
    });
    reply(pack 'Q>', $size);
}

sub read_input {
    my ($length) = @_;
    my $bytes = '';
    while (length $bytes < $length) {
        sysread(STDIN, $bytes, $length - length $bytes, length $bytes) or die "the content ended early\n";
    }
    return $bytes;
}

sub copy {
    my ($from, $to, $temporary) = @_;
    my $source = found(resolve_beneath($from, { follow => 1 }));
    refuse(0, 'n') if !is_visible($source);
    replace_atomically($to, 1, $temporary, {
        check => sub {
            my ($target) = @_;
            refuse_own_descendant($source, $target);
            refuse(1, 'c', 'exists and is not a folder') if S_ISDIR($source->{mode}) && defined $target->{found};
        },
        stage => sub { return stage_copy($_[0], $temporary, $source) },
        finish => sub { own($_[0], $source, $source->{mode} & 07777) },
    });
    reply('');
}

sub move {
    my ($from, $to) = @_;
    my $source = resolve_beneath($from, {});
    refuse(0, 'i', 'the root of a volume cannot be moved') if !defined $source->{name};
    my $destination = resolve_beneath($to, { at => 1, makes => 'report' });
    refuse(1, 'c', 'is the root of the volume') if !length $to;
    refuse_own_descendant(found($source), $destination);
    my $target = resolve_beneath($to, { at => 1, makes => 'parents' });
    rename path_of($source->{folder}) . "/$source->{name}", path_of($target->{folder}) . "/$target->{name}" or refuse_errno(1);
    sync(reopen($target->{folder}, 1));
    reply('');
}

# Refuses to copy or move a folder into itself.
sub refuse_own_descendant {
    my ($source, $target) = @_;
    refuse(1, 'w') if grep { $_ eq $source->{inode} } @{ $target->{trail} };
}

sub remove {
    my ($path, $is_recursive) = @_;
    my $resolved = resolve_beneath($path, {});
    refuse(0, 'i', 'the root of a volume cannot be removed') if !defined $resolved->{name};
    my $at = path_of($resolved->{folder}) . "/$resolved->{name}";
    if (!S_ISDIR(found($resolved)->{mode})) { unlink $at or refuse_errno(0) }
    elsif (!$is_recursive) {
        refuse(0, 'c', 'is a folder: request a recursive removal to delete it with its contents');
    }
    elsif (!remove_tree($at)) { refuse(0, 'c', 'could not be removed completely: part of it is in use or belongs to another user') }
    reply('');
}

sub sweep {
    my ($seconds) = @_;
    remove_unfinished(time - $seconds);
    reply('');
}
