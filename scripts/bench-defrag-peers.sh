#!/usr/bin/env bash
# What people do about a scattered file today, beside `zpool defrag` (docs/benchmarks-pools.md).
#
#   scripts/bench-defrag-peers.sh [SIZE [SNAPSHOTS [PART...]]]   1G, 10, all: btrfs cenote judge
#
# The workload is that of `cenote bench defrag`: a file of SIZE is written in order, in records of
# 8 KiB, and overwritten at random, 200 % in all, with a snapshot before each of SNAPSHOTS rounds.
# Places and content come from fixed seeds and are the same in every part. Then:
#
#   btrfs   on a loop device: `btrfs filesystem defragment -r -f`, and on a copy of the same image
#           `btrfs balance start --full-balance`
#   cenote  `zfs send -R` into `zfs receive` of a new pool; then `zpool defrag` of the first
#           pool, by the commands and through the mount, as the others are used
#   judge   `zfs rewrite` and `zfs rewrite -P` of OpenZFS in the virtual machine of
#           scripts/judge-vm.sh, on copies of one pool. It is emulated, so it has no times, and the
#           file has JUDGE_SIZE (256M)
#
# Each figure is a line of JSON in $RUNS/DATE-defrag-peers[-TAG].json: system, state, figure,
# value. `read` is the rate of one cold read in order with dd, the kernel's caches dropped (and the pool
# imported anew), in bytes a second. `used` is in bytes: of btrfs all that its block groups hold,
# copies of metadata included; of a pool its property `allocated`. `extents` are those of filefrag.
# `score` is Cenote's layout score. `seconds` end when everything is on the disk.
#
# CENOTE names the binary, DIR a directory on a disk with room for eight times SIZE and 6 GiB,
# CENOTE_JUDGE the machine's directory. Needs root, loop devices, FUSE, btrfs-progs and perl.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
size=${1:-1G} snapshots=${2:-10}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- btrfs cenote judge
: "${CENOTE:=${CARGO_TARGET_DIR:-target}/release/cenote}"
: "${DIR:=${TMPDIR:-/var/tmp}}"
: "${RUNS:=$root/benches/results/raw}"
: "${TAG:=}"
: "${JUDGE_SIZE:=256M}"
: "${CENOTE_JUDGE:=target/judge}"
. scripts/need.sh
WRITTEN=1
. scripts/disk-file.sh
die() { echo "bench-defrag-peers: $*" >&2; exit 1; }
bytes_of() { numfmt --from=iec "$1" 2>/dev/null || die "'$1' is no size"; }
size=$(bytes_of "$size") && judge_size=$(bytes_of "$JUDGE_SIZE") || exit 1
case $snapshots in '' | *[!0-9]* | 0) die "'$snapshots' is no number of snapshots" ;; esac
[ "$(id -u)" = 0 ] || { skip root "needs root"; exit 0; }
command -v perl >/dev/null || { skip programs "perl is not installed"; exit 0; }

RECORD=8192
OVERWRITE=200 # percent
work=$(mktemp -d "$DIR/cenote-peers.XXXXXX") || exit 1
chmod 755 "$work"
export CENOTE_RUNTIME_DIR=$work/run
mounted=
cleanup() {
	cd /
	[ -z "$mounted" ] || umount "$mounted"
	if [ -e "$CENOTE_RUNTIME_DIR" ]; then "$CENOTE" daemon stop -f >/dev/null 2>&1; fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir -p "$RUNS"
out=$RUNS/$(date +%F)-defrag-peers${TAG:+-$TAG}.json
# Room for all versions of the records, a whole second copy, and more.
mib=$((size / 1048576 * 6 + 2048))

# figure SYSTEM STATE NAME VALUE: one line; a value that is no number is a failure.
figure() {
	[[ "$4" =~ ^-?[0-9]+([.][0-9]+)?$ ]] || die "$1, $2: no figure '$3': '$4'"
	printf '{"system": "%s", "state": "%s", "figure": "%s", "value": %s}\n' "$@" | tee -a "$out" "$work/figures" >/dev/null
	echo "$1, $2: $3 $4"
}
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.3f", b - a}'; }
drop_caches() { sync && echo 3 >/proc/sys/vm/drop_caches; }
# read_rate FILE: bytes a second of a read in order; the caller has dropped the caches.
read_rate() {
	local begin
	begin=$(now)
	dd if="$1" of=/dev/null bs=1M status=none || return 1
	awk -v a="$begin" -v b="$(now)" -v n="$size" 'BEGIN {printf "%.0f", n / (b - a)}'
}

# The workload's writes: `FILE BYTES fill`, or `FILE BYTES COUNT SEED` for overwrites.
cat >"$work/write.pl" <<'P'
use strict;
use warnings;
my ($path, $size, $count, $seed) = @ARGV;
my $record = 8192;
my $fill = $count eq 'fill';
srand($fill ? 5 : 1000 + $seed);
# Content that does not compress: pieces of a noise, each with a number of its own.
my $noise = pack 'L*', map { int rand 4294967296 } 1 .. 1 << 18;
sub content { return pack('Q<', $_[0]) . substr($noise, 8 * int rand 65536, $record - 8) }
open my $file, $fill ? '>' : '+<', $path or die "$path: $!\n";
binmode $file;
my $records = int($size / $record);
my $number = $fill ? 0 : ($seed << 32);
for my $n (0 .. ($fill ? $records : $count) - 1) {
	my $at = $fill ? $n : int rand $records;
	sysseek $file, $at * $record, 0 or die "$path: $!\n";
	my $data = content($number + $n + 1);
	(syswrite($file, $data) // 0) == $record or die "$path: $!\n";
}
close $file or die "$path: $!\n";
P
# Overwrites of a round of a file of that many bytes.
each_round() { echo $(($1 / RECORD * OVERWRITE / 100 / snapshots)); }

# The figures of a mounted btrfs: image, subvolume.
btrfs_figures() {
	local image=$1 state=$2 file=$work/btrfs/head/file
	sync -f "$work/btrfs"
	figure btrfs "$state" used "$(btrfs filesystem usage -b "$work/btrfs" | awk '$1 == "Used:" {print $2; exit}')"
	figure btrfs "$state" data "$(btrfs filesystem df -b "$work/btrfs" | sed -n 's/^Data,.*used=//p')"
	figure btrfs "$state" extents "$(filefrag "$file" | sed -n 's/.*: \([0-9]*\) extents\{0,1\} found.*/\1/p')"
	# Mounted anew, so that nothing is left in memory.
	btrfs_down && btrfs_up "$image" || return 1
	drop_caches
	figure btrfs "$state" read "$(read_rate "$file")"
}
btrfs_up() {
	mkdir -p "$work/btrfs"
	# The image that had the same identity is gone.
	btrfs device scan --forget >/dev/null 2>&1
	loop=$(losetup --find --show --direct-io=on "$1") || return 1
	if ! mount -o noatime "$loop" "$work/btrfs"; then
		losetup -d "$loop"
		return 1
	fi
	# The device ends with the mount.
	losetup -d "$loop"
	mounted=$work/btrfs
}
btrfs_down() { umount "$work/btrfs" && mounted=; }

part_btrfs() {
	local n begin image=$work/btrfs.img
	for n in mkfs.btrfs btrfs filefrag losetup; do
		command -v "$n" >/dev/null || { skip programs "$n is not installed"; return 0; }
	done
	disk_file "$image" "$mib" && mkfs.btrfs -q "$image" || return 1
	btrfs_up "$image" || { skip btrfs "a btrfs on a loop device cannot be mounted here"; return 0; }
	btrfs subvolume create "$work/btrfs/head" >/dev/null && mkdir "$work/btrfs/snapshots" || return 1
	perl "$work/write.pl" "$work/btrfs/head/file" "$size" fill || return 1
	btrfs_figures "$image" fresh || return 1
	for ((n = 0; n < snapshots; n++)); do
		btrfs subvolume snapshot -r "$work/btrfs/head" "$work/btrfs/snapshots/s$n" >/dev/null || return 1
		perl "$work/write.pl" "$work/btrfs/head/file" "$size" "$(each_round "$size")" "$n" || return 1
		sync -f "$work/btrfs"
	done
	btrfs_figures "$image" before && btrfs_down || return 1
	cp --reflink=never --sparse=never "$image" "$work/copy.img" || return 1
	for n in defragment balance; do
		btrfs_up "$image" || return 1
		drop_caches
		begin=$(now)
		case $n in
		defragment) btrfs filesystem defragment -r -f "$work/btrfs/head" >/dev/null || return 1 ;;
		balance) btrfs balance start --full-balance "$work/btrfs" >/dev/null || return 1 ;;
		esac
		sync -f "$work/btrfs"
		figure btrfs "$n" seconds "$(since "$begin")"
		btrfs_figures "$image" "$n" && btrfs_down || return 1
		rm -f "$image"
		image=$work/copy.img
	done
	rm -f "$work/copy.img"
}

zpool() { "$CENOTE" zpool "$@"; }
zfs() { "$CENOTE" zfs "$@"; }
# fresh_import POOL: exports it and imports it, nothing of it in memory.
fresh_import() {
	zpool export "$1" && drop_caches && zpool import -d "$work/pools" "$1"
}
# The figures of a pool with a file: pool, state, file system.
pool_figures() {
	local file=$work/mnt/$3/file n
	# What was freed is free three txgs later.
	for n in 1 2 3; do zpool sync "$1" || return 1; done
	fresh_import "$1" || return 1
	figure cenote "$2" read "$(read_rate "$file")"
	figure cenote "$2" used "$(zpool get -Hpo value allocated "$1")"
	figure cenote "$2" score "$(zpool defrag -n "$1" | sed -n 's/^layout score of all files: *//p')"
}

part_cenote() {
	local n begin
	[ -e /dev/fuse ] || { skip fuse "/dev/fuse is absent"; return 0; }
	[ -x "$CENOTE" ] || die "$CENOTE is missing (make build)"
	CENOTE=$(readlink -f "$CENOTE")
	mkdir -p "$work/pools" "$work/mnt"
	disk_file "$work/pools/one" "$mib" && disk_file "$work/pools/two" "$mib" || return 1
	# The settings of `cenote bench defrag`.
	zpool create -o ashift=12 -O mountpoint=none one "$work/pools/one" || return 1
	zfs create -o recordsize=8k -o compression=off -o mountpoint="$work/mnt/one" one/fs || return 1
	mkdir -p "$work/mnt"
	perl "$work/write.pl" "$work/mnt/one/file" "$size" fill || return 1
	pool_figures one fresh one || return 1
	for ((n = 0; n < snapshots; n++)); do
		zfs snapshot "one/fs@s$n" || return 1
		perl "$work/write.pl" "$work/mnt/one/file" "$size" "$(each_round "$size")" "$n" || return 1
		zpool sync one || return 1
	done
	zfs snapshot one/fs@last && pool_figures one before one || return 1
	zpool create -o ashift=12 -O mountpoint=none two "$work/pools/two" || return 1
	drop_caches
	begin=$(now)
	zfs send -R one/fs@last | zfs receive -u two/fs || return 1
	zpool sync two || return 1
	figure cenote received seconds "$(since "$begin")"
	zfs set mountpoint="$work/mnt/two" two/fs && zfs mount two/fs 2>/dev/null
	pool_figures two received two || return 1
	zfs get -Hpo value used one/fs two/fs | paste -sd' ' | sed 's/^/datasets use /'
	cmp "$work/mnt/one/file" "$work/mnt/two/file" || return 1
	zpool destroy two || return 1
	fresh_import one || return 1
	begin=$(now)
	zpool defrag -w one && zpool sync one || return 1
	figure cenote defragmented seconds "$(since "$begin")"
	pool_figures one defragmented one || return 1
	zpool export one && "$CENOTE" daemon stop >/dev/null
	rm -rf "$work/pools"
}

# boot MACHINE SHARE: runs the job. On a busy host the emulated timer may fail before the job begins.
boot() {
	local attempt n vm
	for attempt in 1 2 3; do
		rm -f "$2/job.log"
		VM_TIMEOUT=${VM_TIMEOUT:-3600} "$1/vm" "$2" 4096 &
		vm=$!
		for ((n = 0; n < 180; n++)); do
			[ -e "$2/job.log" ] && { wait "$vm"; return 0; }
			kill -0 "$vm" 2>/dev/null || break
			sleep 1
		done
		kill "$vm" 2>/dev/null
		wait "$vm"
		echo "the machine did not boot, attempt $attempt" >&2
	done
	return 1
}

part_judge() {
	local machine share=$work/share line system state name value
	[ -x "$CENOTE_JUDGE/vm" ] || { skip judge "there is no machine in $CENOTE_JUDGE (scripts/judge-vm.sh)"; return 0; }
	machine=$(readlink -f "$CENOTE_JUDGE")
	mkdir -p "$share/rewrite" "$share/physical"
	cp "$work/write.pl" "$share/"
	truncate -s "$((judge_size / 1048576 * 4 + 512))M" "$share/rewrite/pool"
	cat >"$share/job.sh" <<J
size=$judge_size snapshots=$snapshots each=$(each_round "$judge_size")
J
	cat >>"$share/job.sh" <<'J'
modprobe zfs || exit 1
echo "OpenZFS $(cat /sys/module/zfs/version)"
say() { echo "FIGURE openzfs $*"; }
figures() {
	zpool sync tank && zpool wait -t free tank && zpool sync tank && zpool sync tank && zpool sync tank || exit 1
	say "$1 used $(zpool get -Hpo value allocated tank)"
	say "$1 referenced $(zfs get -Hpo value referenced tank/fs)"
	say "$1 snapshots $(zfs get -Hpo value usedbysnapshots tank/fs)"
}
zpool create -o ashift=12 -O mountpoint=none tank /host/rewrite/pool || exit 1
zfs create -o recordsize=8k -o compression=off -o atime=off -o mountpoint=/tank tank/fs || exit 1
perl /host/write.pl /tank/file $size fill || exit 1
figures fresh
for n in $(seq 0 $((snapshots - 1))); do
	zfs snapshot tank/fs@s$n || exit 1
	perl /host/write.pl /tank/file $size $each $n || exit 1
	zpool sync tank || exit 1
done
figures before
sum=$(sha256sum </tank/file)
# In large pieces: each request to the host takes long.
zpool export tank && dd if=/host/rewrite/pool of=/host/physical/pool bs=4M conv=sparse status=none || exit 1
for how in rewrite physical; do
	zpool import -d /host/$how tank || exit 1
	words=
	[ $how = rewrite ] || words=-P
	if zfs rewrite $words -r /tank; then
		figures $how
		[ "$(sha256sum </tank/file)" = "$sum" ] || { echo "the file differs"; exit 1; }
	else
		echo "no zfs rewrite $words"
	fi
	zpool export tank || exit 1
done
J
	boot "$machine" "$share" || return 1
	sed -n '/^OpenZFS/p; /^no zfs rewrite/p' "$share/job.log"
	grep -q '^job exit 0$' "$share/job.log" || { tail -5 "$share/job.log" >&2; return 1; }
	while read -r line system state name value; do
		[ "$line" != FIGURE ] || figure "$system" "$state" "$name" "$value"
	done <"$share/job.log"
}

: >"$work/figures"
printf '{"system": "all", "state": "settings", "date": "%s", "size": %s, "judge_size": %s, "snapshots": %s, "record": %s, "overwritten_percent": %s, "build": "%s", "kernel": "%s"}\n' \
	"$(date -u +%FT%TZ)" "$size" "$judge_size" "$snapshots" $RECORD $OVERWRITE \
	"$(git describe --always --dirty 2>/dev/null)" "$(uname -r)" >>"$out"
bad=0
for part in "$@"; do
	case $part in
	btrfs | cenote | judge) "part_$part" || { echo "bench-defrag-peers: $part failed" >&2; bad=1; } ;;
	*) die "no part '$part'" ;;
	esac
done

# The table: a line for each system and state.
echo
awk -F'"' '
	{ value = $0; sub(/.*"value": /, "", value); sub(/}.*/, "", value)
	  key = $4 SUBSEP $8; if (!(key in seen)) { seen[key] = 1; order[++n] = key }
	  of[key, $12] = value }
	function mb(v) { return v == "" ? "-" : sprintf("%.1f", v / 1e6) }
	function plain(v) { return v == "" ? "-" : v }
	END {
		line = "%-8s %-13s %9s %12s %11s %9s %6s %14s %13s\n"
		printf line, "SYSTEM", "STATE", "SECONDS", "USED MB", "READ MB/s", "EXTENTS", "SCORE", "REFERENCED MB", "SNAPSHOTS MB"
		for (i = 1; i <= n; i++) {
			split(order[i], k, SUBSEP); key = order[i]
			printf line, k[1], k[2], plain(of[key, "seconds"]), mb(of[key, "used"]), mb(of[key, "read"]), plain(of[key, "extents"]), plain(of[key, "score"]), mb(of[key, "referenced"]), mb(of[key, "snapshots"])
		}
	}' "$work/figures"
echo "figures: $out"
exit $bad
