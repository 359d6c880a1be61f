#!/usr/bin/env bash
# Mounts a pool that OpenZFS wrote on six disks, two of them damaged, and compares
# every file with what OpenZFS said was in it.
set -euo pipefail
cd "$(dirname "$0")/.."
cenote=$PWD/target/release/cenote
golden=$PWD/target/release/golden
work=$(mktemp -d)
export CENOTE_RUNTIME_DIR=$work/run
cleanup() {
	"$cenote" daemon stop >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap cleanup EXIT
step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ cenote %s\n' "$*"; "$cenote" "$@"; }

mkdir -p "$work/disks" "$work/mnt"
step "Six disks of a raidz2 pool written by OpenZFS 2.4; two get their data wiped."
"$golden" unpack graidz2w6 "$work/disks"
for disk in disk2 disk5; do
	dd if=/dev/zero of="$work/disks/$disk.img" bs=1M seek=4 count=123 conv=notrunc status=none
done
ls -s "$work/disks"

step "What can be imported?"
run zpool import -d "$work/disks"

if [ ! -e /dev/fuse ]; then
	step "No /dev/fuse here: reading without a mount."
	run tree "graidz2w6:/" -d "$work/disks" | head -n 12
	"$cenote" cp -r "graidz2w6:/" "$work/copy" -d "$work/disks"
	"$golden" verify graidz2w6 "$work/copy" --copied
	exit
fi

step "Import it read-only, below a directory of ours."
run zpool import -d "$work/disks" -o readonly=on -f -R "$work/mnt" graidz2w6
run zfs list
run zfs mount
ls -la "$work/mnt/graidz2w6" | head -n 14

step "Every file against OpenZFS's manifest: names, types, modes, owners, times, sizes, digests, attributes."
"$golden" verify graidz2w6 "$work/mnt/graidz2w6"

step "The two wiped disks are known by name; nothing was lost."
run zpool status graidz2w6
run zpool export graidz2w6
