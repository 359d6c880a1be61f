#!/usr/bin/env bash
# The figures of docs/benchmarks.md, on pools of the administrator's choice.
#
# What is compared runs in alternation (A B A B ...), since a machine's rates drift;
# only the ratio inside a round counts, and the table shows its median and range.
# Raw numbers of every round are kept in benches/results/raw/DATE-FIGURE.txt.
#
# Cold means: an import of its own, the kernel's page cache dropped. Cenote reads
# images with O_DIRECT, so they are in no cache either. Needs root (drop_caches),
# fio, GNU time; a peer (zdb, raidz_test, another ZFS) where one is compared.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
: "${CENOTE:=$root/target/release/cenote}"   # the binary under test
: "${RANDREAD:=$root/target/release/examples/randread}"
: "${PAIRS:=7}"                              # rounds
: "${ZDB:=zdb}" "${RAIDZ_TEST:=raidz_test}"  # OpenZFS's
: "${RUNS:=$root/benches/results/raw}"
: "${SECONDS_EACH:=5}"                       # length of a random-read run
: "${BS:=128k}"                              # the file's record size, for fio
: "${PEER_IMPORT:=}" "${PEER_EXPORT:=}"      # commands of another ZFS: mount at ..., let go

usage() {
	cat >&2 <<-'EOF'
	usage: scripts/bench.sh FIGURE ARGUMENTS
	  make DIR                         pools made by another ZFS (see benches/make-pools.sh)
	  zdb DIR1 POOL1 DIR2 POOL2        cenote zdb -bcc against OpenZFS's; the slope between two sizes
	  read DIR POOL FILE               cold sequential: mount, cat, fio, null FUSE; cached re-read
	  random DIR POOL FILE             8 KiB at depth 64: mount, in process, fio
	  import DIR POOL                  time and memory of an import and of zfs list
	  walk DIR POOL                    find, first and second pass
	  memory DIR POOL FILE             RSS while a file ten times the cache is read
	  codecs                           RAID-Z generation against raidz_test -B; memory speed
	environment: CENOTE, PAIRS, ZDB, RAIDZ_TEST, RUNS, SECONDS_EACH, BS, LIMIT_MIB, TAG,
	             PEER_IMPORT, PEER_EXPORT
	EOF
	exit 2
}
[ $# -ge 1 ] || usage
figure=$1
shift

work=$(mktemp -d)
export CENOTE_RUNTIME_DIR=$work/run
cleanup() {
	"$CENOTE" daemon stop >/dev/null 2>&1 || true
	rm -rf "$work/run" "$work/out" "$work/err"
	rmdir "$work/mnt" "$work" 2>/dev/null || true
}
trap cleanup EXIT
mkdir -p "$RUNS" "$work/mnt"
raw=$RUNS/$(date +%F)-$figure${TAG:+-$TAG}.txt

note() { printf '# %s\n' "$*" | tee -a "$raw"; }
# row TURN NAME VALUE...: one raw number.
row() { printf '%s\n' "$*" >>"$raw"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.3f", b - a }'; }
cold() { sync; echo 3 >/proc/sys/vm/drop_caches; }
image() { find "$1" -maxdepth 1 -type f -size +16M | sort | head -n 1; }
# MiB/s of BYTES in SECONDS.
rate() { awk -v b="$1" -v s="$2" 'BEGIN { printf "%.0f", b / 1048576 / s }'; }

# Median, least and most of column $2 of rows named $1 of this run.
stat() {
	awk -v name="$1" -v from="$begin" 'NR > from && $2 == name { print $3 }' "$raw" | sort -g |
		awk '{ v[NR] = $1 } END { if (!NR) { print "-"; exit }
			m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
			f = v[NR] >= 100 ? "%.0f" : "%.3g"
			printf f " (" f "-" f ", n=%d)\n", m, v[1], v[NR], NR }'
}
# Ratios of A to B of the same round: median and range.
ratio() {
	awk -v a="$1" -v b="$2" -v from="$begin" 'NR > from && $2 == a { x[$1] = $3 }
		NR > from && $2 == b { y[$1] = $3 }
		END { for (t in x) if (t in y && y[t] > 0) print x[t] / y[t] }' "$raw" | sort -g |
		awk '{ v[NR] = $1 } END { if (!NR) { print "-"; exit }
			m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
			printf "%.2f (%.2f-%.2f, n=%d)\n", m, v[1], v[NR], NR }'
}
show() { printf '%-44s %s\n' "$1" "$2" | tee -a "$raw"; }

head_of_run() {
	note "$figure $* on $(date -u +%FT%TZ), $(nproc) cores," \
		"$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)"
	note "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
	begin=$(wc -l <"$raw")
}

# import DIR POOL [OPTIONS]: read-only, below our own directory, in a fresh daemon.
fresh_import() {
	local dir=$1 pool=$2
	shift 2
	"$CENOTE" daemon stop >/dev/null 2>&1 || true
	"$CENOTE" zpool import -d "$dir" -o readonly=on -f -R "$work/mnt" "$@" "$pool" >/dev/null
}
mounted() { "$CENOTE" zfs mount | awk -v p="$1" '$1 == p { print $2 }'; }
daemon_pid() { "$CENOTE" daemon status | sed -n 's/^ *pid: //p'; }
# Kilobytes of NAME (VmRSS, VmHWM) of process PID.
memory_of() { awk -v k="$1:" '$1 == k { print $2 }' "/proc/$2/status"; }

timed() {
	/usr/bin/time -o "$work/err" -f '%e %U %S %M' "$@" >"$work/out" 2>/dev/null ||
		note "FAILED, its time means nothing: $*" >&2
	tail -n 1 "$work/err"
}

bench_zdb() {
	local dir1=$1 pool1=$2 dir2=$3 pool2=$4 round i dir pool
	head_of_run "$@"
	for ((round = 1; round <= PAIRS; round++)); do
		for i in 1 2; do
			dir=dir$i pool=pool$i
			cold
			row "$round" "cenote$i" "$(timed "$CENOTE" zdb -e -p "${!dir}" -bcc "${!pool}")"
			cold
			row "$round" "openzfs$i" "$(timed "$ZDB" -e -p "${!dir}" -bcc "${!pool}")"
		done
	done
	# Slopes: what the larger pool takes more, start-up cancelled out.
	awk -v from="$begin" 'NR > from && NF >= 3 { t[$1] = 1; v[$1, $2] = $3 }
		END { for (k in t) { print k, "cenote_slope", v[k, "cenote2"] - v[k, "cenote1"]
			print k, "openzfs_slope", v[k, "openzfs2"] - v[k, "openzfs1"] } }' "$raw" >"$work/out"
	cat "$work/out" >>"$raw"
	for i in 1 2; do
		pool=pool$i
		show "cenote zdb -bcc ${!pool}, s" "$(stat cenote$i)"
		show "OpenZFS zdb -bcc ${!pool}, s" "$(stat openzfs$i)"
	done
	show "cenote, slope, s" "$(stat cenote_slope)"
	show "OpenZFS, slope, s" "$(stat openzfs_slope)"
	show "times faster, by slope" "$(ratio openzfs_slope cenote_slope)"
}

# fio_rate IMAGE MODE DEPTH ENGINE BS [MORE]: "MiB/s IOPS".
fio_rate() {
	local file=$1 mode=$2 depth=$3 engine=$4 bs=$5
	shift 5
	fio --name=f --filename="$file" --readonly --direct=1 --rw="$mode" --bs="$bs" \
		--iodepth="$depth" --ioengine="$engine" --output-format=terse --terse-version=3 \
		"$@" 2>/dev/null | awk -F';' 'NF > 8 { printf "%.0f %d", $7 / 1024, $8 }'
}

# in_memory TURN NAME FILE COPY: a second read of a local copy.
in_memory() {
	local begin_t
	cp "$3" "$4"
	cat "$4" >/dev/null
	begin_t=$(now)
	dd if="$4" of=/dev/null bs=1M status=none
	row "$1" "$2" "$(rate "$(command stat -c %s "$4")" "$(since "$begin_t")")"
	rm -f "$4"
}

bench_read() {
	local dir=$1 pool=$2 file=$3 round img at size begin_t null
	head_of_run "$@"
	img=$(image "$dir")
	for ((round = 1; round <= PAIRS; round++)); do
		fresh_import "$dir" "$pool"
		at=$(mounted "$pool")/$file
		size=$(command stat -c %s "$at")
		cold
		begin_t=$(now)
		dd if="$at" of=/dev/null bs=1M status=none
		row "$round" mount "$(rate "$size" "$(since "$begin_t")")"
		begin_t=$(now)
		dd if="$at" of=/dev/null bs=1M status=none
		row "$round" mount_cached "$(rate "$size" "$(since "$begin_t")")"
		# The kernel's page cache on its own: the same bytes from files in memory, in
		# pages of 4 KiB (tmpfs), as FUSE has them, and in large folios (ext4, xfs).
		in_memory "$round" pages_4k "$at" /dev/shm/cenote-bench.$$
		in_memory "$round" large_folios "$at" "$work/local"
		"$CENOTE" daemon stop >/dev/null
		cold
		row "$round" fio_qd1 "$(fio_rate "$img" read 1 psync "$BS" --offset=64M --size="$size")"
		cold
		begin_t=$(now)
		"$CENOTE" cat -d "$dir" "$pool:/$file" >/dev/null
		row "$round" cat "$(rate "$size" "$(since "$begin_t")")"
		cold
		row "$round" fio_qd16 "$(fio_rate "$img" read 16 libaio "$BS" --offset=64M --size="$size")"
		cold
		row "$round" fio_1m "$(fio_rate "$img" read 16 libaio 1M --offset=64M --size="$size")"
		null=$("$CENOTE" bench fuse-null | awk '/^sequential/ { print $4 }')
		row "$round" null "$null"
	done
	# The ceiling of each round: the smaller of fio's better rate and the null file system.
	awk -v from="$begin" 'NR > from && NF >= 3 { t[$1] = 1; v[$1, $2] = $3 }
		END { for (k in t) { f = v[k, "fio_qd1"]; g = v[k, "fio_qd16"]; if (g > f) f = g
			n = v[k, "null"]; print k, "fio_best", f; print k, "ceiling", (n < f ? n : f) } }' \
		"$raw" >"$work/out"
	cat "$work/out" >>"$raw"
	show "fio, image, $BS, one at a time, MiB/s" "$(stat fio_qd1)"
	show "fio, image, $BS, depth 16, MiB/s" "$(stat fio_qd16)"
	show "fio, image, 1 MiB, depth 16, MiB/s" "$(stat fio_1m)"
	show "null FUSE file system, 1 MiB, MiB/s" "$(stat null)"
	show "through the mount, cold, MiB/s" "$(stat mount)"
	show "cenote cat, cold, start included, MiB/s" "$(stat cat)"
	show "mount / ceiling" "$(ratio mount ceiling)"
	show "mount / fio one at a time" "$(ratio mount fio_qd1)"
	show "mount / fio 1 MiB" "$(ratio mount fio_1m)"
	show "cat / fio's better" "$(ratio cat fio_best)"
	show "cat / ceiling" "$(ratio cat ceiling)"
	show "cat / fio 1 MiB" "$(ratio cat fio_1m)"
	show "through the mount, again, MiB/s" "$(stat mount_cached)"
	show "tmpfs (pages of 4 KiB), again, MiB/s" "$(stat pages_4k)"
	show "local disk's file (large folios), again, MiB/s" "$(stat large_folios)"
	show "mount again / tmpfs again" "$(ratio mount_cached pages_4k)"
	show "mount again / local disk's file again" "$(ratio mount_cached large_folios)"
}

# Samples the reads in flight at the disk below FILE until DONE appears: "mean most".
watch_depth() {
	local dev
	dev=$(command stat -c '%Hd:%Ld' "$1")
	while [ ! -e "$2" ]; do
		cat "/sys/dev/block/$dev/inflight" 2>/dev/null
		sleep 0.01
	done | awk '{ s += $1; n++; if ($1 > m) m = $1 } END { if (n) printf "%.0f %d", s / n, m; else print "- -" }'
}

bench_random() {
	local dir=$1 pool=$2 file=$3 round img at more
	head_of_run "$@"
	img=$(image "$dir")
	more=(--runtime="$SECONDS_EACH" --time_based)
	for ((round = 1; round <= PAIRS; round++)); do
		CENOTE_ARC_MAX=64M fresh_import "$dir" "$pool"
		at=$(mounted "$pool")/$file
		cold
		rm -f "$work/done"
		watch_depth "$img" "$work/done" >"$work/depth" &
		fio_rate "$at" randread 64 libaio 8k "${more[@]}" --norandommap >"$work/fio"
		touch "$work/done"
		wait $!
		row "$round" mount "$(cut -d' ' -f2 "$work/fio")"
		row "$round" mount_depth "$(cat "$work/depth")"
		"$CENOTE" daemon stop >/dev/null
		cold
		"$RANDREAD" "$dir" "$pool" "$file" 64 "$SECONDS_EACH" 64 >"$work/out"
		row "$round" process "$(awk '{ print $1 }' "$work/out")"
		row "$round" process_depth "$(awk '{ print $2 }' "$work/out")"
		cold
		row "$round" fio "$(fio_rate "$img" randread 64 libaio 8k "${more[@]}" --offset=64M \
			--size=1G --norandommap | cut -d' ' -f2)"
	done
	rm -f "$work/done" "$work/depth" "$work/fio"
	show "fio, image, depth 64, reads/s" "$(stat fio)"
	show "in process, 64 threads, reads/s" "$(stat process)"
	show "in process, device queue depth reached" "$(stat process_depth)"
	show "in process / fio" "$(ratio process fio)"
	show "libaio through the mount, reads/s" "$(stat mount)"
	show "mount, in flight at the disk, mean" "$(stat mount_depth)"
	show "mount, in flight at the disk, most" "$(awk -v f="$begin" 'NR > f && $2 == "mount_depth" && $4 > m { m = $4 } END { print m }' "$raw")"
	show "mount / fio" "$(ratio mount fio)"
}

bench_import() {
	local dir=$1 pool=$2 round pid begin_t n
	head_of_run "$@"
	for ((round = 1; round <= PAIRS; round++)); do
		"$CENOTE" daemon stop >/dev/null 2>&1 || true
		"$CENOTE" daemon start >/dev/null
		pid=$(daemon_pid)
		row "$round" rss_idle "$(memory_of VmRSS "$pid")"
		cold
		begin_t=$(now)
		"$CENOTE" zpool import -d "$dir" -o readonly=on -f -R "$work/mnt" "$pool"
		row "$round" import "$(since "$begin_t")"
		row "$round" rss_import "$(memory_of VmRSS "$pid")"
		begin_t=$(now)
		n=$("$CENOTE" zfs list -H -t all -r "$pool" | wc -l)
		row "$round" list "$(since "$begin_t")"
		begin_t=$(now)
		"$CENOTE" zfs list -H -t all -r "$pool" >/dev/null
		row "$round" list_again "$(since "$begin_t")"
		row "$round" rows "$n"
		row "$round" rss_list "$(memory_of VmRSS "$pid")"
		row "$round" peak "$(memory_of VmHWM "$pid")"
		"$CENOTE" daemon stop >/dev/null
		if [ -n "$PEER_IMPORT" ]; then
			cold
			begin_t=$(now)
			sh -c "$PEER_IMPORT" >/dev/null 2>&1
			row "$round" peer_import "$(since "$begin_t")"
			sh -c "$PEER_EXPORT" >/dev/null 2>&1
		fi
	done
	show "datasets and snapshots listed" "$(stat rows)"
	show "import, s" "$(stat import)"
	show "zfs list -t all, s" "$(stat list)"
	show "zfs list -t all, again, s" "$(stat list_again)"
	show "RSS of the daemon without a pool, KiB" "$(stat rss_idle)"
	show "RSS after the import, KiB" "$(stat rss_import)"
	show "RSS after the lists, KiB" "$(stat rss_list)"
	show "most RSS, KiB" "$(stat peak)"
	show "peer's import, s" "$(stat peer_import)"
}

# walk_rate TURN NAME DIR FIND-ACTION
walk_rate() {
	local begin_t n s
	begin_t=$(now)
	n=$(find "$3" $4 | wc -l)
	s=$(since "$begin_t")
	row "$1" "$2" "$(awk -v n="$n" -v s="$s" 'BEGIN { printf "%.0f", n / s }')" "$n" "$s"
}

bench_walk() {
	local dir=$1 pool=$2 round at
	head_of_run "$@"
	for ((round = 1; round <= PAIRS; round++)); do
		fresh_import "$dir" "$pool"
		at=$(mounted "$pool")
		cold
		walk_rate "$round" names1 "$at" -print
		walk_rate "$round" names2 "$at" -print
		fresh_import "$dir" "$pool"
		cold
		walk_rate "$round" stat1 "$at" "-printf %s\n"
		walk_rate "$round" stat2 "$at" "-printf %s\n"
		# Nothing in the kernel any more: the second pass from the daemon's memory.
		cold
		walk_rate "$round" stat3 "$at" "-printf %s\n"
		"$CENOTE" daemon stop >/dev/null
	done
	show "find, first pass, files/s" "$(stat names1)"
	show "find, second pass, files/s" "$(stat names2)"
	show "find with stat, first pass, files/s" "$(stat stat1)"
	show "find with stat, second pass, files/s" "$(stat stat2)"
	show "the same, kernel's caches dropped, files/s" "$(stat stat3)"
}

bench_memory() {
	local dir=$1 pool=$2 file=$3 round pid at size limit how
	head_of_run "$@"
	for ((round = 1; round <= PAIRS; round++)); do
		for how in direct buffered random; do
			limit=${LIMIT_MIB:-128}
			CENOTE_ARC_MAX=${limit}M fresh_import "$dir" "$pool"
			at=$(mounted "$pool")/$file
			size=$(($(command stat -c %s "$at") / 1048576))
			[ "$size" -ge $((limit * 10)) ] || note "the file is only $size MiB"
			pid=$(daemon_pid)
			row "$round" idle "$(memory_of VmRSS "$pid")"
			cold
			case $how in
			direct) dd if="$at" of=/dev/null bs=1M iflag=direct status=none ;;
			buffered) dd if="$at" of=/dev/null bs=1M status=none ;;
			random) fio_rate "$at" randread 64 libaio 128k --io_size="${size}M" >/dev/null ;;
			esac
			row "$round" "rss_$how" "$(memory_of VmRSS "$pid")"
			row "$round" "peak_$how" "$(memory_of VmHWM "$pid")"
			row "$round" "over_$how" "$(($(memory_of VmHWM "$pid") / 1024 - limit))"
			"$CENOTE" daemon stop >/dev/null
		done
	done
	show "RSS of the daemon, pool imported, KiB" "$(stat idle)"
	for how in direct buffered random; do
		show "$how: RSS after, KiB" "$(stat "rss_$how")"
		show "$how: most RSS, KiB" "$(stat "peak_$how")"
		show "$how: most RSS above the limit, MiB" "$(stat "over_$how")"
	done
}

bench_codecs() {
	local round level size bytes
	head_of_run
	for ((round = 1; round <= PAIRS; round++)); do
		note "round $round: cenote bench codecs"
		"$CENOTE" bench codecs 4K 128K 1M memcpy checksum generate reconstruct >>"$raw"
		if command -v "$RAIDZ_TEST" >/dev/null; then
			note "round $round: raidz_test -B"
			"$RAIDZ_TEST" -B >>"$raw" 2>&1
		fi
		note "round $round: a buffer larger than the caches"
		"$CENOTE" bench codecs 256M memcpy checksum >>"$raw"
	done
	# Rows as everywhere else: of ours what is in use (*), of theirs the best of all.
	awk -v from="$begin" 'NR <= from { next }
		$1 == "#" && ($2 == "turn" || $2 == "round") { t = $3 + 0 }
		$3 ~ /\*$/ && $1 == "generate" { print t, "ours_" $2 "_" $4, $5 }
		$1 == "memcpy" && $3 == "*" { print t, "memcpy_" $4, $5 }
		$3 ~ /\*$/ && $1 == "checksum" { print t, $2 "_" $4, $5 }
		/gen_p/ && NF >= 6 { op = $2; sub(",", "", op); size = $4 + 0
			rate = $5 * 8 # of one column, and 8 hold data
			k = t " theirs_" op "_" size; if (rate > best[k]) best[k] = rate }
		END { for (k in best) print k, best[k] }' "$raw" >"$work/out"
	cat "$work/out" >>"$raw"
	for size in 128K 1M; do
		[ $size = 128K ] && bytes=131072 || bytes=1048576
		for level in 1:p 2:pq 3:pqr; do
			show "raidz${level%:*} $size, ours, MiB/s" "$(stat "ours_raidz${level%:*}_$size")"
			show "raidz${level%:*} $size, raidz_test's best" "$(stat "theirs_gen_${level#*:}_$bytes")"
			show "raidz${level%:*} $size, ratio" \
				"$(ratio "ours_raidz${level%:*}_$size" "theirs_gen_${level#*:}_$bytes")"
		done
	done
	for size in 128K 256M; do
		for level in memcpy fletcher2 fletcher4 fletcher4-byteswap sha256 sha512 blake3 edonr skein; do
			show "$level $size, MiB/s" "$(stat "${level}_$size")"
		done
	done
}

case $figure in
make) exec "$root/benches/make-pools.sh" "$@" ;;
zdb) [ $# = 4 ] || usage ;;
read | random | memory) [ $# = 3 ] || usage ;;
import | walk) [ $# = 2 ] || usage ;;
codecs) [ $# = 0 ] || usage ;;
*) usage ;;
esac
# One line, so that editing this file does not disturb a run.
{ "bench_$figure" "$@"; exit; }
