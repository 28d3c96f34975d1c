# File operations as another user of the sandbox. files.pl loads this file.
use strict;
use warnings;
use Errno qw(EINVAL EPERM);
use Fcntl qw(O_NONBLOCK O_RDONLY);

use constant ID_MAX => 0xfffffffe;
use constant USER_FILE_LIMIT_BYTES => 4 * 1024 * 1024;

our ($request, @operations);

# Runs the operation after the user's name as that user. Only operations that create or open one file may follow it.
my %FOR_USERS = (5 => 'symlink', 6 => 'mkdir', 10 => 'open');

sub run_as_user {
    my ($reply) = @_;
    my ($user, $number, $fields) = unpack 'x5 n/a C a*', $request;
    my $what = $FOR_USERS{$number} // fail_with('user', EINVAL);
    my ($uid, $gid, @groups) = ids_of($user);
    local $request = pack 'x4 C a*', $number, $fields;
    if ($> != 0 && $uid == $> && $user !~ /:/) { # the only user that a sandbox without root has
        local $request = pack 'x4 C a*', $number, $fields;
        return $operations[$number]->($reply);
    }
    my ($own_user, $own_groups) = ($>, $));
    $) = join ' ', $gid, $gid, @groups;
    $> = $uid;
    my $is_user = $> == $uid && (split ' ', $))[0] == $gid;
    my $is_done = eval { $is_user or fail_with($what, EPERM); $operations[$number]->($reply); 1 };
    my $error = $@;
    $> = $own_user;
    $) = $own_groups;
    exit 1 if $> != $own_user; # never serve another client's operation with the wrong rights
    die $error if !$is_done;
}

# The ids of `name`, `uid`, `name:group` or `uid:gid`: user, group, and the user's other groups if no group is named. A
# number needs no entry in the sandbox's files.
sub ids_of {
    my ($user) = @_;
    my ($name, $group) = split /:/, $user, 2;
    $name = '' if !defined $name;
    my ($entry) = grep { $_->[$name =~ /^\d+$/ ? 2 : 0] eq $name } entries('/etc/passwd', 3);
    defined $entry || $name =~ /^\d+$/ or die "user '$name' is not in the sandbox's /etc/passwd\n";
    my $uid = defined $entry ? $entry->[2] : $name;
    my @all = entries('/etc/group', 3);
    my @groups;
    my $gid = defined $entry ? $entry->[3] // 0 : 0;
    if (defined $group) {
        my ($named) = grep { $_->[0] eq $group } @all;
        defined $named || $group =~ /^\d+$/ or die "group '$group' is not in the sandbox's /etc/group\n";
        $gid = defined $named ? $named->[2] : $group;
    }
    elsif (defined $entry) {
        for my $one (@all) {
            push @groups, $one->[2] if grep { $_ eq $entry->[0] } split /,/, $one->[3] // '';
        }
    }
    for my $id ($uid, $gid, @groups) {
        $id =~ /^\d{1,10}$/ && $id <= ID_MAX or die "user '$user' has an invalid id\n";
    }
    return ($uid, $gid, @groups);
}

# The entries of a user file with at least so many fields. A missing file has none.
sub entries {
    my ($path, $least) = @_;
    sysopen my $file, $path, O_RDONLY | O_NONBLOCK or return;
    -f $file or return;
    sysread $file, my $text, USER_FILE_LIMIT_BYTES or return;
    return grep { @$_ >= $least } map { [split /:/, $_, -1] } grep { !/^#/ } split /\n/, $text;
}

1;
