# Serves the file operations of one client from inside a sandbox. It runs as the sandbox's user 0, so paths have the
# same meaning as for every program in the sandbox. It is written in Perl because the worker brings a Perl into every
# sandbox (toolbox.ts). A sandbox may have no other programs.
#
# perl files.pl ARCHITECTURE     the architecture as Node names it: x64, arm64 or riscv64
#
# Requests arrive on standard input and replies go to standard output, in order. A message starts with the length of the
# rest (u32) and the number of the request (u32). In a request, the operation (u8) and its fields follow. In a reply, 0
# and the result follow, or 1 and an error text. Numbers are big-endian. src/worker/channel/guest-files.ts describes the
# operations, and files-client.ts implements the worker's side of this format.
#
# This file reads requests and writes replies. file-paths.pl, open-files.pl, file-tasks.pl and file-users.pl in the same
# folder implement the operations.
use strict;
use warnings;

use constant MAX_REQUEST_BYTES => 4 * 1024 * 1024;
use constant MAX_ERROR_BYTES => 1000;
use constant PIPE_BYTES => 1024 * 1024;
use constant F_SETPIPE_SZ => 1031;

our $architecture = $ARGV[0] // '';
# The current request, without its length. The fields start at byte 5.
our $request = '';

for my $part ('file-paths.pl', 'open-files.pl', 'file-tasks.pl', 'file-users.pl') {
    require(__FILE__ =~ s{[^/]+$}{$part}r);
}

$SIG{XFSZ} = 'IGNORE'; # at a limit on file sizes, the write fails instead of ending this process
umask 0022;
binmode STDIN;
binmode STDOUT;
# Larger pipes are faster, but a failure to enlarge them is harmless.
fcntl(STDIN, F_SETPIPE_SZ, PIPE_BYTES);
fcntl(STDOUT, F_SETPIPE_SZ, PIPE_BYTES);

our @operations = (
    undef, \&real_path, \&stat_path, \&set_stat, \&read_link, \&make_symlink, \&make_folder, \&remove_file, \&remove_folder,
    \&rename_path, \&open_file, \&open_folder, \&close_slot, \&read_piece, \&write_piece, \&read_folder, \&stat_slot,
    \&set_stat_slot, \&begin_copy, \&begin_removal, \&take_step, \&run_as_user,
);

while (read_exactly(4)) {
    my $length = unpack 'N', $request;
    exit 1 if $length < 5 || $length > MAX_REQUEST_BYTES;
    read_exactly($length) or exit 1;
    my ($id, $number) = unpack 'NC', $request;
    my $operation = $operations[$number];
    # File data can be long. To avoid a copy, the result is appended after space for the head.
    my $reply = "\0" x 9;
    my $is_done = eval { defined $operation or die "no such operation\n"; $operation->(\$reply); 1 };
    if (!$is_done) {
        my $text = $@;
        chomp $text;
        $reply = "\0" x 9 . substr $text, 0, MAX_ERROR_BYTES;
    }
    substr $reply, 0, 9, pack 'NNC', length($reply) - 4, $id, $is_done ? 0 : 1;
    write_all(\*STDOUT, \$reply, 0) or exit 1;
}
exit 0;

# Fills the request with exactly `$wanted` bytes. Returns false at the end of input.
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

# Writes a buffer from a position to its end. Returns false when a write fails.
sub write_all {
    my ($handle, $data, $from) = @_;
    while ($from < length $$data) {
        my $put = syswrite $handle, $$data, length($$data) - $from, $from;
        return 0 if !defined $put;
        $from += $put;
    }
    return 1;
}

# Ends the operation with the error of the last system call, in the form that clients of the agent protocol expect.
sub fail {
    my ($what) = @_;
    die sprintf "%s: %s (os error %d)\n", $what, "$!", $! + 0;
}

# Ends the operation with an error number.
sub fail_with {
    my ($what, $number) = @_;
    $! = $number;
    fail($what);
}
