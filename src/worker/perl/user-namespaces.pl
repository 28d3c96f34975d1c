# Makes user namespaces for sandboxes and keeps them open until the worker closes them. A namespace exists as long as a
# process is in it or has it open, so it needs no mount. Others open it as /proc/PID/fd/FD of this process.
# perl-process.pl explains the reason for Perl.
#
# perl user-namespaces.pl WORKER_PID
#
# The requests, each with its fields:
#   make OWNER MAP LIMIT…   makes a namespace with the map for users and groups. OWNER is the user id of its creator, to
#                           whom the kernel charges what all its processes use (inotify, signals, message queues). Each
#                           LIMIT is RESOURCE=COUNT, which bounds the sum over the namespace's users; RESOURCE is a
#                           number of setrlimit(2), and a COUNT of `-` means no limit. The reply: `made N FD`
#   close FD…               closes namespaces. The reply: `closed N`
# The reply to what the kernel refused: `failed N TEXT`.
use strict;
use warnings;
use Fcntl;
use POSIX ();
require(__FILE__ =~ s{[^/]+$}{perl-process.pl}r);

use constant {CLONE_NEWUSER => 0x10000000, MAX_REASON_BYTES => 500};
my ($worker) = @ARGV;
my %held; # open namespaces, by descriptor
my %CALLS = (make => \&make_namespace, close => \&close_namespaces);

close_inherited();
binmode STDIN;
while (1) {
    take_requests($worker, sub {
        my ($number, $fields) = @_;
        my ($name, @arguments) = split_fields($fields);
        my $reply = eval { $CALLS{$name}->(@arguments) };
        my ($word, $rest) = defined $reply ? @$reply : ('failed', $@ =~ s/\s+/ /gr);
        say_line("$word $number $rest");
    });
}

sub make_namespace {
    my ($owner, $map, @limits) = @_;
    pipe my $ready, my $tell_ready or die "pipe: $!\n";
    pipe my $done, my $tell_done or die "pipe: $!\n";
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
        close $tell_done; # the end of this pipe ends the child, even if the parent is killed
        my $is_made = eval { become_creator($owner, @limits); call('unshare', CLONE_NEWUSER); 1 };
        syswrite $tell_ready, $is_made ? 'ready' : $@;
        sysread $done, my $end, 1;
        POSIX::_exit(0);
    }
    close $tell_ready;
    my $namespace = eval {
        sysread $ready, my $state, MAX_REASON_BYTES or die "the process ended\n";
        die $state if $state ne 'ready';
        write_map("/proc/$pid/$_", $map) for 'uid_map', 'gid_map';
        sysopen my $opened, "/proc/$pid/ns/user", O_RDONLY or die "/proc/$pid/ns/user: $!\n";
        $opened;
    };
    my $why = $@;
    close $tell_done;
    waitpid $pid, 0;
    die "a user namespace of $owner: $why" if !defined $namespace;
    $held{fileno $namespace} = $namespace;
    return ['made', fileno $namespace];
}

# Sets the limits that a new namespace takes over for all its users, and becomes its owner.
sub become_creator {
    my ($owner, @limits) = @_;
    for (@limits) {
        my ($resource, $count) = split /=/;
        my $limit = $count eq '-' ? ~0 : $count; # RLIM_INFINITY
        call('prlimit64', 0, int $resource, pack('Q2', $limit, $limit), 0);
    }
    call('setgroups', 0, 0);
    call('setresgid', (int $owner) x 3);
    call('setresuid', (int $owner) x 3);
}

sub write_map {
    my ($path, $map) = @_;
    sysopen my $file, $path, O_WRONLY or die "$path: $!\n";
    (syswrite($file, $map) // 0) == length $map or die "$path: $!\n";
}

sub close_namespaces {
    delete @held{@_};
    return ['closed', ''];
}
