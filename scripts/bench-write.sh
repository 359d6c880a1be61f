#!/usr/bin/env bash
# The engine's writes (docs/benchmarks.md, "Writing").
#
# Writes figures to benches/results/raw/DATE-write-NAME.json and what it printed beside it.
# Needs room for 14 GiB in DIR, fio, and for stable figures a quiet machine; NICE=-15
# (root) takes the processors from other work.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
: "${CENOTE:=$root/target/release/cenote}"   # the binary under test
: "${RUNS:=$root/benches/results/raw}"
: "${DIR:=${TMPDIR:-/tmp}}"                  # where the images are made: a disk
: "${ROUNDS:=7}"                             # rounds
: "${NICE:=0}"
: "${TAG:=}"

mkdir -p "$RUNS"
[ $# -gt 0 ] || set -- bulk lz4 raidz random blocks snapshot memory crash
# One line, so that editing this file does not disturb a run.
{ for cell in "$@"; do
	file=$RUNS/$(date +%F)-write-$cell${TAG:+-$TAG}
	printf '# %s, load %s, nice %s\n' "$cell" "$(cut -d' ' -f1-3 /proc/loadavg)" "$NICE" | tee "$file.txt"
	nice -n "$NICE" "$CENOTE" bench write "$cell" --dir "$DIR" --rounds "$ROUNDS" ${OPTIONS:-} \
		--json "$file.json" | tee -a "$file.txt"
done; exit; }
