#!/bin/busybox sh
# The guest's first process. Its own messages go to the kernel log, which the host reads; the second serial port carries
# nothing but what the command writes.
export PATH=/bin HOME=/root TERM=dumb USER=root LANG=C.UTF-8
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
say() { echo "smc-vm: $*" > /dev/kmsg; }
finish() {
  # Changing a serial line waits until what was written has left it.
  stty -F /dev/ttyS1 raw -echo
  say "exit $1"
  poweroff -f
  sleep 5
  reboot -f
}
fail() { say "setup-failed $*"; finish 125; }

say "init $(cut -d' ' -f1 /proc/uptime)"
mkdir -p /dev/pts /dev/shm /tmp /run
mount -t devpts none /dev/pts
for place in /dev/shm /tmp /run; do mount -t tmpfs none $place; done
mkdir -p /run/netns
mount -t debugfs none /sys/kernel/debug 2>/dev/null
mount -t tracefs none /sys/kernel/tracing 2>/dev/null
mount -t bpf none /sys/fs/bpf 2>/dev/null
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
ln -s all "/lib/modules/$(uname -r)"
stty -F /dev/ttyS1 115200 raw -echo
hostname smc-vm
/bin/ip link set lo up || fail "ip link set lo up"
for module in $(cat /etc/smc-vm/load); do
  insmod "/lib/modules/all/$module.ko" || fail "insmod $module"
done
. /etc/smc-vm/env
cd /root || fail "no /root"
if [ -e /etc/smc-vm/setup ]; then
  sh /etc/smc-vm/setup > /run/smc-vm-setup.log 2>&1 < /dev/null
  code=$?
  while read -r line; do say "setup: $line"; done < /run/smc-vm-setup.log
  [ $code = 0 ] || fail "smctest setup gave $code"
fi
say "ready $(cut -d' ' -f1 /proc/uptime)"
if [ -e /etc/smc-vm/shell ]; then
  stty -F /dev/ttyS1 sane $(cat /etc/smc-vm/shell)
  TERM=linux setsid -c /bin/sh -i < /dev/ttyS1 > /dev/ttyS1 2>&1
else
  setsid /bin/sh /etc/smc-vm/command < /dev/null > /dev/ttyS1 2>&1
fi
finish $?
