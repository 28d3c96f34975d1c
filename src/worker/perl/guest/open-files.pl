# The file operations on slots: open, read, write, list and close. files.pl loads this file.
use strict;
use warnings;
no warnings 'newline'; # a file's name may end with one
use Errno qw(EBADF EINVAL);
use Fcntl qw(:DEFAULT :seek);

our $request;
# The open handles by slot: [handle, kind]. The kinds are file, folder, copy and removal.
our %slots;

# Stores an open handle under a slot, which is a number that the client chose.
sub keep {
    my ($slot, $kind, $handle) = @_;
    $slots{$slot} = [$handle, $kind];
}

# Returns the handle under a slot. Fails the operation when the slot has no handle of that kind.
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
    # Contradictory options are refused, as in microsandbox's own agent.
    my $is_odd = !$read && !$writes || !$writes && ($create || $truncate || $new) || $append && $truncate && !$new;
    fail_with('open', EINVAL) if $is_odd;
    my $flags = ($writes ? $read ? O_RDWR : O_WRONLY : O_RDONLY) | ($append ? O_APPEND : 0)
        | ($new ? O_CREAT | O_EXCL : ($create ? O_CREAT : 0) | ($truncate ? O_TRUNC : 0));
    # Without O_NONBLOCK, opening a FIFO would wait until its other end is opened.
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

1;
