#!/usr/bin/env bash
# Builds a virtual machine with OpenZFS's kernel module, from Debian's packages alone.
#   scripts/judge-vm.sh DIR
# Needs root, about ten minutes and 4 GB. The machine is emulated in software, so it needs no
# virtualisation; it judges correctness and never speed. Afterwards
#   DIR/vm SHARE [MEMORY_MB]
# boots it in about 20 s with the directory SHARE as /host, runs SHARE/job.sh as root, and
# ends when that ends; its output is SHARE/job.log, the last line "job exit N". The machine
# keeps nothing but what the job writes below /host. VM_TIMEOUT (seconds) ends a job that hangs.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "judge-vm: building the machine needs root" >&2; exit 1; }
mkdir -p "$1"
where=$(cd "$1" && pwd)
root=$where/root
suite=trixie
export DEBIAN_FRONTEND=noninteractive

quiet() { "$@" >>"$where/build.log" 2>&1; }
step() { echo "judge-vm: $*"; }
: >"$where/build.log"
trap 'echo "judge-vm: failed; see $where/build.log" >&2' ERR

step "qemu and debootstrap"
quiet apt-get update
quiet apt-get install -y --no-install-recommends debootstrap qemu-system-x86
# The package source that this machine uses.
mirror=$(grep -hoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
	head -n 1 | tr -d ' ') || true # grep fails where one of the files is absent
[ -n "$mirror" ] || { echo "judge-vm: no Debian package source is configured here" >&2; exit 1; }

step "a Debian root"
rm -rf "$root"
quiet debootstrap --variant=minbase \
	--include=ca-certificates,kmod,udev,iproute2,procps,fuse3,gcc,make,perl,dkms,attr,acl \
	"$suite" "$root" "$mirror"
for line in "$suite main contrib" "$suite-backports main contrib"; do
	echo "deb $mirror $line"
done >"$root/etc/apt/sources.list"
cp /etc/resolv.conf "$root/etc/"
cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"

step "a kernel and OpenZFS's module (this takes the longest)"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
unmount() { umount -R "$root/proc" "$root/dev" 2>/dev/null || true; }
trap 'unmount; echo "judge-vm: failed; see $where/build.log" >&2' ERR
quiet chroot "$root" apt-get update
quiet chroot "$root" apt-get install -y --no-install-recommends \
	linux-image-amd64 linux-headers-amd64 initramfs-tools
quiet chroot "$root" apt-get install -y --no-install-recommends -t "$suite-backports" \
	zfs-dkms zfsutils-linux
unmount

cat >"$root/sbin/vm-init" <<'I'
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
for module in 9pnet_virtio 9p loop; do modprobe $module; done
ip link set lo up; hostname judge
mkdir -p /host; mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,access=any host /host
/lib/systemd/systemd-udevd --daemon 2>/dev/null
bash /host/job.sh >/host/job.log 2>&1; echo "job exit $?" >>/host/job.log
sync; echo o >/proc/sysrq-trigger; sleep 5
I
chmod +x "$root/sbin/vm-init"

step "the disk image"
rm -f "$where/root.img"
truncate -s 6G "$where/root.img"
quiet mkfs.ext4 -q -d "$root" "$where/root.img"
cp "$root"/boot/vmlinuz-* "$where/vmlinuz"
cp "$root"/boot/initrd.img-* "$where/initrd.img"
rm -rf "$root"
cat >"$where/vm" <<'V'
#!/bin/bash
# vm SHARE [MEMORY_MB]: see scripts/judge-vm.sh.
here=$(dirname "$(readlink -f "$0")")
share=$1 memory=${2:-4096}
exec timeout "${VM_TIMEOUT:-1800}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 \
	-m "$memory" -nographic -no-reboot -snapshot -nic none \
	-kernel "$here/vmlinuz" -initrd "$here/initrd.img" \
	-append "root=/dev/vda rw console=ttyS0 init=/sbin/vm-init quiet tsc=unstable" \
	-drive "file=$here/root.img,if=virtio,format=raw" \
	-virtfs "local,path=$share,mount_tag=host,security_model=none" \
	</dev/null >"$share/console.log" 2>&1
V
chmod +x "$where/vm"
step "done: $where/vm"
