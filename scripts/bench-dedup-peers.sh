#!/usr/bin/env bash
# Deduplicated writes through a mount, beside zfs-fuse (docs/benchmarks-pools.md).
#
#   scripts/bench-dedup-peers.sh [SIZE [ROUNDS]]   40M (10,000 records of 4 KiB), 3
#
# For each of cenote and zfs-fuse, in turns, on a new pool with records of 4 KiB and without
# compression: SIZE of noise is written to a file without and one with `dedup=on`, then the same
# bytes to a second one with it, and both are deleted. Each figure is a line of JSON in
# $RUNS/DATE-dedup-peers[-TAG].json: system, what, seconds until everything is on the disk, and
# the seconds of processor that the file system's process took meanwhile.
#
# CENOTE names the binary, PEER the directory of zfs-fuse's programs, DIR a directory on a disk.
# Needs root and FUSE.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
: "${CENOTE:=${CARGO_TARGET_DIR:-target}/release/cenote}"
: "${PEER:=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse/sbin}"
: "${DIR:=${TMPDIR:-/var/tmp}}"
: "${RUNS:=$root/benches/results/raw}"
: "${TAG:=}"
die() { echo "bench-dedup-peers: $*" >&2; exit 1; }
size=$(numfmt --from=iec "${1:-40M}" 2>/dev/null) || die "'$1' is no size"
rounds=${2:-3}
[ "$(id -u)" = 0 ] || { echo "SKIPPED: needs root" && exit 0; }
[ -x "$PEER/zfs-fuse" ] || { echo "SKIPPED: zfs-fuse is absent" && exit 0; }
! pgrep -r R,S,D -x zfs-fuse >/dev/null || die "another zfs-fuse runs"

WRITTEN=1
. scripts/disk-file.sh
work=$(mktemp -d "$DIR/cenote-peers.XXXXXX") || exit 1
export CENOTE_RUNTIME_DIR=$work/run
peer=
cleanup() {
	cd /
	timeout 60 "$CENOTE" daemon stop -f >/dev/null 2>&1
	if [ -n "$peer" ]; then
		timeout 60 "$PEER/zpool" destroy -f dedupbench >/dev/null 2>&1
		kill "$peer" 2>/dev/null
		for _ in $(seq 50); do pgrep -r R,S,D -x zfs-fuse >/dev/null && sleep 0.2 || break; done
	fi
	umount -l "$work/mnt" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT
mkdir -p "$RUNS" "$work/mnt"
out=$RUNS/$(date +%F)-dedup-peers${TAG:+-$TAG}.json
head -c "$size" /dev/urandom >"$work/noise"

processor() { awk '{ sub(/.*\) /, ""); print ($12 + $13) / 100 }' "/proc/$1/stat"; }
# SYSTEM PID WHAT COMMAND...
measure() {
	local system=$1 pid=$2 what=$3 cpu began
	shift 3
	cpu=$(processor "$pid") began=$(date +%s.%N)
	"$@" || die "$system: $what failed"
	printf '{"system": "%s", "what": "%s", "bytes": %s, "seconds": %s, "processor": %s}\n' "$system" "$what" "$size" \
		"$(echo "$(date +%s.%N) - $began" | bc)" "$(echo "$(processor "$pid") - $cpu" | bc)" | tee -a "$out"
}
# SYSTEM PID ZFS ZPOOL: the measured steps on the pool that is mounted at $work/mnt.
steps() {
	local system=$1 pid=$2 zfs=$3 zpool=$4 at=$work/mnt
	on_disk() { sync -f "$at/off" && sync -f "$at/on"; }
	write() { dd if="$work/noise" of="$1" bs=128k status=none conv=fsync && on_disk; }
	for dedup in off on; do "$zfs" create -o recordsize=4k -o compression=off -o dedup=$dedup "dedupbench/$dedup" || return 1; done
	measure "$system" "$pid" off write "$at/off/unique"
	measure "$system" "$pid" unique write "$at/on/unique"
	measure "$system" "$pid" duplicate write "$at/on/duplicate"
	gone() { rm "$at/on/unique" "$at/on/duplicate" && on_disk; }
	measure "$system" "$pid" deleted gone
}
ours() { "$CENOTE" "$@"; }
ours_zfs() { ours zfs "$@"; }
ours_zpool() { ours zpool "$@"; }
for _ in $(seq "$rounds"); do
	disk_file "$work/ours.img" $((size * 4 / 1048576 + 1024))
	ours zpool create -O mountpoint="$work/mnt" dedupbench "$work/ours.img" || exit 1
	steps cenote "$(pgrep -n -f "$CENOTE daemon")" ours_zfs ours_zpool || exit 1
	ours zpool destroy dedupbench && ours daemon stop -f >/dev/null
	mkdir -p /var/run/zfs /var/lib/zfs
	"$PEER/zfs-fuse" --no-daemon >/dev/null 2>&1 &
	peer=$!
	for _ in 1 2 3 4 5; do "$PEER/zpool" list >/dev/null 2>&1 && break || sleep 1; done
	disk_file "$work/peer.img" $((size * 4 / 1048576 + 1024))
	"$PEER/zpool" create -f -m "$work/mnt" dedupbench "$work/peer.img" || exit 1
	steps zfs-fuse "$peer" "$PEER/zfs" "$PEER/zpool" || exit 1
	# Its unmounting takes a while.
	for _ in $(seq 50); do "$PEER/zpool" destroy -f dedupbench 2>/dev/null && break || sleep 0.2; done
	kill "$peer" && wait "$peer" 2>/dev/null
	peer=
done
