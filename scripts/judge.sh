#!/usr/bin/env bash
# Shows pools that Cenote wrote to OpenZFS's kernel module, and takes them back.
#   scripts/judge.sh [CASE...]       runs these cases, or all, and prints a table
#   scripts/judge.sh --list          prints the cases
# Each case makes a pool with Cenote in a given shape and state. In the virtual machine of
# scripts/judge-vm.sh, OpenZFS imports and scrubs it, compares every file with Cenote's
# manifest, reads all properties, writes, snapshots, destroys, and lets go of the pool, by an
# export or by a power cut in the middle of synchronous writes. Back here, Cenote imports it,
# compares what OpenZFS wrote, writes once more, and `zdb -bcc` has the last word.
#
# CENOTE_JUDGE names the machine's directory (default: target/judge; built when absent).
# Needs root, /dev/fuse, Debian's packages, and about 40 minutes.
set -uo pipefail
cd "$(dirname "$0")/.."
cenote=${CENOTE:-${CARGO_TARGET_DIR:-target}/release/cenote}
machine=${CENOTE_JUDGE:-target/judge}
pools=${CENOTE_POOLS:-../shared/pools}

# name | state | disks | MiB of each | properties of the pool | vdevs; @N is disk N
cases() {
	cat <<'C'
single9      | exported | 1 | 300 | ashift=9  | @1
single12     | killed   | 1 | 300 | ashift=12 | @1
twoway       | exported | 2 | 300 | ashift=12 | mirror @1 @2
rz1w3        | killed   | 3 | 200 | ashift=9  | raidz1 @1 @2 @3
rz1w5        | killed   | 5 | 200 | ashift=12 | raidz1 @1 @2 @3 @4 @5
rz2w6        | exported | 6 | 200 | ashift=12 | raidz2 @1 @2 @3 @4 @5 @6
rz3w9        | exported | 9 | 160 | ashift=12 | raidz3 @1 @2 @3 @4 @5 @6 @7 @8 @9
dr2          | exported | 8 | 200 | ashift=12 | draid2:3d:8c:1s @1 @2 @3 @4 @5 @6 @7 @8
classes      | killed   | 5 | 300 | ashift=12 | mirror @1 @2 special @3 log @4 cache @5
two          | exported | 4 | 200 | ashift=12 | mirror @1 @2 mirror @3 @4
full         | full     | 1 | 300 | ashift=12 | @1
fullraidz    | full     | 5 | 120 | ashift=9  | raidz1 @1 @2 @3 @4 @5
datasets     | datasets | 1 | 400 | ashift=12 | @1
healed       | healed   | 2 | 300 | ashift=12 | mirror @1 @2
healedraidz  | healed   | 4 | 200 | ashift=12 | raidz1 @1 @2 @3 @4
rewound      | rewound  | 1 | 300 | ashift=12 | @1
rebuilt      | rebuilt  | 3 | 200 | ashift=12 | raidz1 @1 @2 @3
renamed      | renamed  | 1 | 300 | ashift=12 | @1
cached       | cached   | 2 | 1200 | ashift=12 | @1 cache @2
scrubbing    | scrubbing    | 2 | 400 | ashift=12 | mirror @1 @2
resilvering  | resilvering  | 4 | 300 | ashift=9  | raidz1 @1 @2 @3 @4
outdated     | outdated     | 3 | 400 | ashift=12 | mirror @1 @2 @3
replacing    | replacing    | 7 | 200 | ashift=12 | raidz2 @1 @2 @3 @4 @5 @6
insteadof    | spared       | 3 | 400 | ashift=9  | mirror @1 @2 spare @3
dspared      | dspared      | 6 | 200 | ashift=12 | draid1:3d:6c:1s @1 @2 @3 @4 @5 @6
checkpointed | checkpointed | 3 | 300 | ashift=12 | raidz1 @1 @2 @3
initializing | initializing | 2 | 400 | ashift=12 | mirror @1 @2
lineage      | lineage      | 2 | 400 | ashift=12 | mirror @1 @2
lineageraidz | lineage      | 5 | 200 | ashift=9  | raidz1 @1 @2 @3 @4 @5
lineagemoved | defragged    | 2 | 400 | ashift=12 | mirror @1 @2
lineagemovedraidz | defragged | 5 | 200 | ashift=9  | raidz1 @1 @2 @3 @4 @5
movedreplaced | defragged   | 3 | 400 | ashift=12 | mirror @1 @2
rebalanced   | rebalanced   | 6 | 400 | ashift=12 | mirror @1 @2
rebalancedraidz | rebalanced | 9 | 200 | ashift=9  | raidz1 @1 @2 @3
received     | received     | 2 | 400 | ashift=12 | mirror @1 @2
receivedraidz| received     | 5 | 200 | ashift=9  | raidz1 @1 @2 @3 @4 @5
evacuated    | removed      | 3 | 400 | ashift=12 | @1 mirror @2 @3
evacuating   | removing     | 2 | 400 | ashift=9  | @1 @2
unmapped     | unmapped     | 4 | 400 | ashift=12 | @1 @2 mirror @3 @4
unmapped9    | unmapped     | 4 | 400 | ashift=9  | @1 @2 mirror @3 @4
emptied      | emptied      | 6 | 300 | ashift=12 | raidz1 @1 @2 @3 raidz1 @4 @5 @6
shrunk       | shrunk       | 4 | 400 | ashift=9  | raidz1 @1 @2 @3
expanded     | expanded     | 5 | 300 | ashift=12 | raidz1 @1 @2 @3
expanding    | expanding    | 5 | 300 | ashift=9  | raidz2 @1 @2 @3 @4
cloned       | cloned       | 1 | 300 | ashift=12 | @1
dedup        | dedup        | 1 | 400 | ashift=12 | @1
dedupraidz   | dedup        | 4 | 200 | ashift=9  | raidz1 @1 @2 @3 @4
volume9      | volume       | 1 | 400 | ashift=9  | @1
volumeraidz  | volume       | 4 | 200 | ashift=12 | raidz1 @1 @2 @3 @4
C
}

if [ "${1:-}" = --list ]; then
	cases | sed 's/ *|.*//'
	exit 0
fi
[ "$(id -u)" = 0 ] || { echo "judge: needs root" >&2; exit 1; }
[ -x "$cenote" ] || { echo "judge: $cenote is missing (make build)" >&2; exit 1; }
cenote=$(readlink -f "$cenote")
command -v setfattr >/dev/null || apt-get install -y attr >/dev/null || exit 1
[ -x "$machine/vm" ] || scripts/judge-vm.sh "$machine" || exit 1
machine=$(readlink -f "$machine")

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}" cenote-judge-XXXXXX)
share=$work/share
mkdir -p "$share" "$work/mnt"
export CENOTE_RUNTIME_DIR=$work/run
cleanup() {
	"$cenote" daemon stop -f >/dev/null 2>&1
	if [ -n "${KEEP:-}" ]; then echo "judge: kept $work"; else rm -rf "$work"; fi
}
trap cleanup EXIT
zpool() { "$cenote" zpool "$@"; }
zfs() { "$cenote" zfs "$@"; }

# One line for each entry of a file system, sorted; the same in both worlds. Directories have
# neither size nor time: OpenZFS's datasets below change them. The replay of an intent log
# gives files its own times (chapter 06 §19.3), so those of replayed pools are left out, too.
cat >"$share/manifest.sh" <<'M'
times=%T@
[ "${2:-}" != notimes ] || times=-
cd "$1" || exit 1
export LC_ALL=C
find . -xdev -path ./.zfs -prune -o -path ./judge -prune -o -printf "%P|%y|%m|%U:%G|%n|%s|$times|%l\n" |
	awk -F'|' -v OFS='|' '$2 == "d" {$5 = $6 = $7 = "-"} {print}' | sort
find . -xdev -path ./.zfs -prune -o -path ./judge -prune -o -type f -print0 | sort -z | xargs -0 -r sha256sum
find . -xdev -path ./.zfs -prune -o -path ./judge -prune -o -type f -print0 | sort -z |
	xargs -0 -r getfattr -hd -m 'user[.]' -e hex
M
manifest() { bash "$share/manifest.sh" "$@"; }
times() { if [ "$1" = killed ] || [ "$1" = cloned ] || [ "$1" = dedup ] || [ "$1" = volume ]; then echo notimes; fi; }

# A varied tree below $1: sizes around block boundaries, holes, links, modes, attributes.
make_tree() {
	local dir=$1 size
	mkdir -p "$dir/sizes" "$dir/many" "$dir/names"
	for size in 0 1 511 512 513 4095 4096 4097 5000 100000 131071 131072 131073 1500000; do
		head -c $size /dev/urandom >"$dir/sizes/$size"
	done
	yes "compressible text" | head -c 700000 >"$dir/sizes/text"
	truncate -s 5M "$dir/sparse"
	dd if=/dev/urandom of="$dir/sparse" bs=4k seek=700 count=3 conv=notrunc status=none
	for n in $(seq 600); do echo "$n" >"$dir/many/$n"; done
	rm "$dir"/many/[2-4]*
	ln "$dir/sizes/5000" "$dir/hard"
	ln -s sizes/5000 "$dir/soft"
	ln -s "$(printf 'x%.0s' {1..900})" "$dir/long"
	mkfifo "$dir/fifo"
	chmod 4751 "$dir/sizes/1"
	chown 1000:100 "$dir/sizes/512"
	touch "$dir/names/"$'tab\tname' "$dir/names/é" "$dir/names/$(printf 'n%.0s' {1..255})"
	setfattr -n user.small -v value "$dir/sizes/4096"
	setfattr -n user.large -v "$(head -c 3000 /dev/urandom | base64 -w0)" "$dir/sizes/4097"
	cp -a crates/base "$dir/source"
}

# A counter of the second tier.
l2() { "$cenote" kstat -p -m zfs -n arcstats 2>/dev/null | awk -F '[:\t]' -v name="l2_$1" '$4 == name {print $5}'; }
# Waits until a counter of the second tier is at least $2.
await_l2() {
	local n
	for ((n = 0; n < 300; n++)); do
		[ "$(l2 "$1")" -ge "$2" ] 2>/dev/null && return 0
		sleep 0.2
	done
	echo "l2_$1 is $(l2 "$1"), not $2" >&2
	return 1
}

daemon_pid() { "$cenote" daemon status 2>/dev/null | grep -oE 'pid:? *[0-9]+' | grep -oE '[0-9]+' | head -n 1; }

# Overwrites 8 KiB records at random, $2 times, in the file $1.
overwrite() {
	local blocks n
	blocks=$(($(stat -c %s "$1") / 8192))
	for ((n = 0; n < $2; n++)); do
		dd if=/dev/urandom of="$1" bs=8k seek=$((RANDOM % blocks)) count=1 conv=notrunc status=none || return 1
	done
}

# The file of a volume, and what makes standard input durable in it at an offset.
volume() { echo "$CENOTE_RUNTIME_DIR/volumes/$1"; }
volume_write() { dd of="$(volume "$1")" bs=64k seek="$2" oflag=seek_bytes conv=notrunc,fsync iflag=fullblock status=none; }

# Data for work that an export is to interrupt.
bulk() { head -c 120000000 /dev/urandom >"$1/bulk" && sync "$1/bulk"; }

# Makes the pool of a case in $share/NAME and leaves it in its state.
make_case() {
	local name=$1 state=$2 disks=$3 mib=$4 props=$5 spec=$6 dir=$share/$1 mnt=$work/mnt n
	mkdir -p "$dir/manifests"
	for ((n = 1; n <= disks; n++)); do truncate -s "${mib}M" "$dir/disk$n"; done
	if [ "$state" = initializing ]; then "$cenote" tune zfs_initialize_chunk_size=4096 >/dev/null; fi
	# shellcheck disable=SC2086
	zpool create -f -o $props -R "$mnt" -O atime=off "$name" ${spec//@/$dir/disk} || return 1
	zfs create -o recordsize=8K "$name/small" && make_tree "$mnt/$name" && make_tree "$mnt/$name/small" || return 1
	zfs snapshot -r "$name@first" || return 1
	rm -r "$mnt/$name/many" && head -c 200000 /dev/urandom >"$mnt/$name/later"
	case $state in
	killed)
		zpool sync "$name"
		for n in 1 4097 5000 20000 200000; do
			head -c $n /dev/urandom >"$mnt/$name/small/unsynced.$n" && sync "$mnt/$name/small/unsynced.$n" || return 1
		done
		mv "$mnt/$name/small/unsynced.1" "$mnt/$name/small/moved" && sync "$mnt/$name/small" ;;
	cloned)
		# Files and a part of one that are clones in the log alone; the source of one is gone.
		local from=$mnt/$name/small/sizes
		dd if="$from/1500000" of="$mnt/$name/small/part" bs=8k count=9 status=none && zpool sync "$name" || return 1
		for n in 131073 1500000 text; do
			cp "$from/$n" "$mnt/$name/small/clone.$n" && sync "$mnt/$name/small/clone.$n" || return 1
		done
		"$cenote" clone "$mnt/$name/small/part" "$mnt/$name/small/again" && sync "$mnt/$name/small/again" || return 1
		rm "$mnt/$name/small/part" && sync "$from/1" || return 1 ;;
	dedup)
		# Entries that are in the logs alone, some of them changed there.
		zfs set dedup=on "$name" && zfs create "$name/twice" || return 1
		for n in one two three; do make_tree "$mnt/$name/twice/$n" && zpool sync "$name" || return 1; done
		for n in a b; do
			head -c 3000000 /dev/urandom >"$mnt/$name/twice/$n" && cp --reflink=never "$mnt/$name/twice/$n" "$mnt/$name/twice/$n.copy" || return 1
		done
		zpool sync "$name"
		rm -r "$mnt/$name/twice/one" "$mnt/$name/twice/a" && zpool sync "$name" || return 1
		cp --reflink=never "$mnt/$name/twice/b" "$mnt/$name/twice/third" && zpool sync "$name" || return 1 ;;
	full)
		n=$(zfs get -Hpo value available "$name/small")
		head -c $((n / 10 * 9 / 8192 * 8192)) /dev/urandom >"$mnt/$name/small/bulk" || return 1
		overwrite "$mnt/$name/small/bulk" 3000 || return 1 ;;
	datasets)
		for n in lz4 zstd gzip-1 zle lzjb off; do zfs create -o compression=$n "$name/c_$n" || return 1; done
		for n in sha256 sha512 skein edonr blake3 fletcher2; do zfs create -o checksum=$n "$name/k_$n" || return 1; done
		for n in 512 4K 1M 16M; do zfs create -o recordsize=$n "$name/r_$n" || return 1; done
		zfs create -o dnodesize=auto -o xattr=sa -o acltype=posix "$name/attrs" || return 1
		zfs create -o copies=3 "$name/copies" && zfs create -o quota=20M -o reservation=5M "$name/limits" || return 1
		zfs create -o casesensitivity=insensitive -o normalization=formD "$name/cases" || return 1
		for n in "$mnt/$name"/[ckra]*_* "$mnt/$name/attrs" "$mnt/$name/copies"; do make_tree "$n"; done
		zfs destroy -r "$name/c_zle" ;;
	cached)
		# What leaves 64 MB of memory fills the cache device, which begins empty and takes all.
		head -c 300000000 /dev/urandom >"$mnt/$name/bulk" && zpool sync "$name" || return 1
		"$cenote" tune zfs_arc_max=64M l2arc_feed_min_ms=1 >/dev/null || return 1
		for ((n = 0; n < 100 && $(l2 asize) < 60000000; n++)); do
			echo 1 >/proc/sys/vm/drop_caches
			cat "$mnt/$name/bulk" >/dev/null || return 1
		done
		await_l2 asize 60000000 && await_l2 log_blk_count 5 || return 1
		"$cenote" tune l2arc_feed_min_ms=200 >/dev/null
		"$cenote" tune zfs_arc_max=0 >/dev/null ;;
	healed)
		head -c 20000000 /dev/urandom >"$mnt/$name/small/bulk"
		zpool export "$name" || return 1
		dd if=/dev/urandom of="$dir/disk2" bs=1M seek=5 count=$((mib - 10)) conv=notrunc status=none
		zpool import -R "$mnt" -d "$dir" "$name" || return 1
		for n in 1 2; do find "$mnt/$name" -type f -exec cat {} + >/dev/null || return 1; "$cenote" tune zfs_arc_max=64M >/dev/null; done
		zpool clear "$name" ;;
	rewound)
		zpool sync "$name"
		local txg
		txg=$("$cenote" uberblocks -d "$dir" -H "$name" 2>/dev/null | awk 'NR == 1 {print $1}')
		zpool export "$name" || return 1
		[ -n "$txg" ] || txg=$("$cenote" uberblocks -d "$dir" -H "$name" | awk 'NR == 3 {print $1}')
		zpool import -R "$mnt" -d "$dir" -T "$txg" "$name" || return 1
		echo after >"$mnt/$name/after" ;;
	rebuilt)
		zpool export "$name" || return 1
		zpool import -R "$mnt" -d "$dir" --rebuild-space "$name" || return 1
		echo after >"$mnt/$name/after" ;;
	scrubbing)
		bulk "$mnt/$name" && zpool scrub "$name" && zpool scrub -p "$name" || return 1 ;;
	resilvering)
		zpool offline -t "$name" "$dir/disk2" && bulk "$mnt/$name" && zpool sync "$name" || return 1
		zpool online "$name" "$dir/disk2" ;;
	outdated)
		zpool offline -t "$name" "$dir/disk2" && bulk "$mnt/$name" || return 1 ;;
	replacing)
		bulk "$mnt/$name" && zpool sync "$name" && zpool replace "$name" "$dir/disk3" "$dir/disk7" || return 1 ;;
	spared)
		bulk "$mnt/$name" && zpool replace "$name" "$dir/disk2" "$dir/disk3" || return 1 ;;
	dspared)
		bulk "$mnt/$name" && zpool offline -f "$name" "$dir/disk2" || return 1
		zpool replace "$name" "$dir/disk2" draid1-0-0 2>/dev/null || zpool status "$name" | grep -q 'draid1-0-0.*INUSE' || return 1 ;;
	checkpointed)
		bulk "$mnt/$name" && zpool checkpoint "$name" || return 1
		head -c 120000000 /dev/urandom >"$mnt/$name/bulk" && rm -r "$mnt/$name/source" && zpool sync "$name" || return 1 ;;
	initializing)
		zpool initialize "$name" "$dir/disk1" && zpool initialize -s "$name" "$dir/disk1" || return 1
		zpool trim -r 1M "$name" "$dir/disk2" && zpool trim -s "$name" "$dir/disk2" || return 1 ;;
	removed)
		# Blocks move to the mirror; some of them are freed there.
		bulk "$mnt/$name" && zpool remove -w "$name" "$dir/disk1" && rm -r "$mnt/$name/sizes" || return 1
		rm "$dir/disk1" ;;
	unmapped)
		# Two mappings, one of which leads to the other, are erased under snapshots and a clone.
		bulk "$mnt/$name" && zfs snapshot -r "$name@full" && zfs clone "$name/small@full" "$name/clone" || return 1
		zpool remove -w "$name" "$dir/disk1" && zpool remove -w "$name" "$dir/disk2" || return 1
		rm -r "$mnt/$name/sizes" "$dir"/disk[12] && zpool defrag --unmap -w "$name" || return 1
		zpool status "$name" | grep -q 'erased the mappings of removed devices' || return 1 ;;
	emptied)
		# Its blocks move, with what snapshots and a clone share.
		bulk "$mnt/$name" && zfs snapshot -r "$name@full" && zfs clone "$name/small@full" "$name/clone" || return 1
		zpool remove -w "$name" raidz1-1 && zpool status "$name" | grep -q 'Removal of vdev 1 copied' || return 1
		rm -r "$mnt/$name/sizes" && rm "$dir"/disk[456] ;;
	shrunk)
		# A smaller disk replaces one of its own.
		bulk "$mnt/$name" && zfs snapshot -r "$name@full" && zfs clone "$name/small@full" "$name/clone" || return 1
		zpool shrink -w "$name" raidz1-0 260M && zpool status "$name" | grep -q 'Shrinking of raidz1-0 moved' || return 1
		truncate -s 260M "$dir/disk4" && zpool replace -w "$name" "$dir/disk1" "$dir/disk4" && rm "$dir/disk1" || return 1 ;;
	removing|expanding) bulk "$mnt/$name" || return 1 ;;
	expanded)
		bulk "$mnt/$name" && zpool attach -w "$name" raidz1-0 "$dir/disk4" && rm -r "$mnt/$name/sizes" || return 1 ;;
	lineage | defragged | rebalanced)
		# A clone that is rolled back and renamed, another one that is promoted, a snapshot that is
		# renamed and held, one whose destruction waits for its hold, and bookmarks.
		zfs snapshot "$name/small@second" && zfs clone "$name/small@second" "$name/clone" || return 1
		echo kept >"$mnt/$name/clone/kept" && zfs snapshot "$name/clone@kept" || return 1
		rm -r "$mnt/$name/clone/many" && head -c 900000 /dev/urandom >"$mnt/$name/clone/sizes/text" || return 1
		zfs snapshot "$name/clone@undone" && zfs rollback -r "$name/clone@kept" || return 1
		zfs rename "$name/clone" "$name/moved" && zfs clone "$name/small@second" "$name/other" || return 1
		head -c 700000 /dev/urandom >"$mnt/$name/other/new" && zfs promote "$name/other" || return 1
		zfs rename "$name/other@second" "$name/other@renamed" && zfs hold keep "$name/other@renamed" || return 1
		zfs bookmark "$name/other@renamed" "$name/other#mark" && zfs bookmark "$name/moved@kept" "$name/moved#kept" || return 1
		zfs snapshot "$name/other@waits" && zfs hold tag "$name/other@waits" && zfs destroy -d "$name/other@waits" || return 1
		# A scattered file with older versions in a snapshot and in a clone, and all blocks in order again.
		if [ "$state" = defragged ]; then
			zfs create -o recordsize=8k "$name/scattered" || return 1
			head -c 8000000 /dev/urandom >"$mnt/$name/scattered/file" && zpool sync "$name" || return 1
			for n in $(seq 60); do
				dd if=/dev/urandom of="$mnt/$name/scattered/file" bs=8k seek=$((RANDOM % 900)) count=9 conv=notrunc status=none || return 1
				[ $((n % 20)) -ne 5 ] || zfs snapshot "$name/scattered@$n" || return 1
				[ "$n" -ne 30 ] || zfs clone "$name/scattered@25" "$name/twig" || return 1
				zpool sync "$name" || return 1
			done
			zpool defrag -w -l 1 "$name" && zpool status "$name" | grep -q 'files laid out' || return 1
		fi
		# New vdevs take half of everything, and then all metadata and small files.
		if [ "$state" = rebalanced ]; then
			# Disks of the pool, then as many for each new vdev.
			local kind group=$((disks / 3)) more=()
			read -r kind _ <<<"$spec"
			for ((n = group + 1; n <= disks; n++)); do more+=("$dir/disk$n"); done
			zpool add "$name" "$kind" "${more[@]:0:group}" && zpool rebalance -w "$name" || return 1
			zpool status "$name" | grep -q 'rebalance: rebalanced' || return 1
			zpool add "$name" special "$kind" "${more[@]:group}" && zfs set special_small_blocks=16k "$name" || return 1
			zpool rebalance -w --special "$name" && zpool status "$name" | grep -q 'moved to special' || return 1
		fi
		zfs list -Hp -t snapshot -o name,referenced,written,origin,userrefs,defer_destroy -r "$name" >"$dir/lineage"
		zfs list -Hp -t bookmark -o name,referenced,guid -r "$name" >>"$dir/lineage" ;;
	volume)
		# Some of what is written is in the log alone when the power fails.
		zfs create -V 64M -b 8K "$name/vol" && zfs create -s -V 1G "$name/sparse" || return 1
		head -c 40000000 /dev/urandom | volume_write "$name/vol" 0 && zfs snapshot "$name/vol@first" || return 1
		head -c 3000000 /dev/urandom | volume_write "$name/vol" 5000192 || return 1
		zfs clone "$name/vol@first" "$name/copy" && head -c 100000 /dev/urandom | volume_write "$name/copy" 0 || return 1
		zpool sync "$name" && head -c 300000 /dev/urandom | volume_write "$name/vol" 81920 || return 1
		for n in vol copy sparse; do echo "$n $(sha256sum <"$(volume "$name/$n")")"; done >"$dir/volumes" ;;
	received)
		# A full and an incremental stream, one that was cut off and resumed, one of a clone, one
		# that is still incomplete, a redacted one, and an encrypted dataset without its key.
		zfs snapshot "$name/small@one" && rm -r "$mnt/$name/small/many" || return 1
		head -c 900000 /dev/urandom >"$mnt/$name/small/sizes/text" && zfs snapshot "$name/small@two" || return 1
		head -c 9000000 /dev/urandom >"$mnt/$name/small/new" && zfs snapshot "$name/small@three" || return 1
		zfs send "$name/small@one" | zfs receive "$name/copy" || return 1
		zfs send -I @one "$name/small@three" | zfs receive "$name/copy" || return 1
		zfs send -c "$name/small@three" | head -c 6000000 | zfs receive -s "$name/resumed" 2>/dev/null
		zfs send -t "$(zfs get -Hpo value receive_resume_token "$name/resumed")" | zfs receive -s "$name/resumed" || return 1
		zfs clone "$name/small@two" "$name/twig" && head -c 300000 /dev/urandom >"$mnt/$name/twig/own" || return 1
		zfs snapshot "$name/twig@grown" || return 1
		zfs send -i "$name/small@two" "$name/twig@grown" | zfs receive -o origin="$name/copy@two" "$name/grown" || return 1
		zfs redact "$name/small@two" hidden "$name/twig@grown" || return 1
		zfs send --redact hidden "$name/small@two" | zfs receive "$name/redacted" || return 1
		zfs send "$name/small@three" | head -c 7000000 | zfs receive -s "$name/part" 2>/dev/null
		# The full stream is not in this repository.
		for n in raw-full raw-incr; do
			[ ! -e "$pools/raw-full.zsend.zst" ] || zstd -qdc "$pools/$n.zsend.zst" | zfs receive "$name/raw" || return 1
		done ;;
	renamed)
		zpool export "$name" && zpool import -t -R "$mnt" -d "$dir" "$name" temporary || return 1
		echo after >"$mnt/temporary/after" 2>/dev/null || echo after >"$mnt/$name/after"
		zpool export temporary && zpool import -R "$mnt" -d "$dir" "$name" || return 1 ;;
	esac
	times "$state" >"$dir/times"
	zfs list -H -o name,mounted -t filesystem -r "$name" | awk '$2 == "yes" {print $1}' >"$dir/datasets"
	while read -r n; do manifest "$mnt/$n" $(times "$state") >"$dir/manifests/${n//\//+}"; done <"$dir/datasets"
	if [ "$state" = removing ]; then
		# In so small pieces that the export comes first.
		"$cenote" tune zfs_remove_max_segment=4096 >/dev/null && zpool remove "$name" "$dir/disk1" || return 1
	fi
	if [ "$state" = expanding ]; then
		# It pauses in the middle.
		"$cenote" tune raidz_expand_max_reflow_bytes=40000000 >/dev/null && zpool attach "$name" raidz2-0 "$dir/disk5" || return 1
		sleep 5
	fi
	if [ "$state" = killed ] || [ "$state" = cloned ] || [ "$state" = dedup ] || [ "$state" = volume ]; then
		kill -9 "$(daemon_pid)" && sleep 1
		rm -f "$CENOTE_RUNTIME_DIR/pools.json"
		zpool list >/dev/null 2>&1
	else
		zpool export "$name" || return 1
	fi
	if [ "$state" = dedup ]; then
		"$cenote" zdb -e -p "$dir" -DDDDD "$name" | grep -Eq 'DDT-log-.*entries=[1-9]' || { echo "the logs are empty" >&2; return 1; }
	fi
	if [ "$state" = expanding ]; then
		"$cenote" tune raidz_expand_max_reflow_bytes=0 >/dev/null
		"$cenote" zdb -e -p "$dir" -C "$name" | grep -q raidz_expanding || { echo "the expansion has ended" >&2; return 1; }
	fi
	if [ "$state" = removing ]; then
		"$cenote" zdb -e -p "$dir" -C "$name" | grep -q 'removing: 1' || { echo "the removal has ended" >&2; return 1; }
	fi
}

cat >"$share/job.sh" <<'J'
modprobe zfs || exit 1
l2() { awk -v name="l2_$1" '$1 == name {print $3}' /proc/spl/kstat/zfs/arcstats; }
echo "OpenZFS $(cat /sys/module/zfs/version)"
for dir in /host/*/; do
	name=$(basename "$dir")
	[ -s "$dir/datasets" ] || continue
	say() { echo "$1|$2" >>"$dir/verdicts"; }
	rm -f "$dir/verdicts"
	if ! zpool import -f -d "$dir" -R /mnt "$name" >"$dir/import.txt" 2>&1; then say import no; continue; fi
	say import yes
	zpool status -v "$name" >"$dir/found.txt"
	# What Cenote began is finished.
	case $name in
	resilvering|outdated|replacing|insteadof|dspared)
		# A resilver begins some seconds after the import.
		for n in $(seq 60); do zpool status "$name" | grep -q 'scan: resilver' && break; sleep 1; done
		zpool wait -t resilver,replace "$name"
		zpool status -v "$name" >"$dir/tended.txt"
		grep -q 'resilvered .* with 0 errors' "$dir/tended.txt" && ! grep -q 'replacing-' "$dir/tended.txt" || say tended "not resilvered" ;;
	checkpointed)
		grep -q '^checkpoint:' "$dir/found.txt" || say tended "not found"
		zpool checkpoint -d "$name" || say tended "not discarded"
		zpool wait -t discard "$name"; zpool status "$name" | grep -q '^checkpoint:' && say tended "not discarded" ;;
	initializing)
		zpool status -i "$name" | grep -q 'initialized, suspended' && zpool status -t "$name" | grep -q 'trimmed, suspended' || say tended "not suspended"
		zpool initialize -w "$name" "${dir%/}/disk1" && zpool trim -w "$name" "${dir%/}/disk2" || say tended "not continued" ;;
	evacuating)
		zpool wait -t remove "$name"; zpool status "$name" | grep -q 'Removal of vdev 0 copied' || say tended "not removed" ;;
	evacuated)
		grep -q 'Removal of vdev 0 copied' "$dir/found.txt" || say tended "not found" ;;
	expanding)
		echo 0 >/sys/module/zfs/parameters/raidz_expand_max_reflow_bytes
		zpool wait -t raidz_expand "$name"; zpool status "$name" | grep -q 'expanded raidz2-0 copied' || say tended "not expanded"
		# The one that begins by itself.
		zpool wait -t scrub "$name" ;;
	expanded)
		grep -q 'expanded raidz1-0 copied' "$dir/found.txt" || say tended "not found"
		# Here OpenZFS begins one, and Cenote ends it.
		while zpool status "$name" | grep -q 'scrub in progress'; do sleep 1; done
		echo 40000000 >/sys/module/zfs/parameters/raidz_expand_max_reflow_bytes
		zpool attach "$name" raidz1-0 "${dir%/}/disk5" || say tended "not begun"
		sleep 10; zpool status "$name" >"$dir/began.txt" ;;
	movedreplaced)
		# All that moved must get to a new disk, older versions in snapshots as well: it is the only one then.
		zpool replace -w "$name" "${dir%/}/disk1" "${dir%/}/disk3" && zpool detach "$name" "${dir%/}/disk2" || say tended "not replaced"
		zpool status -v "$name" >"$dir/replaced.txt" ;;
	lineage* | rebalanced*)
		zfs list -Hp -t snapshot -o name,referenced,written,origin,userrefs,defer_destroy -r "$name" >/tmp/lineage
		zfs list -Hp -t bookmark -o name,referenced,guid -r "$name" >>/tmp/lineage
		cmp -s /tmp/lineage "$dir/lineage" || { diff /tmp/lineage "$dir/lineage" >"$dir/lineage.diff"; say tended "not as listed"; } ;;
	received*)
		# OpenZFS continues what is incomplete, and reads what is encrypted; one file has a hole of a terabyte.
		zfs send -t "$(zfs get -Hpo value receive_resume_token "$name/part")" | zfs receive -s "$name/part" || say tended "not resumed"
		bash /host/manifest.sh "/mnt/$name/part" >/tmp/part
		bash /host/manifest.sh "/mnt/$name/copy" >/tmp/copy
		cmp -s /tmp/part /tmp/copy || { diff /tmp/part /tmp/copy >"$dir/part.diff"; say tended "another content"; }
		zfs destroy -r "$name/part"
		[ -n "$(zfs get -Hpo value redact_snaps "$name/redacted@two" | tr -d -)" ] || say tended "not redacted"
		if zfs list "$name/raw" >/dev/null 2>&1; then
			echo 'correct horse battery' | zfs load-key "$name/raw" && zfs mount "$name/raw" || say tended "no key"
			find "/mnt/$name/raw" -type f -size -64M -exec cat {} + >/dev/null 2>"$dir/raw.txt" && [ -n "$(ls "/mnt/$name/raw")" ] || say tended "not decrypted"
			zfs unmount "$name/raw"; zfs unload-key "$name/raw"; rmdir "/mnt/$name/raw"
		fi ;;
	volume*)
		# Device nodes come some time after the import.
		for n in $(seq 60); do [ "$(ls /dev/zd* 2>/dev/null | grep -vc p)" -ge 3 ] && break; sleep 1; done
		for n in vol copy sparse; do
			for device in /dev/zd*; do
				[ "$(/lib/udev/zvol_id "$device" 2>/dev/null)" = "$name/$n" ] && break
			done
			echo "$n $(sha256sum <"$device")"
		done >/tmp/volumes
		cmp -s /tmp/volumes "$dir/volumes" || { cp /tmp/volumes "$dir/volumes.found"; say tended "not the same bytes"; }
		for device in /dev/zd*; do
			[ "$(/lib/udev/zvol_id "$device" 2>/dev/null)" = "$name/vol" ] || continue
			dd if=/dev/urandom of="$device" bs=64k count=30 seek=100 conv=fsync status=none
			sha256sum <"$device" >"$dir/vol.after"
		done ;;
	cloned)
		# The replay makes clones of them again.
		zpool sync "$name"
		[ "$(zpool get -Hpo value bclonesaved "$name")" -gt 1000000 ] || say tended "not shared" ;;
	dedup)
		zdb -DDDDD "$name" >"$dir/ddt.txt" 2>&1; zdb -b "$name" >"$dir/zdb-b.txt" 2>&1
		[ "$(zpool get -Hpo value dedupratio "$name" | tr -d .)" -gt 110 ] || say tended "not shared" ;;
	scrubbing) grep -q 'scrub paused since' "$dir/found.txt" || say tended "not paused" ;;
	esac
	zpool scrub -w "$name"; zpool status -v "$name" >"$dir/status.txt"
	grep -q 'with 0 errors' "$dir/status.txt" && grep -q 'errors: No known' "$dir/status.txt" && say scrub clean || say scrub errors
	before=$(l2 hits)
	bad=0
	while read -r ds; do
		bash /host/manifest.sh "/mnt/$ds" $(cat "$dir/times") >/tmp/m
		cmp -s /tmp/m "$dir/manifests/${ds//\//+}" || { bad=$((bad + 1)); diff /tmp/m "$dir/manifests/${ds//\//+}" >"$dir/diff.${ds//\//+}"; }
	done <"$dir/datasets"
	if [ "$name" = cached ]; then
		# What Cenote wrote to the cache device is restored and used.
		grep -E '^l2_' /proc/spl/kstat/zfs/arcstats >"$dir/l2.txt"
		[ $(($(l2 hits) - before)) -gt 100 ] && [ "$(l2 rebuild_bufs)" -gt 500 ] &&
			[ "$(l2 rebuild_log_blks)" -gt 5 ] && [ "$(l2 log_blk_count)" -gt 10 ] &&
			[ "$(l2 cksum_bad)$(l2 io_error)$(l2 rebuild_cksum_lb_errors)" = 000 ] &&
			say l2 used || say l2 "not used"
	fi
	say files "$([ $bad = 0 ] && echo equal || echo "$bad differ")"
	zfs get -Hp all -r "$name" >"$dir/get.txt" 2>&1 && zfs list -Hp -o all -t all -r "$name" >"$dir/list.txt" 2>&1 && say properties read || say properties no
	( set -e
	  zfs create "$name/judge"
	  cp -a /usr/share/perl/5*/unicore/lib "/mnt/$name/judge/tree" 2>/dev/null || cp -a /etc "/mnt/$name/judge/tree"
	  zfs snapshot -r "$name@judge"; rm -rf "/mnt/$name/judge/tree"/[A-M]*
	  zfs destroy -r "$name@first"; zpool sync "$name"
	) >"$dir/write.txt" 2>&1 && say writes done || say writes "failed: $(tail -n 1 "$dir/write.txt")"
	bash /host/manifest.sh "/mnt/$name/judge" notimes >"$dir/manifests/$name+judge" 2>/dev/null
	dmesg | grep -E 'PANIC|VERIFY|ASSERT|BUG:|Oops' | grep -v 'soft lockup' >"$dir/dmesg.txt" && say dmesg "$(head -n 1 "$dir/dmesg.txt")"
	case $name in
	# These end in a power cut, with an intent log to be replayed.
	single12|rz1w5|classes)
		for n in 1 5000 200000; do
			head -c $n /dev/urandom >"/mnt/$name/judge/cut.$n"; sync "/mnt/$name/judge/cut.$n"
		done
		bash /host/manifest.sh "/mnt/$name/judge" notimes >"$dir/manifests/$name+judge"; say ends "power cut" ;;
	*) zpool export "$name" && say ends export || say ends "no export" ;;
	esac
done
sync
J

back() {
	local name=$1 dir=$share/$1 mnt=$work/mnt n bad=0
	if ! zpool import -f -R "$mnt" -d "$dir" "$name" >"$dir/back.txt" 2>&1; then echo "back|not imported: $(tail -n 1 "$dir/back.txt")"; return; fi
	local before
	before=$(l2 hits)
	while read -r n; do
		# Cenote's replay of OpenZFS's log gives times, too.
		manifest "$mnt/$n" "$([ "$n" = "$name/judge" ] && echo notimes || cat "$dir/times")" >"$work/m"
		diff "$work/m" "$dir/manifests/${n//\//+}" >"$dir/back.${n//\//+}" || bad=$((bad + 1))
	done < <(cat "$dir/datasets"; echo "$name/judge")
	echo "back|$([ $bad = 0 ] && echo equal || echo "$bad differ")"
	if [ "$name" = cached ]; then
		# What OpenZFS left on the cache device is restored and used.
		"$cenote" kstat -p -m zfs -n arcstats 2>/dev/null | grep l2_ >"$dir/back.l2.txt"
		[ "$(l2 rebuild_bufs)" -gt 500 ] && [ $(($(l2 hits) - before)) -gt 100 ] &&
			[ "$(l2 cksum_bad)$(l2 io_error)" = 00 ] || echo "again|the cache device was not used"
	fi
	if [ -e "$dir/vol.after" ]; then
		sha256sum <"$(volume "$name/vol")" | cmp -s - "$dir/vol.after" || echo "again|the volume differs"
	fi
	if [ -e "$dir/lineage" ]; then
		# What OpenZFS holds is let go, and what waited for it is destroyed.
		zfs release tag "$name/other@waits" && ! zfs list "$name/other@waits" 2>/dev/null >&2 &&
			zfs promote "$name/moved" && zfs rollback -r "$name/moved@kept" || echo "again|the lineage does not change"
	fi
	if [ "$name" = expanded ]; then
		zpool wait -t raidz_expand "$name"
		zpool status "$name" | grep -q 'expanded raidz1-0 copied' || echo "again|the expansion does not end"
	fi
	echo more >"$mnt/$name/more"
	zfs snapshot "$name@back" && zfs destroy -r "$name@judge" || echo "again|failed"
	zpool export "$name" || echo "again|no export"
	if command -v zdb >/dev/null; then
		command zdb -e -p "$dir" -bcc "$name" >"$dir/zdb.txt" 2>&1 && grep -q 'No leaks' "$dir/zdb.txt" && echo "zdb|clean" || echo "zdb|see zdb.txt"
	fi
}

chosen=()
while IFS='|' read -r name state disks mib props spec; do
	read -r name <<<"$name"
	[ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
	read -r state <<<"$state"; read -r disks <<<"$disks"; read -r mib <<<"$mib"; read -r props <<<"$props"
	echo "making $name ($state)"
	if make_case "$name" "$state" "$disks" "$mib" "$props" "$spec"; then
		chosen+=("$name")
	else
		echo "FAILED to make $name"; failed=1
		zpool export -f "$name" 2>/dev/null; rm -rf "${share:?}/$name"
	fi
done < <(cases)
[ ${#chosen[@]} -gt 0 ] || exit 1
echo "OpenZFS looks at them"
VM_TIMEOUT=${VM_TIMEOUT:-3000} "$machine/vm" "$share" || echo "the machine ended with an error"
head -n 1 "$share/job.log"
grep -q '^job exit 0' "$share/job.log" || { failed=1; tail -n 5 "$share/job.log"; }

columns="import scrub files properties writes ends back zdb"
printf '\n%-12s' pool
for column in $columns; do printf ' %-11s' "$column"; done
echo
good="yes clean equal read done export"
for name in "${chosen[@]}"; do
	back "$name" >>"$share/$name/verdicts"
	printf '%-12s' "$name"
	for column in $columns; do
		verdict=$(grep "^$column|" "$share/$name/verdicts" | tail -n 1 | cut -d '|' -f 2)
		printf ' %-11.30s' "${verdict:--}"
		[[ " $good " == *" ${verdict:-none} "* || "$verdict" = "power cut" ]] || failed=1
	done
	echo
	if grep -E '^(dmesg|again)\||^(l2|tended)\|not' "$share/$name/verdicts"; then failed=1; fi
done
if [ -n "${failed:-}" ]; then
	KEEP=1
	echo "judge: not all is well; evidence is kept"
	exit 1
fi
echo "OpenZFS and Cenote accept each other's pools: ${#chosen[@]} of ${#chosen[@]}"
