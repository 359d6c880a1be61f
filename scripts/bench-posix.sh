#!/usr/bin/env bash
# A mounted pool against zfs-fuse, ext4 and btrfs in files of the same disk, in alternation
# (docs/benchmarks.md, "A mounted file system").
#
#   scripts/bench-posix.sh run CELL...    appends ROUNDS rounds of each to the raw files
#   scripts/bench-posix.sh table CELL...  medians and ranges; ratios are taken inside a round
#
# Cells: bulk random tree read checkout null. Raw lines are "CELL TURN WHO WHAT NUMBER" in
# benches/results/raw/DATE-posix-CELL[-TAG].txt; several runs of one day add up. Needs root, fio,
# mkfs of the peers; zfs-fuse (PEER, its directory of programs) is left out where it is
# absent. CHECKOUT is "REPOSITORY REVISION REVISION", its objects outside of what is
# measured. OPTIONS are mount options of Cenote's pools (noio_uring unless given). WHO may
# also name `uring`: a second pool in the same rounds, mounted over io_uring; and `memory` and
# `memory-uring`: a file system that keeps everything in memory and does nothing else, behind
# Cenote's transports and mounted as Cenote mounts: what the transport lets anybody have. It
# is MEMFS (cargo build --release -p fuse --example memfs), with MEMFS_OPTIONS. FILL is a file
# that fills the page cache before each round, so that memory comes from there, as on a machine
# that has run for a while: a virtual machine may have given free memory back to its host, and
# then the first use of it is what is measured. The disks' files are written before, all of
# them: in a file that has holes each write is the file system's below, which finds it a place.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
: "${CENOTE:=$root/target/release/cenote}"
: "${TREE:=$root/target/release/examples/tree}"
: "${MEMFS:=$root/target/release/examples/memfs}"
: "${PEER:=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse/sbin}"
: "${DIR:=${TMPDIR:-/tmp}}"
: "${RUNS:=$root/benches/results/raw}"
: "${ROUNDS:=7}"
: "${FILES:=100000}"
: "${MIB:=6144}"
: "${WHO:=cenote zfs-fuse ext4 btrfs}"
: "${CHECKOUT:=}"
: "${OPTIONS:=noio_uring}"
: "${TAG:=}"
: "${FILL:=}"

raw() { echo "$RUNS/$(date +%F)-posix-$1${TAG:+-$TAG}.txt"; }

# Median and range of each number, and of the ratios to Cenote's inside a round.
table() {
	awk '
	function show(name, list, n,   i, j, t) {
		for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j] < list[j-1]; j--) { t = list[j]; list[j] = list[j-1]; list[j-1] = t }
		t = n % 2 ? list[(n+1)/2] : (list[n/2] + list[n/2+1]) / 2
		printf "| %s | %.4g | %.4g–%.4g | %d |\n", name, t, list[1], list[n], n
	}
	/^#/ { next }
	{ k = $4 SUBSEP $3; if (!(k in n)) order[++m] = k; v[k, ++n[k]] = $5; at[$4, $3, $2] = $5; round[$2] = 1 }
	END {
		for (i = 1; i <= m; i++) {
			split(order[i], p, SUBSEP)
			for (j = 1; j <= n[order[i]]; j++) list[j] = v[order[i], j]
			show(p[1] ", " p[2], list, n[order[i]])
			if (p[2] == "cenote") continue
			c = 0
			for (t in round) if (((p[1], "cenote", t) in at) && ((p[1], p[2], t) in at)) list[++c] = at[p[1], "cenote", t] / at[p[1], p[2], t]
			if (c) show("**cenote / " p[2] "**", list, c)
		}
	}' "$1"
}

if [ "${1:-}" = table ]; then
	shift
	for cell in "$@"; do table "$(raw "$cell")"; done
	exit
fi
[ "${1:-}" = run ] && shift || { echo "usage: $0 run|table CELL..." >&2 && exit 2; }
[ "$(id -u)" = 0 ] || { echo "SKIPPED: needs root" && exit 0; }

work=$(mktemp -d "$DIR/cenote-bench.XXXXXX")
export CENOTE_RUNTIME_DIR=$work/run
zfs_fuse=
memory=
cleanup() {
	cd /
	timeout 60 "$CENOTE" daemon stop -f >/dev/null 2>&1
	if [ -n "$zfs_fuse" ]; then
		timeout 60 "$PEER/zpool" destroy -f benchpeer >/dev/null 2>&1
		kill "$zfs_fuse" 2>/dev/null
		for _ in $(seq 50); do pgrep -r R,S,D -x zfs-fuse >/dev/null && sleep 0.2 || break; done
		kill -KILL "$zfs_fuse" 2>/dev/null
	fi
	for fs in cenote uring memory memory-uring zfs-fuse ext4 btrfs; do umount -l "$work/$fs" 2>/dev/null; done
	[ -z "$memory" ] || kill $memory 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT

WRITTEN=1
. "$root/scripts/disk-file.sh"

# A pool of ours: WHERE POOL MOUNT-OPTIONS
mount_ours() {
	mkdir -p "$work/$1" "$work/disks"
	disk_file "$work/disks/$2" "$MIB"
	"$CENOTE" zpool create ${PROPS:-} -O mountpoint="$work/$1" "$2" "$work/disks/$2" || return 1
	[ -z "$3" ] || { "$CENOTE" zfs unmount "$2" && "$CENOTE" zfs mount -o "$3" "$2"; }
}
mount_cenote() { mount_ours cenote benchours "$OPTIONS"; }
has_uring() {
	grep -q '[Y1]' /sys/module/fuse/parameters/enable_uring 2>/dev/null ||
		{ echo "SKIPPED: fuse.enable_uring is off" && return 1; }
}
mount_uring() { has_uring && mount_ours uring benchuring io_uring; }
# The transport alone: WHERE TRANSPORT
mount_in_memory() {
	[ -x "$MEMFS" ] || { echo "SKIPPED: memfs is absent" && return 1; }
	mkdir -p "$work/$1"
	"$MEMFS" "$work/$1" --transport "$2" ${MEMFS_OPTIONS:-} >/dev/null &
	memory+=" $!"
	for _ in $(seq 50); do mountpoint -q "$work/$1" && return || sleep 0.1; done
	echo "SKIPPED: memfs does not mount" && return 1
}
mount_memory() { mount_in_memory memory dev; }
mount_memory-uring() { has_uring && mount_in_memory memory-uring uring; }
mount_zfs-fuse() {
	[ -x "$PEER/zfs-fuse" ] || { echo "SKIPPED: zfs-fuse is absent" && return 1; }
	! pgrep -r R,S,D -x zfs-fuse >/dev/null || { echo "SKIPPED: another zfs-fuse runs" && return 1; }
	mkdir -p /var/run/zfs /var/lib/zfs "$work/zfs-fuse"
	"$PEER/zfs-fuse" --no-daemon >/dev/null 2>&1 &
	zfs_fuse=$!
	for _ in 1 2 3 4 5; do "$PEER/zpool" list >/dev/null 2>&1 && break || sleep 1; done
	# One that a run left behind.
	"$PEER/zpool" destroy -f benchpeer 2>/dev/null
	disk_file "$work/zfs-fuse.img" "$MIB"
	"$PEER/zpool" create -f ${PROPS:-} -m "$work/zfs-fuse" benchpeer "$work/zfs-fuse.img"
}
# One of the kernel's: NAME OPTION, the one of mkfs that leaves the file without holes.
mount_disk() {
	mkdir -p "$work/$1"
	disk_file "$work/$1.img" "$MIB"
	"mkfs.$1" -q $2 "$work/$1.img" && mount -o loop,nodiscard "$work/$1.img" "$work/$1"
}
mount_ext4() { mount_disk ext4 "-E nodiscard"; }
mount_btrfs() { mount_disk btrfs -K; }

there=
bring() {
	for fs in $WHO; do "mount_$fs" && there+=" $fs"; done
}

# CELL WHO WHAT NUMBER
note() { echo "$1 $round $2 $3 $4" | tee -a "$(raw "$1")"; }
# The rate that a command's last line with MiB/s, or its time, gives.
mib_a_second() {
	local begin
	begin=$(date +%s.%N)
	"${@:2}" >/dev/null 2>&1 || return 1
	echo "$(date +%s.%N) $begin $1" | awk '{printf "%.1f", $3 / ($1 - $2)}'
}
json_bw() { awk -F'[:,]' -v which="$1" '/"(read|write)" : \{/ {k = $1} index(k, which) && /"bw_bytes"/ {printf "%.1f", $2 / 1048576; exit}'; }
json_iops() { awk -F'[:,]' '/"write" : \{/ {w = 1} w && /"iops" :/ {printf "%.0f", $2; exit}'; }

noise() { [ -f "$work/noise" ] || disk_file "$work/noise" 1024; }

null_rate() {
	"$CENOTE" bench fuse-null --time 500ms ${2:-} | awk -v row="$1" 'index($0, row) && /calls\/s/ && !n++ {print $(NF-3), $(NF-1)}'
}

# Writes of 1 GiB, 1 MiB each, with fsync at the end.
cell_bulk() {
	noise
	[ -f "$work/fio.img" ] || dd if=/dev/zero of="$work/fio.img" bs=1M count=1024 conv=fsync 2>/dev/null
	note bulk fio mib $(fio --name=x --filename="$work/fio.img" --rw=write --bs=128k --size=1g --ioengine=libaio --iodepth=16 --direct=1 \
		--end_fsync=1 --refill_buffers --output-format=json | json_bw write)
	read -r mib _ < <(null_rate "write in order, 1 MiB, 1 thread")
	note bulk fuse-null mib "$mib"
	for fs in $there; do
		note bulk "$fs" mib "$(mib_a_second 1024 dd if="$work/noise" of="$work/$fs/bulk" bs=1M conv=fsync)"
		rm "$work/$fs/bulk"
		sync
	done
}

# 8 KiB overwrites at random places, 8 writers with a file of 64 MiB each, then fsync.
cell_random() {
	for fs in $there; do
		mkdir -p "$work/$fs/r"
		note random "$fs" iops $(fio --name=x --directory="$work/$fs/r" --rw=randwrite --bs=8k --size=64m --numjobs=8 --group_reporting \
			--ioengine=psync --fallocate=none --overwrite=1 --end_fsync=1 --time_based --runtime=4 --refill_buffers \
			--output-format=json | json_iops)
	done
}

# Many small files: made, walked twice, removed.
cell_tree() {
	local step rate
	for fs in $there; do
		mkdir "$work/$fs/t"
		while read -r step rate; do
			[ "$step" = walk ] && [ -n "${walked:-}" ] && step=walk-again
			[ "$step" = walk ] && walked=1
			[ "$step" = sync ] || note tree "$fs" "$step" "$rate"
		done < <("$TREE" "$work/$fs/t" "$FILES" create sync walk walk delete sync)
		walked=
		rmdir "$work/$fs/t"
		sync -f "$work/$fs" 2>/dev/null
	done
}

# The disks' files leave the page cache.
forget() {
	local file
	for file in "$work"/*.img "$work"/disks/*; do dd of="$file" oflag=nocache conv=notrunc,fdatasync count=0 2>/dev/null; done
}

# A file of 1 GiB: cold (mounted anew, its disk's file out of the page cache) and again.
cell_read() {
	noise
	for fs in $there; do
		[ -f "$work/$fs/big" ] || cp "$work/noise" "$work/$fs/big"
		case $fs in
		cenote) "$CENOTE" zpool export benchours && "$CENOTE" zpool import -d "$work/disks" ${OPTIONS:+-o "$OPTIONS"} benchours ;;
		uring) "$CENOTE" zpool export benchuring && "$CENOTE" zpool import -d "$work/disks" -o io_uring benchuring ;;
		# Mounted anew it would be empty: its pages go.
		memory*) dd of="$work/$fs/big" oflag=nocache conv=notrunc count=0 2>/dev/null ;;
		zfs-fuse) "$PEER/zpool" export benchpeer && "$PEER/zpool" import -d "$work" benchpeer ;;
		*) umount "$work/$fs" && mount -o loop,nodiscard "$work/$fs.img" "$work/$fs" ;;
		esac
	done
	for fs in $there; do
		sync
		forget
		note read "$fs" cold-mib "$(mib_a_second 1024 dd if="$work/$fs/big" of=/dev/null bs=1M)"
		note read "$fs" again-mib "$(mib_a_second 1024 dd if="$work/$fs/big" of=/dev/null bs=1M)"
	done
	forget
	note read fio cold-mib $(fio --name=x --filename="$work/noise" --rw=read --bs=128k --size=1g --ioengine=libaio --iodepth=16 \
		--direct=1 --output-format=json | json_bw read)
}

# The working tree of one revision, then of the other, in seconds.
cell_checkout() {
	local repo a b begin
	read -r repo a b <<<"$CHECKOUT"
	[ -n "$b" ] || { echo "SKIPPED: CHECKOUT is not set" && return; }
	for fs in $there; do
		if [ ! -d "$work/$fs/git" ]; then
			git clone -q --shared -n "$repo" "$work/$fs/git" && git -C "$work/$fs/git" checkout -q "$a"
		fi
		begin=$(date +%s.%N)
		git -C "$work/$fs/git" checkout -q "$b" && git -C "$work/$fs/git" checkout -q "$a"
		note checkout "$fs" seconds "$(echo "$(date +%s.%N) $begin" | awk '{printf "%.2f", $1 - $2}')"
	done
}

# What the transports can do: calls a second.
cell_null() {
	local transport
	for transport in dev uring; do
		"$CENOTE" bench fuse-null --time 300ms --transport $transport | awk '/calls\/s/ {r = $(NF-1); sub(/ +[0-9]+ MiB.*/, ""); gsub(/,/, ""); gsub(/ /, "-"); print $0, r}' |
			while read -r what rate; do note null $transport "$what" "$rate"; done
	done
}

mkdir -p "$RUNS"
for cell in "$@"; do
	file=$(raw "$cell")
	printf '# %s, load %s, %s\n' "$cell" "$(cut -d' ' -f1-3 /proc/loadavg)" "${OPTIONS:-defaults}" >>"$file"
	[ "$cell" != random ] || PROPS="-O recordsize=8K"
	[ "$cell" = null ] || [ -n "$there" ] || bring
	last=$(awk '!/^#/ && $2 > n {n = $2} END {print n + 0}' "$file")
	for round in $(seq $((last + 1)) $((last + ROUNDS))); do
		[ -z "$FILL" ] || cat "$FILL" >/dev/null
		"cell_$cell"
	done
done
