#!/bin/busybox sh
# The first process of the guest. It makes what must be the guest's own beside the machine's files, runs the
# command there, notes its exit status and powers off. busybox does it all: each program of the machine that
# runs here costs a tenth of a second. /run/guest is the directory that guest.py prepared.
set -eu
/bin/busybox --install -s /bin
export PATH=/bin

for module in /modules/*; do # numbered: each after those that it needs
    insmod "$module"
done

options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$options,cache=loose" host /machine
cd /machine
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs devtmpfs /dev
mount -t ext4 -o noinit_itable /dev/vda /work
mount --move /dev dev
mkdir -p dev/pts dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s /proc/self/fd dev/fd # these four are udev's work elsewhere
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/guest run/work run/lock
mount -t 9p -o "$options,cache=none" control run/guest
mount --move /work run/work
chmod 1777 run/work
[ ! -e run/guest/private-tmp ] || mount -t tmpfs -o mode=1777 tmpfs tmp

hostname guest
ifconfig lo up
[ ! -e sys/class/net/eth0 ] || ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up # --network: QEMU's, and its addresses
echo /run/guest/modprobe >proc/sys/kernel/modprobe # so that mount -t xfs finds its module by itself

cp /bin/busybox run/busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec /bin/switch_root /machine /run/busybox sh -c '
    /run/busybox setsid -c /bin/sh /run/guest/command <>/dev/hvc0 >&0 2>&1
    echo $? >/run/guest/status
    /run/busybox sync
    echo o >/proc/sysrq-trigger
    /run/busybox sleep 60'
