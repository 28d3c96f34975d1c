# Takes the place of fusermount for a server of FUSE that may not mount. The file system is mounted already: passes the
# server the descriptor that it was started with. libfuse names the socket for it in the environment. It is written in Perl
# because Node can't send a descriptor, and because disk-image.pl adds the first line that names perl.
use strict;
use warnings;

use constant {SOL_SOCKET => 1, SCM_RIGHTS => 1};
exit 0 if grep { $_ eq '-u' } @ARGV; # the mount ends with the sandbox
my $number = (grep { $_ eq '/served-disk' } @ARGV) ? $ENV{DISK_FD} : $ENV{FILES_FD};
my $byte = "\0";
my $vector = pack 'P Q', $byte, length $byte;
my $control = pack 'Q l l l x4', 20, SOL_SOCKET, SCM_RIGHTS, $number; # a control message with one descriptor (cmsg(3))
my $message = pack 'Q L x4 P Q P Q l x4', 0, 0, $vector, 1, $control, length $control, 0;
my $sendmsg = -e '/usr/lib/aarch64-linux-gnu' ? 211 : 46;
exit(syscall($sendmsg, int $ENV{_FUSE_COMMFD}, $message, 0) == length $byte ? 0 : 1);
