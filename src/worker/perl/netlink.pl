# Builds and sends the rtnetlink(7) messages that set up a sandbox's network. Load it with `require`. It is written in
# Perl because Node has no netlink sockets, and ip(8) takes 2 to 4 ms of processor time for each network. The numbers
# are those of linux/netlink.h, if_link.h, if_addr.h and rtnetlink.h.
use strict;
use warnings;
use Socket qw(inet_aton);

use constant {AF_INET => 2, AF_INET6 => 10, AF_NETLINK => 16, SOCK_RAW => 3};
use constant {RTM_NEWLINK => 16, RTM_NEWADDR => 20, RTM_NEWROUTE => 24, NLMSG_ERROR => 2};
use constant {NLM_F_REQUEST => 1, NLM_F_ACK => 4, NLM_F_EXCL => 0x200, NLM_F_CREATE => 0x400};
use constant {IFLA_IFNAME => 3, IFLA_LINKINFO => 18, IFLA_AF_SPEC => 26, IFLA_NET_NS_FD => 28};
use constant {IFLA_INFO_KIND => 1, IFLA_INFO_DATA => 2, VETH_INFO_PEER => 1};
use constant {IFLA_INET6_ADDR_GEN_MODE => 8, IN6_ADDR_GEN_MODE_NONE => 1};
use constant {IFA_ADDRESS => 1, IFA_LOCAL => 2, RTA_OIF => 4, RTA_GATEWAY => 5, RTA_PRIORITY => 6};
use constant {RT_TABLE_MAIN => 254, RTPROT_BOOT => 3, RT_SCOPE_UNIVERSE => 0, RT_SCOPE_HOST => 254, RTN_UNICAST => 1, RTN_LOCAL => 2};
use constant {IFF_UP => 1, SIOCGIFINDEX => 0x8933, ANSWER_BYTES => 65536};

sub open_netlink {
    socket my $socket, AF_NETLINK, SOCK_RAW, 0 or die "netlink: $!\n";
    return $socket;
}

# Sends messages and waits for the kernel's answer to each. Dies with the first refusal.
sub send_messages {
    my ($socket, @messages) = @_;
    my $number = 0;
    my $request = join '', map {
        my ($type, $flags, $body) = @$_;
        pack 'L S S L L a*', 16 + length $body, $type, NLM_F_REQUEST | NLM_F_ACK | $flags, $number++, 0, $body;
    } @messages;
    defined send $socket, $request, 0 or die "netlink: $!\n";
    my $refused;
    while ($number > 0) {
        defined recv $socket, my $answer, ANSWER_BYTES, 0 or die "netlink: $!\n";
        while (length $answer >= 20) {
            my ($length, $type, $of, $error) = unpack 'L S x2 L x4 l', $answer;
            last if $length < 20;
            substr $answer, 0, ($length + 3) & ~3, '';
            next if $type != NLMSG_ERROR;
            $number--;
            $refused //= [$of, -$error] if $error != 0;
        }
    }
    return if !defined $refused;
    local $! = $refused->[1];
    die "netlink message $refused->[0] of " . scalar(@messages) . ": $!\n";
}

# Creates a veth pair: `$name` in the current namespace, and `$peer` in the namespace of an open descriptor.
sub add_veth {
    my ($name, $peer, $namespace) = @_;
    my $peer_data = link_head(0) . attribute(IFLA_IFNAME, "$peer\0") . attribute(IFLA_NET_NS_FD, pack 'L', $namespace);
    my $info = attribute(IFLA_INFO_KIND, 'veth') . attribute(IFLA_INFO_DATA, attribute(VETH_INFO_PEER, $peer_data));
    return [RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, link_head(0) . attribute(IFLA_IFNAME, "$name\0") . attribute(IFLA_LINKINFO, $info)];
}

# Returns the message that keeps the kernel from giving a device an IPv6 address.
sub without_ipv6 {
    my ($name) = @_;
    my $mode = attribute(AF_INET6, attribute(IFLA_INET6_ADDR_GEN_MODE, pack 'C', IN6_ADDR_GEN_MODE_NONE));
    return [RTM_NEWLINK, 0, link_head(0) . attribute(IFLA_IFNAME, "$name\0") . attribute(IFLA_AF_SPEC, $mode)];
}

sub set_link {
    my ($name, $flags) = @_;
    return [RTM_NEWLINK, 0, link_head($flags) . attribute(IFLA_IFNAME, "$name\0")];
}

sub add_address {
    my ($index, $address, $prefix) = @_;
    my $bytes = inet_aton($address);
    my $head = pack 'C C C C L', AF_INET, $prefix, 0, RT_SCOPE_UNIVERSE, $index;
    return [RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, $head . attribute(IFA_LOCAL, $bytes) . attribute(IFA_ADDRESS, $bytes)];
}

sub add_default_route {
    my ($gateway) = @_;
    return add_route(RT_SCOPE_UNIVERSE, RTN_UNICAST, attribute(RTA_GATEWAY, inet_aton($gateway)));
}

# Returns the message that leads packets which skip the gateway (`SO_DONTROUTE`) back into the namespace. Without a route for them,
# the kernel takes every address for a neighbour on the device, and all namespaces of the machine share its 1,024 neighbours.
sub keep_from_neighbours {
    my ($index) = @_;
    return add_route(RT_SCOPE_HOST, RTN_LOCAL, attribute(RTA_OIF, pack 'L', $index) . attribute(RTA_PRIORITY, pack 'L', 1));
}

# Returns the message that adds a route to all addresses.
sub add_route {
    my ($scope, $type, $attributes) = @_;
    my $head = pack 'C8 L', AF_INET, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, $scope, $type, 0;
    return [RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, $head . $attributes];
}

sub index_of {
    my ($socket, $name) = @_;
    my $request = pack 'a16 i x20', $name, 0;
    ioctl $socket, SIOCGIFINDEX, $request or die "$name: $!\n";
    return unpack 'x16 i', $request;
}

# Returns a struct ifinfomsg. It contains no device index, because an attribute of the message names the device. Only
# the given flags change.
sub link_head {
    my ($flags) = @_;
    return pack 'C x S i L L', 0, 0, 0, $flags, $flags;
}

sub attribute {
    my ($type, $data) = @_;
    return pack 'S S a* x![4]', 4 + length $data, $type, $data;
}

1;
