#!/bin/busybox sh
# The first process of a guest in user mode. The root filesystem is this machine's. It makes what must be the guest's
# own beside it, runs the command there, notes its exit status and powers off. Its directory is the one that guest.py
# prepared; it is /run/guest later. Only busybox: until its end it must not write to the machine.
set -eu
busybox=/bin/busybox
control=${0%/*}

# What lies below /run or /tmp is hidden by the next mounts, so it is opened first.
exec 3<"$control/modules"
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sysfs /sys
$busybox mount -t tmpfs -o mode=755 tmpfs /run
$busybox mkdir /run/guest /run/work /run/lock
$busybox mount -t hostfs -o "$control" none /run/guest
$busybox mount -t ext4 -o noinit_itable /dev/ubda /run/work
$busybox chmod 1777 /run/work
[ ! -e /run/guest/private-tmp ] || $busybox mount -t tmpfs -o mode=1777 tmpfs /tmp

# The kernel has mounted devtmpfs.
$busybox mkdir -p /dev/pts /dev/shm
$busybox mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
$busybox mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do # udev's work elsewhere
    [ -e "/dev/${link%%:*}" ] || $busybox ln -s "${link#*:}" "/dev/${link%%:*}"
done

echo /run/guest/modprobe >/proc/sys/kernel/modprobe # for mount -t btrfs, and for dm-crypt, which hangs without a cipher

while read -r module || [ -n "$module" ]; do # in the order in which they need each other
    $busybox insmod "$module"
done <&3
exec 3<&-
$busybox hostname guest
$busybox ifconfig lo up
if [ -e /run/guest/network ]; then
    read -r address gateway </run/guest/network
    $busybox ip address add "$address/31" dev vec0
    $busybox ip link set vec0 up
    $busybox ip route add default via "$gateway"
fi

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set +e
$busybox setsid -c /bin/sh /run/guest/command <>/dev/tty1 >&0 2>&1
echo $? >/run/guest/status
$busybox sync
echo o >/proc/sysrq-trigger
$busybox sleep 60
