#!/usr/bin/env bash
# Mounts a pool that OpenZFS wrote on six disks, two of them damaged, and compares every
# file with what OpenZFS said was in it. Then makes a pool, lives in it, and has OpenZFS's
# zdb look at it; last, the simulator cuts the power.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh
bin=${CARGO_TARGET_DIR:-target}/release
bin=$(cd "$bin" && pwd)
cenote=$bin/cenote
golden=$bin/golden
work=$(mktemp -d)
export CENOTE_RUNTIME_DIR=$work/run
cleanup() {
	if [ -d "$CENOTE_RUNTIME_DIR" ]; then "$cenote" daemon stop -f >/dev/null 2>&1 || true; fi
	rm -rf "$work"
}
trap cleanup EXIT
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
step() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
run() {
	printf '$ cenote %s\n' "$*"
	"$cenote" "$@" 2>&1
}

mkdir -p "$work/disks" "$work/mnt"
step "Six disks of a raidz2 pool written by OpenZFS 2.4; the data on two of them is wiped."
"$golden" unpack graidz2w6 "$work/disks"
for disk in disk2 disk5; do
	dd if=/dev/zero of="$work/disks/$disk.img" bs=1M seek=4 count=123 conv=notrunc status=none
done
(cd "$work/disks" && ls -lh --time-style=+ ./*.img)

step "What can be imported?"
run zpool import -d "$work/disks"

# Reading other users' files, and restoring owners, takes root.
mountable=yes
[ -e /dev/fuse ] || mountable="there is no /dev/fuse here"
[ "$(id -u)" = 0 ] || mountable="only root may read files of every owner and mode"
[ -e /dev/fuse ] || skip fuse "the demonstration of mounts: $mountable"
[ "$(id -u)" = 0 ] || skip root "the demonstration of mounts: $mountable"
if [ "$mountable" != yes ]; then
	step "Reading without a mount: $mountable."
	run ls -l graidz2w6:/ -d "$work/disks"
	run ls -l graidz2w6:/special -d "$work/disks"
	if [ "$(id -u)" != 0 ]; then exit; fi
	copy=$work/copy
	# Large extended attributes need a file system that holds them.
	if [ -d /dev/shm ]; then copy=$(mktemp -d /dev/shm/cenote-demo-XXXXXX)/copy; fi
	trap 'rm -rf "${copy%/copy}"; cleanup' EXIT
	run cp -r graidz2w6:/ "$copy" -d "$work/disks"
	step "Every copied file against OpenZFS's manifest."
	"$golden" verify graidz2w6 "$copy" --copied
	exit
fi

step "Import it read-only, below a directory of ours."
run zpool import -d "$work/disks" -o readonly=on -f -R "$work/mnt" graidz2w6
run zfs list
run zfs mount
echo "$ ls -l $work/mnt/graidz2w6"
ls -l "$work/mnt/graidz2w6"

step "Every file against OpenZFS's manifest: names, types, modes, owners, times, sizes, digests, attributes."
"$golden" verify graidz2w6 "$work/mnt/graidz2w6"

step "The wiped disks are known by name; nothing was lost."
run zpool status graidz2w6

run zpool export graidz2w6

step "A pool of our own: two mirrored files, a file system with small records."
for disk in 1 2; do truncate -s 512M "$work/disks/own$disk.img"; done
run zpool create -O compression=zstd -R "$work/mnt" own mirror "$work"/disks/own[12].img
run zfs create -o recordsize=16K own/db
tree=$work/mnt/own
cp -a crates "$tree/"
dd if=/dev/urandom of="$tree/db/table" bs=1M count=64 conv=fsync status=none
sum() { (cd "$1" && find crates -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }
before=$(sum .)
run zfs snapshot -r own@before
rm -r "$tree/crates"
run zfs list -t all -r own
[ "$(sum "$tree/.zfs/snapshot/before")" = "$before" ]
echo "the removed tree is whole in the snapshot: $(find "$tree/.zfs/snapshot/before" -type f | wc -l) files, digests equal"
run zpool status own
run zpool export own
if command -v zdb >/dev/null 2>&1; then
	echo "$ zdb -e -p $work/disks -bcc own"
	zdb -e -p "$work/disks" -bcc own 2>/dev/null | grep -aE 'leak|bp (count|logical|physical|allocated):'
else
	skip zdb "OpenZFS's zdb is not installed (make tools)"
fi

step "Power cuts: the same engine over simulated disks, each image imported, audited and compared."
run sim --seed 1 --runs 3

step "Done."
run zpool list
