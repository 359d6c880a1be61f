#!/usr/bin/env bash
# The cache's benches (docs/benchmarks.md), with the sizes of the four old reports.
#
# Each writes its figures to benches/results/raw/DATE-NAME.json (and what it printed beside
# it), its pictures to DATE-NAME.svg. Needs room for 2.5 GiB in DIR and the memory
# for it twice; the mounts need /dev/fuse, and dropping the kernel's caches needs root.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
: "${CENOTE:=$root/target/release/cenote}"   # the binary under test
: "${RUNS:=$root/benches/results/raw}"
: "${DIR:=${TMPDIR:-/tmp}}"                  # where images are made: a disk, not a tmpfs
: "${PEER_DIR:=}"                            # a directory of another file system (zfs-fuse)
: "${ROUNDS:=5}"                             # rounds
: "${TAG:=}"

usage() {
	cat >&2 <<-'EOF'
	usage: scripts/bench-cache.sh [poison | du | stress | cached]...
	  poison   random reads before and after a scan, uniform and skewed, through the mount too
	  du       walks of a tree whose metadata is 1.5 times the cache
	  stress   a key-value store in 16 MiB whose set grows
	  cached   8 KiB reads from memory, beside memcpy, the decoder, other file systems
	environment: CENOTE, RUNS, DIR, PEER_DIR, ROUNDS, TAG
	EOF
	exit 2
}

mkdir -p "$RUNS"
# bench NAME OPTIONS...: one bench, its raw figures kept.
bench() {
	local name=$1 file
	file=$RUNS/$(date +%F)-cache-$name${TAG:+-$TAG}
	shift
	printf '# %s, load %s\n' "$name" "$(cut -d' ' -f1-3 /proc/loadavg)" | tee "$file.txt"
	"$CENOTE" bench "$@" --dir "$DIR" --json "$file.json" --svg "$file.svg" | tee -a "$file.txt"
}

run() {
	case $1 in
	poison)
		bench poison poison --policy default,arc --rounds "$ROUNDS" --time 3s --mount
		bench poison-skew poison --policy default,arc --rounds "$ROUNDS" --skew 0.9
		bench poison-lz4 poison --policy default --rounds "$ROUNDS" --lz4
		;;
	du) bench du du --stream --mount ;;
	stress) bench stress stress --policy default,arc ;;
	cached) bench cached cached --rounds "$ROUNDS" ${PEER_DIR:+--peer-dir "$PEER_DIR"} ;;
	*) usage ;;
	esac
}

[ $# -gt 0 ] || set -- poison du stress cached
for figure in "$@"; do
	case $figure in poison | du | stress | cached) ;; *) usage ;; esac
done
# One line, so that editing this file does not disturb a run.
{ for figure in "$@"; do run "$figure"; done; exit; }
