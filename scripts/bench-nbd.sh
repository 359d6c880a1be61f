#!/usr/bin/env bash
# Volumes as network block devices (docs/benchmarks.md): fio's nbd engine and nbdcopy, over Unix
# sockets, in alternation. The servers are Cenote, `nbdkit memory` (what the transport permits),
# and `nbdkit file` and `qemu-nbd` over a raw file on the same disk. Needs root, FUSE, fio with
# its nbd engine, nbdkit, qemu-nbd and nbdcopy.
#
# CELLS of: seqread randread seqwrite randwrite sparse. MIB is the size of the pool, SIZE that of
# the volume. Leaves benches/results/raw/DATE-nbd.txt.
set -uo pipefail
: "${MIB:=6144}"
. "$(dirname "$0")/posix-lib.sh"
: "${RUNS:=$root/benches/results/raw}"
: "${ROUNDS:=7}"
: "${SIZE:=1024}"        # MiB of the volume
: "${SECONDS_EACH:=5}"   # longest time of a figure
: "${VOLBLOCK:=8K}"
[ $# -gt 0 ] || set -- seqread randread seqwrite randwrite sparse
for program in fio nbdkit qemu-nbd nbdcopy; do has "$program" || exit 0; done
fio --enghelp 2>/dev/null | grep -qw nbd || { skip programs "fio has no nbd engine" && exit 0; }
mkdir -p "$RUNS"

servers=()
stop_servers() {
	for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null; done
	cleanup
}
trap stop_servers EXIT

uri() {
	case $1 in
	cenote) echo "nbd+unix:///tank/vol?socket=$work/run/nbd" ;;
	*) echo "nbd+unix:///?socket=$work/$1.sock" ;;
	esac
}

# fio SERVER HOW BLOCK DEPTH: MB/s and operations a second.
figure() {
	fio --name=n --ioengine=nbd "--uri=$(uri "$1")" "--rw=$2" "--bs=$3" "--iodepth=$4" --size="${SIZE}M" \
		--time_based=1 --runtime="$SECONDS_EACH" --randrepeat=0 --norandommap=1 --refill_buffers=0 \
		--output-format=json 2>/dev/null |
		# The engine has its say first.
		sed -n '/^{/,$p' |
		python3 -c 'import json, sys
job = json.load(sys.stdin)["jobs"][0]
side = max((job["read"], job["write"]), key=lambda s: s["total_ios"])
print("%.0f %.0f" % (side["bw_bytes"] / 1e6, side["iops"]))'
}

new_pool || exit 1
"$CENOTE" zfs create -b "$VOLBLOCK" -V "${SIZE}M" tank/vol || exit 1
disk_file "$work/raw.img" "$SIZE"
nbdkit -f -U "$work/memory.sock" memory "${SIZE}M" >/dev/null 2>&1 &
servers+=($!)
nbdkit -f -U "$work/file.sock" file "$work/raw.img" >/dev/null 2>&1 &
servers+=($!)
cp --sparse=never "$work/raw.img" "$work/raw2.img"
qemu-nbd -t -f raw --cache=none --aio=native -k "$work/qemu.sock" "$work/raw2.img" >/dev/null 2>&1 &
servers+=($!)
sleep 1
# Everything is written once, and read once.
for server in cenote memory file qemu; do
	fio --name=n --ioengine=nbd "--uri=$(uri $server)" --rw=write --bs=1M --iodepth=8 --size="${SIZE}M" >/dev/null 2>&1
	fio --name=n --ioengine=nbd "--uri=$(uri $server)" --rw=read --bs=1M --iodepth=8 --size="${SIZE}M" >/dev/null 2>&1
done

out=$RUNS/$(date +%F)-nbd.txt
{
	echo "# $(uname -r), load $(cut -d' ' -f1-3 /proc/loadavg), volume of $SIZE MiB in blocks of $VOLBLOCK"
	echo "# round, cell, server, MB/s, operations a second"
	for round in $(seq "$ROUNDS"); do
		for cell in "$@"; do
			case $cell in
			seqread) how="read 256k 8" who="cenote memory file qemu" ;;
			randread) how="randread 8k 32" who="cenote memory file qemu" ;;
			seqwrite) how="write 256k 8" who="cenote memory file qemu" ;;
			randwrite) how="randwrite 8k 32" who="cenote memory file qemu" ;;
			*) continue ;;
			esac
			for server in $who; do
				# shellcheck disable=SC2086
				echo "$round $cell $server $(figure "$server" $how)"
			done
		done
	done
	for cell in "$@"; do
		[ "$cell" = sparse ] || continue
		"$CENOTE" zfs create -s -V 1T tank/sparse
		for round in $(seq "$ROUNDS"); do
			rm -f "$work/copy"
			begin=$(date +%s.%N)
			nbdcopy "nbd+unix:///tank/sparse?socket=$work/run/nbd" "$work/copy"
			echo "$round sparse cenote $(date +%s.%N) $begin" | awk '{printf "%s %s %s %.2f s\n", $1, $2, $3, $4 - $5}'
		done
	done
} | tee "$out"
awk '
	/^#/ || $2 == "sparse" { next }
	{ v[$1, $2, $3] = $2 ~ /^seq/ ? $4 : $5; cells[$2] = 1; rounds = $1 > rounds ? $1 : rounds }
	function put(k, x) { n[k]++; list[k, n[k]] = x; keys[k] = 1 }
	function show(k,   i, j, t) {
		for (i = 1; i <= n[k]; i++) for (j = i + 1; j <= n[k]; j++) if (list[k, j] + 0 < list[k, i] + 0) { t = list[k, i]; list[k, i] = list[k, j]; list[k, j] = t }
		printf "%-36s median %10.2f  least %10.2f  most %10.2f  rounds %d\n", k, list[k, int((n[k] + 1) / 2)], list[k, 1], list[k, n[k]], n[k]
	}
	END {
		split("cenote memory file qemu", names, " ")
		for (c in cells) for (t = 1; t <= rounds; t++) {
			for (i in names) put(c " " names[i], v[t, c, names[i]])
			best = v[t, c, "file"] > v[t, c, "qemu"] ? v[t, c, "file"] : v[t, c, "qemu"]
			if (v[t, c, "memory"]) put(c " cenote / memory", v[t, c, "cenote"] / v[t, c, "memory"])
			if (best) put(c " cenote / best of file and qemu", v[t, c, "cenote"] / best)
		}
		for (k in keys) show(k)
	}' "$out" | sort | tee "$out.sum"
cat "$out.sum" >>"$out" && rm -f "$out.sum"
"$CENOTE" zfs destroy tank/vol
judge
exit "$bad"
