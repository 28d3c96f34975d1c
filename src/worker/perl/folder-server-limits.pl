# Limits the server of a folder (see disk-image.pl) to what it needs to act for every user of the sandbox (capabilities(7),
# seccomp(2)). Load it with `require`, after perl-process.pl.
use strict;
use warnings;
use Errno ();
use POSIX ();

use constant {PR_SET_SECCOMP => 22, PR_CAPBSET_DROP => 24, SECCOMP_MODE_FILTER => 2, LAST_CAPABILITY => 63};
use constant {CAP_CHOWN => 0, CAP_DAC_OVERRIDE => 1, CAP_FOWNER => 3, CAP_FSETID => 4};
use constant {BPF_LOAD_WORD => 0x20, BPF_JUMP_IF_EQUAL => 0x15, BPF_RETURN => 0x06, SECCOMP_RET_ERRNO => 0x50000, SECCOMP_RET_ALLOW => 0x7fff0000};
use constant {OPEN_FILES_LIMIT => 7};

# Leaves this process four capabilities and as many open files as given. A filter refuses it to make special files.
sub limit_folder_server {
    my ($open_files) = @_;
    for my $capability (0 .. LAST_CAPABILITY) {
        next if grep { $_ == $capability } CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID;
        eval { call('prctl', PR_CAPBSET_DROP, $capability, 0, 0, 0) }; # the kernel may have fewer
    }
    call('prlimit64', 0, OPEN_FILES_LIMIT, pack('Q2', $open_files, $open_files), 0);
    my @calls = is_arm() ? (33) : (133, 259); # mknod, mknodat
    my @filter = ([BPF_LOAD_WORD, 0, 0, 0]);
    push @filter, [BPF_JUMP_IF_EQUAL, 0, 1, $_], [BPF_RETURN, 0, 0, SECCOMP_RET_ERRNO | Errno::EPERM] for @calls;
    push @filter, [BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW];
    my $code = join '', map { pack 'S C C L', @$_ } @filter;
    call('prctl', PR_SET_SECCOMP, SECCOMP_MODE_FILTER, pack('S x6 P', scalar @filter, $code), 0, 0);
}

sub is_arm { return (POSIX::uname())[4] eq 'aarch64' }

1;
