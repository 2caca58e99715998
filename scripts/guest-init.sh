#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# The guest's init: runs the scripts that vm.py sends and sends back what came of them.
#
# They come as lines of base64 over a virtio port, and the answer goes back over it as the exit
# status and the output, in base64, on one line. The kernel log has the console to itself; a line in
# it marks the end of each script.

export PATH=/usr/bin
/usr/bin/busybox --install -s /usr/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t debugfs debugfs /sys/kernel/debug
ip link set lo up

exec 3<>/dev/vport0p1
echo ready >&3

number=0
while read -r script <&3; do
	number=$((number + 1))
	printf %s "$script" | base64 -d >/tmp/script
	sh /tmp/script >/tmp/output 2>&1 </dev/null 3>&-
	status=$?
	echo "vm: end of script $number" >/dev/kmsg
	echo "$status $(base64 -w 0 /tmp/output)" >&3
done

poweroff -f
