#!/usr/bin/env bash
# Synchronous writes (docs/benchmarks.md, "Synchronous writes").
#
# Cells `rate`, `bytes`, `beside` and `replay` run in process (`cenote bench sync`) and leave
# benches/runs/DATE-sync-CELL.json with what was printed. Cell `mount` has fio write 8 KiB
# blocks with O_DSYNC through a mount, on ext4, btrfs and zfs-fuse in files of the same disk,
# and write and fdatasync in a file of the disk itself, in turns; flushes and bytes are those
# that the disk counted. It needs root, FUSE and fio.
set -uo pipefail
: "${MIB:=2048}"
WRITTEN=1
. "$(dirname "$0")/posix-lib.sh"
: "${PEER:=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse/sbin}"
: "${RUNS:=$root/benches/runs}"
: "${ROUNDS:=7}"   # turns
: "${WRITES:=1000}" # writes of a turn
: "${JOBS:=8}"     # writers of the second figure
: "${TAG:=}"
mkdir -p "$RUNS"
[ $# -gt 0 ] || set -- rate bytes beside replay mount

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

mount_cell() {
	local peers=() image turn where rest
	new_pool -O recordsize=8k || return 1
	mkdir -p "$work/disk"
	for image in ext4 btrfs; do
		has "mkfs.$image" || continue
		disk_file "$work/$image.img" 1024 && mkdir "$work/$image"
		case $image in ext4) mkfs.ext4 -q "$work/ext4.img" ;; btrfs) mkfs.btrfs -q "$work/btrfs.img" ;; esac
		mount -o loop "$work/$image.img" "$work/$image" && peers+=("$image")
	done
	local daemon=
	if [ ! -x "$PEER/zfs-fuse" ] || pgrep -r R,S,D -x zfs-fuse >/dev/null; then
		echo "SKIPPED: zfs-fuse is absent, or another one runs"
	else
		mkdir -p /var/run/zfs /var/lib/zfs
		"$PEER/zfs-fuse" --no-daemon >/dev/null 2>&1 &
		daemon=$!
		for _ in 1 2 3 4 5; do "$PEER/zpool" list >/dev/null 2>&1 && break || sleep 1; done
		# One that a run left behind.
		"$PEER/zpool" destroy -f zfpeer 2>/dev/null
		disk_file "$work/zf.img" 1024
		"$PEER/zpool" create -O recordsize=8k -m "$work/zf" zfpeer "$work/zf.img" && peers+=(zf)
	fi
	# Every file is written before.
	for where in disk mnt "${peers[@]}"; do rate "$work/$where" 1 "" >/dev/null; rate "$work/$where" "$JOBS" "" >/dev/null; done
	sync
	echo "# turn, where, writers, writes a second, flushes a write, KiB on the disk a write"
	for turn in $(seq "$ROUNDS"); do
		echo "$turn disk 1 $(rate "$work/disk" 1 --fdatasync=1)"
		echo "$turn cenote 1 $(rate "$mnt" 1 --sync=dsync)"
		echo "$turn cenote $JOBS $(rate "$mnt" "$JOBS" --sync=dsync)"
		for where in "${peers[@]}"; do
			echo "$turn $where 1 $(rate "$work/$where" 1 --sync=dsync)"
			echo "$turn $where $JOBS $(rate "$work/$where" "$JOBS" --sync=dsync)"
		done
	done
	for where in "${peers[@]}"; do
		case $where in zf) umount "$work/zf" && "$PEER/zpool" destroy -f zfpeer ;; *) umount "$work/$where" ;; esac
	done
	[ -z "$daemon" ] || kill "$daemon"
	judge
}

# Medians and ranges; ratios are taken inside a turn.
summary() {
	awk '
		NF != 6 || $1 !~ /^[0-9]+$/ { next }
		{ v[$1, $2, $3] = $4; seen[$2 " " $3] = 1; turns = $1 > turns ? $1 : turns
		  put($2 " " $3 " writes/s", $4); put($2 " " $3 " flushes a write", $5); put($2 " " $3 " KiB a write", $6) }
		function put(k, x) { n[k]++; x_[k, n[k]] = x; keys[k] = 1 }
		function show(k,   i, j, t, m) {
			for (i = 1; i <= n[k]; i++) for (j = i + 1; j <= n[k]; j++) if (x_[k, j] + 0 < x_[k, i] + 0) { t = x_[k, i]; x_[k, i] = x_[k, j]; x_[k, j] = t }
			m = n[k] % 2 ? x_[k, (n[k] + 1) / 2] : (x_[k, n[k] / 2] + x_[k, n[k] / 2 + 1]) / 2
			printf "%-36s median %10.2f  least %10.2f  most %10.2f  turns %d\n", k, m, x_[k, 1], x_[k, n[k]], n[k]
		}
		END {
			for (t = 1; t <= turns; t++) {
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
	if [ "$cell" = mount ]; then
		mount_cell | tee -a "$file.txt"
		summary "$file.txt" | tee "$file.sum" && cat "$file.sum" >>"$file.txt" && rm -f "$file.sum"
	else
		"$CENOTE" bench sync "$cell" --dir "$DIR" --rounds "$ROUNDS" ${OPTIONS:-} --json "$file.json" | tee -a "$file.txt"
	fi
done; exit "$bad"; }
