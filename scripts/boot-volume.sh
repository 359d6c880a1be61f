#!/usr/bin/env bash
# Boots a Debian machine from a volume over NBD, cuts it off together with the daemon while it
# makes synchronous writes, and boots it again: every file that was acknowledged must be there.
#   scripts/boot-volume.sh
# The machine is that of scripts/judge-vm.sh. CENOTE_JUDGE names its directory (default:
# target/judge; built when absent). Needs root, /dev/fuse, qemu, nbdcopy, and about three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
cenote=${CENOTE:-${CARGO_TARGET_DIR:-target}/release/cenote}
machine=${CENOTE_JUDGE:-target/judge}
[ "$(id -u)" = 0 ] || { echo "boot-volume: needs root" >&2; exit 1; }
[ -x "$cenote" ] || { echo "boot-volume: $cenote is missing (make build)" >&2; exit 1; }
cenote=$(readlink -f "$cenote")
[ -x "$machine/vm" ] || scripts/judge-vm.sh "$machine"
machine=$(readlink -f "$machine")

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}" cenote-boot-XXXXXX)
share=$work/share
mkdir "$share" "$work/disks" "$work/state" "$work/run"
export CENOTE_RUNTIME_DIR=$work/run CENOTE_STATE_DIR=$work/state
daemon_pid() { "$cenote" daemon status | grep -oE 'pid:? *[0-9]+' | grep -oE '[0-9]+' | head -n 1; }
cleanup() {
	[ -z "${qemu:-}" ] || kill -9 "$qemu" 2>/dev/null || true
	"$cenote" daemon stop -f >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap cleanup EXIT
boot() {
	exec timeout 900 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1500 \
		-nographic -no-reboot -nic none -kernel "$machine/vmlinuz" -initrd "$machine/initrd.img" \
		-append "root=/dev/vda rw console=ttyS0 init=/sbin/vm-init quiet tsc=unstable" \
		-drive "file=nbd:unix:$work/run/nbd:exportname=boot/root,if=virtio,format=raw,cache=none" \
		-virtfs "local,path=$share,mount_tag=host,security_model=none" \
		</dev/null >"$share/console.log" 2>&1
}

truncate -s 3G "$work/disks/1" "$work/disks/2"
"$cenote" zpool create -O mountpoint=none boot mirror "$work/disks/1" "$work/disks/2"
"$cenote" zfs create -s -V "$(stat -c %s "$machine/root.img")" -b 16K boot/root
nbdcopy "$machine/root.img" "nbd+unix:///boot/root?socket=$work/run/nbd"
"$cenote" zfs snapshot boot/root@installed

cat >"$share/job.sh" <<'J'
mkdir /var/written
for n in $(seq 100000); do
	head -c 20000 /dev/urandom >/var/written/$n
	sync /var/written/$n && sha256sum /var/written/$n >>/host/sums
done
J
boot &
qemu=$!
for ((n = 0; n < 600; n++)); do
	[ "$(cat "$share/sums" 2>/dev/null | wc -l)" -gt 150 ] && break
	sleep 1
done
pkill -9 -P "$qemu"
kill -9 "$(daemon_pid)"
wait "$qemu" 2>/dev/null || true
qemu=
echo "cut off after $(wc -l <"$share/sums") files"

"$cenote" daemon start >/dev/null
"$cenote" zpool list -H -o name boot >/dev/null 2>&1 || "$cenote" zpool import -f -d "$work/disks" boot
cat >"$share/job.sh" <<'J'
# The last line may be torn: it comes after the acknowledgement.
head -n -1 /host/sums | sha256sum -c --quiet && echo "all sums are right"
J
(boot)
grep 'all sums are right' "$share/job.log"
"$cenote" zpool export boot
zdb -e -p "$work/disks" -bcc boot >"$work/zdb.txt" 2>&1 && grep 'No leaks' "$work/zdb.txt"
