#!/usr/bin/env bash
# Synchronous writes (docs/benchmarks.md, "Synchronous writes").
#
# Cells `rate`, `bytes`, `beside` and `replay` run in process (`cenote bench sync`) and leave
# benches/results/raw/DATE-sync-CELL.json with what was printed. Cell `mount` has fio write 8 KiB
# blocks with O_DSYNC through a mount, on ext4, btrfs and zfs-fuse in files of the same disk,
# and write and fdatasync in a file of the disk itself, in alternation; flushes and bytes are those
# that the disk counted. Cell `mount-beside` has one process fsync 8 KiB writes there, alone
# and while another one writes a file of 1 GiB over and over without syncing it. Both need
# root, FUSE and fio.
set -uo pipefail
: "${MIB:=2048}"
WRITTEN=1
. "$(dirname "$0")/posix-lib.sh"
: "${PEER:=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse/sbin}"
: "${RUNS:=$root/benches/results/raw}"
: "${ROUNDS:=7}"   # rounds
: "${WRITES:=1000}" # writes of a round
: "${JOBS:=8}"     # writers of the second figure
: "${TAG:=}"
mkdir -p "$RUNS"
[ $# -gt 0 ] || set -- rate bytes beside replay mount mount-beside

# The disk below a directory: its statistics.
disk=$(lsblk -no PKNAME "$(df --output=source "$DIR" | tail -1)" 2>/dev/null | head -1)
disk=${disk:-$(basename "$(df --output=source "$DIR" | tail -1)")}
stat=/sys/block/$disk/stat

# rate FILE JOBS HOW: writes a second, flushes a write, KiB a write that the disk counted.
rate() {
	local before after out
	before=$(awk '{print $7, $16}' "$stat" 2>/dev/null || echo 0 0)
	out=$(fio --name=s "--directory=$1" "--numjobs=$2" $3 --rw=write --bs=8k --ioengine=psync \
		--size=$((WRITES * 8 / $2))k --overwrite=1 --fallocate=none --group_reporting \
		--output-format=terse --terse-version=3 2>/dev/null | grep '^3;' | cut -d';' -f49)
	after=$(awk '{print $7, $16}' "$stat" 2>/dev/null || echo 0 0)
	echo "${out:-0} $before $after $WRITES" | awk '{printf "%s %.2f %.1f\n", $1, ($5 - $3) / $6, ($4 - $2) / 2 / $6}'
}

# Mounts a pool and the peers that are there, on disks of that many MiB.
bring() {
	local image
	peers=() daemon=
	new_pool -O recordsize=8k || return 1
	mkdir -p "$work/disk"
	for image in ext4 btrfs; do
		has "mkfs.$image" || continue
		disk_file "$work/$image.img" "$1" && mkdir -p "$work/$image"
		case $image in ext4) mkfs.ext4 -q "$work/ext4.img" ;; btrfs) mkfs.btrfs -q "$work/btrfs.img" ;; esac
		mount -o loop "$work/$image.img" "$work/$image" && peers+=("$image")
	done
	if [ ! -x "$PEER/zfs-fuse" ] || pgrep -r R,S,D -x zfs-fuse >/dev/null; then
		echo "SKIPPED: zfs-fuse is absent, or another one runs"
		return
	fi
	mkdir -p /var/run/zfs /var/lib/zfs
	"$PEER/zfs-fuse" --no-daemon >/dev/null 2>&1 &
	daemon=$!
	for _ in 1 2 3 4 5; do "$PEER/zpool" list >/dev/null 2>&1 && break || sleep 1; done
	# One that a run left behind.
	"$PEER/zpool" destroy -f zfpeer 2>/dev/null
	disk_file "$work/zf.img" "$1"
	"$PEER/zpool" create -O recordsize=8k -m "$work/zf" zfpeer "$work/zf.img" && peers+=(zf)
}

bring_down() {
	local where
	for where in "${peers[@]}"; do
		case $where in zf) umount "$work/zf" && "$PEER/zpool" destroy -f zfpeer ;; *) umount "$work/$where" ;; esac
	done
	[ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; }
	judge
}

mount_cell() {
	local round where
	bring 1024 || return 1
	# Every file is written before.
	for where in disk mnt "${peers[@]}"; do rate "$work/$where" 1 "" >/dev/null; rate "$work/$where" "$JOBS" "" >/dev/null; done
	sync
	echo "# round, where, writers, writes a second, flushes a write, KiB on the disk a write"
	for round in $(seq "$ROUNDS"); do
		echo "$round disk 1 $(rate "$work/disk" 1 --fdatasync=1)"
		echo "$round cenote 1 $(rate "$mnt" 1 --sync=dsync)"
		echo "$round cenote $JOBS $(rate "$mnt" "$JOBS" --sync=dsync)"
		for where in "${peers[@]}"; do
			echo "$round $where 1 $(rate "$work/$where" 1 --sync=dsync)"
			echo "$round $where $JOBS $(rate "$work/$where" "$JOBS" --sync=dsync)"
		done
	done
	bring_down
}

# fsyncs DIR: median, p99 and longest of WRITES fsyncs in ms, and how many a second.
fsyncs() {
	fio --name=f "--directory=$1" --rw=write --bs=8k --ioengine=psync --size=$((WRITES * 8))k --overwrite=1 \
		--fallocate=none --fsync=1 --output-format=json 2>/dev/null |
		python3 -c 'import json, sys
job = json.load(sys.stdin)["jobs"][0]
lat = job["sync"]["lat_ns"]
at = lat["percentile"]
print(*("%.2f" % (ns / 1e6) for ns in (at["50.000000"], at["99.000000"], lat["max"])), "%.0f" % job["write"]["iops"])'
}

mount_beside_cell() {
	local round where stream
	has python3 || return 0
	bring "$MIB" || return 1
	for where in mnt "${peers[@]}"; do fsyncs "$work/$where" >/dev/null; done
	# The stream's file has large blocks.
	"$CENOTE" zfs set recordsize=128K tank
	[ -z "$daemon" ] || "$PEER/zfs" set recordsize=128K zfpeer
	disk_file "$work/noise" 1024
	sync
	echo "# round, where, stream or quiet; an fsync's median, p99 and longest in ms; fsyncs a second; the stream's GiB meanwhile"
	for round in $(seq "$ROUNDS"); do
		for where in mnt "${peers[@]}"; do
			echo "$round $where quiet $(fsyncs "$work/$where") 0"
			: >"$work/written"
			while dd if="$work/noise" of="$work/$where/stream" bs=1M conv=notrunc 2>/dev/null; do echo >>"$work/written"; done &
			stream=$!
			sleep 1
			echo "$round $where stream $(fsyncs "$work/$where") $(wc -l <"$work/written")"
			kill "$stream" && wait "$stream" 2>/dev/null
			pkill -f "of=$work/$where/stream"
			sync -f "$work/$where"
			rm "$work/$where/stream"
			sync
			sleep 3
		done
	done
	bring_down
}

beside_summary() {
	python3 - "$1" <<'EOF'
import sys
from statistics import median
rows = [line.split() for line in open(sys.argv[1]) if line[0].isdigit()]
at = {(r[0], r[1], r[2]): [float(x) for x in r[3:]] for r in rows if len(r) == 8}
for where in dict.fromkeys(r[1] for r in rows):
    show = lambda what, list: print(f"{where:<8} {what:<28} median {median(list):9.2f}  least {min(list):9.2f}  most {max(list):9.2f}  rounds {len(list)}")
    rounds = [(q, at[t, where, "stream"]) for (t, w, k), q in at.items() if w == where and k == "quiet" and (t, w, "stream") in at]
    if not rounds: continue
    show("p99 alone, ms", [q[1] for q, s in alternation])
    show("p99 beside the stream, ms", [s[1] for q, s in alternation])
    show("of these: ratio", [s[1] / q[1] for q, s in alternation])
    show("longest beside, ms", [s[2] for q, s in alternation])
    show("fsyncs a second alone", [q[3] for q, s in alternation])
    show("fsyncs a second beside", [s[3] for q, s in alternation])
EOF
}

# Medians and ranges; ratios are taken inside a round.
summary() {
	awk '
		NF != 6 || $1 !~ /^[0-9]+$/ { next }
		{ v[$1, $2, $3] = $4; seen[$2 " " $3] = 1; rounds = $1 > rounds ? $1 : rounds
		  put($2 " " $3 " writes/s", $4); put($2 " " $3 " flushes a write", $5); put($2 " " $3 " KiB a write", $6) }
		function put(k, x) { n[k]++; x_[k, n[k]] = x; keys[k] = 1 }
		function show(k,   i, j, t, m) {
			for (i = 1; i <= n[k]; i++) for (j = i + 1; j <= n[k]; j++) if (x_[k, j] + 0 < x_[k, i] + 0) { t = x_[k, i]; x_[k, i] = x_[k, j]; x_[k, j] = t }
			m = n[k] % 2 ? x_[k, (n[k] + 1) / 2] : (x_[k, n[k] / 2] + x_[k, n[k] / 2 + 1]) / 2
			printf "%-36s median %10.2f  least %10.2f  most %10.2f  rounds %d\n", k, m, x_[k, 1], x_[k, n[k]], n[k]
		}
		END {
			for (t = 1; t <= rounds; t++) {
				if (v[t, "disk", 1]) put("cenote 1 / disk", v[t, "cenote", 1] / v[t, "disk", 1])
				if (v[t, "cenote", 1]) put("cenote many / one", v[t, "cenote", jobs] / v[t, "cenote", 1])
				if (v[t, "ext4", 1]) put("cenote 1 / ext4", v[t, "cenote", 1] / v[t, "ext4", 1])
				if (v[t, "btrfs", 1]) put("cenote 1 / btrfs", v[t, "cenote", 1] / v[t, "btrfs", 1])
				if (v[t, "zf", 1]) put("cenote 1 / zfs-fuse", v[t, "cenote", 1] / v[t, "zf", 1])
			}
			for (k in keys) show(k)
		}' "jobs=$JOBS" "$1" | sort
}

# One line, so that editing this file does not disturb a run.
{ for cell in "$@"; do
	file=$RUNS/$(date +%F)-sync-$cell${TAG:+-$TAG}
	printf '# %s, load %s\n' "$cell" "$(cut -d' ' -f1-3 /proc/loadavg)" | tee "$file.txt"
	case $cell in
	mount)
		mount_cell | tee -a "$file.txt"
		summary "$file.txt" | tee "$file.sum" && cat "$file.sum" >>"$file.txt" && rm -f "$file.sum"
		;;
	mount-beside)
		mount_beside_cell | tee -a "$file.txt"
		beside_summary "$file.txt" | tee "$file.sum" && cat "$file.sum" >>"$file.txt" && rm -f "$file.sum"
		;;
	*)
		"$CENOTE" bench sync "$cell" --dir "$DIR" --rounds "$ROUNDS" ${OPTIONS:-} --json "$file.json" | tee -a "$file.txt"
		;;
	esac
done; exit "$bad"; }
