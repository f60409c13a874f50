#!/bin/busybox sh
# The first program of the virtual machine: drivers, then the guest.
/bin/busybox mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
    /bin/busybox insmod /modules/$module.ko
done
while [ ! -b /dev/vda ]; do /bin/busybox sleep 0.1; done
/guest /dev/vda </dev/null >/dev/ttyS0 2>&1
echo "BAD the guest ended" >/dev/ttyS0
/bin/busybox sleep 1000000
