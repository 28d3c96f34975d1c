# User namespaces whose ids are those of one sandbox. Load it with `require`, after perl-process.pl.
use strict;
use warnings;
use Fcntl qw(:DEFAULT);
use POSIX ();

use constant {CLONE_NEWUSER => 0x10000000, SANDBOX_IDS => 65536};

# Returns the descriptor of the user namespace at a path.
sub open_users {
    my ($path) = @_;
    sysopen my $users, $path, O_RDONLY or die "$path: $!\n";
    return $users;
}

# Returns the descriptor of a new user namespace whose users are those of the sandbox: 0 is the host's id `first`.
sub make_users {
    my ($first) = @_;
    my ($pid, $release) = make_map(("0 $first @{[SANDBOX_IDS]}\n") x 2);
    my $users = open_users("/proc/$pid/ns/user");
    close $release;
    waitpid $pid, 0;
    return $users;
}

# Starts a process with a user namespace of these maps, which ends when the returned handle is closed.
sub make_map {
    my ($uids, $gids) = @_;
    pipe my $ready, my $tell_ready or die "pipe: $!\n";
    pipe my $done, my $tell_done or die "pipe: $!\n";
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
        close $tell_done;
        my $is_made = eval { call('unshare', CLONE_NEWUSER); 1 };
        syswrite $tell_ready, '.' if $is_made;
        close $tell_ready;
        sysread $done, my $end, 1;
        POSIX::_exit(0);
    }
    close $tell_ready;
    sysread $ready, my $state, 1 or die "no user namespace could be made\n";
    for (['uid_map', $uids], ['gid_map', $gids]) {
        my ($name, $map) = @$_;
        sysopen my $file, "/proc/$pid/$name", O_WRONLY or die "/proc/$pid/$name: $!\n";
        (syswrite($file, $map) // 0) == length $map or die "/proc/$pid/$name: $!\n";
    }
    return ($pid, $tell_done);
}

# Becomes a user of this namespace with no other group.
sub become {
    my ($id) = @_;
    call('setgroups', 0, 0);
    call('setresgid', ($id) x 3);
    call('setresuid', ($id) x 3);
}

1;
