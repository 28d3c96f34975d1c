# Loads the packet filter of a Pod into its network namespace. A container of the helper image runs it before anything else of the Pod runs,
# with the capability CAP_NET_ADMIN. No other container of the Pod has that.
#
# perl rules.pl PIECE…    the commands of nft, in pieces, because an argument has at most 128 KiB. The set `resolvers` of TABLE gets the
#                         resolvers that the kubelet gave to the Pod.
use strict;
use warnings;

my $TABLE = 'inet sandyard';
# The helper image has nft in a folder of its own, so that it is not copied into sandboxes.
my @nft = ('/toolbox/loader', '--library-path', '/nft/lib:/toolbox/lib', '/nft/nft', '-f', '-');

open my $config, '<', '/etc/resolv.conf' or die "/etc/resolv.conf: $!\n";
my @resolvers = map { /^\s*nameserver\s+(\d+\.\d+\.\d+\.\d+)\s*$/ ? $1 : () } <$config>;
my %unique = map { $_ => 1 } @resolvers;
my $elements = join ', ', sort keys %unique;

die "the helper image has no nft\n" if !-e '/nft/nft';
local $SIG{PIPE} = 'IGNORE'; # nft says itself why it ended
open my $nft, '|-', @nft or die "nft: $!\n";
print {$nft} @ARGV, "\n";
print {$nft} "add element $TABLE resolvers { $elements }\n" if @resolvers > 0;
close $nft and exit 0;
die $! ? "nft: $!\n" : "nft ended with $?\n";
