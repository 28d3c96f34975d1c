#!/bin/busybox sh
# The guest's first program: loads the kernel modules for the disks, mounts the disks, and makes the base disk the root
# file system.
export PATH=/bin
/bin/busybox mkdir -p /proc /dev /root
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
  /bin/busybox insmod "/modules/$module.ko" || echo "cannot load $module"
done
/bin/busybox mount -t ext4 -o noatime /dev/vda /root
/bin/busybox mount -t ext4 -o ro /dev/vdb /root/project
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /usr/bin/catatonit -- /bin/sh /project/setup/microvm/guest.sh
