#!/usr/bin/env bash
# Mounts a pool that OpenZFS wrote on six disks, two of them damaged, and compares
# every file with what OpenZFS said was in it.
set -euo pipefail
cd "$(dirname "$0")/.."
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

step "Done: export."
run zpool export graidz2w6
run zpool list
