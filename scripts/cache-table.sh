#!/usr/bin/env bash
# The table of docs/cache.md: traces x sizes x policies, from `cenote bench cache`.
#
#   scripts/cache-table.sh DIR
#
# DIR holds the traces as tests/fixtures/traces/README.md names their origins:
# lirs/*.trace.gz, arc/*.lis.zst, cloudphysics/*, block/*. Prints Markdown; a trace that is
# not there is left out. CENOTE: the binary (default target/release/cenote).
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
dir=$1
root=$(cd "$(dirname "$0")/.." && pwd)
: "${CENOTE:=$root/target/release/cenote}"
policies=default,arc,lru,lirs,2q,s3fifo,sieve,wtinylfu,min

echo "| trace | pages | default | arc | lru | lirs | 2q | s3fifo | sieve | wtinylfu | min |"
echo "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
row() {
	[ -e "$dir/$1" ] || return 0
	"$CENOTE" bench cache --trace "$dir/$1" --size "$2" --policy "$policies" |
		awk 'NR > 1 { sub(/\.(trace|lis|vscsi)$/, "", $1); printf "|"; for (i = 1; i <= NF; i++) printf " %s |", $i; print "" }'
}
row lirs/loop.trace.gz 50,100,300,500,700,900,1000
row lirs/scan.trace.gz 100,400,800,1200,1600,1950
row lirs/cs.trace.gz 50,100,300,500,700,900,1100,1300
row lirs/gli.trace.gz 100,250,500,1000,1500,1750,2000,2450
row lirs/ps.trace.gz 100,300,900,1500,2100,2700,3000
row lirs/multi1.trace.gz 50,260,780,1300,1820,2340
row lirs/multi2.trace.gz 100,600,1700,2800,4000,5100
row lirs/multi3.trace.gz 100,750,2200,3700,5200,6700
row lirs/zigzag.trace.gz 100,400,800,1000,1400,1800
row lirs/backf.trace.gz 75,225,300,375,525,675
row lirs/cpp.trace.gz 20,50,100,200,300,500,900
row lirs/sprite.trace.gz 100,400,1000,3000,5000,7000
row lirs/2_pools.trace.gz 100,450,1000,3000,6000,9000
row arc/OLTP.lis.zst 1000,2000,5000,10000,15000
for p in P2 P3 P6 P12; do row "arc/$p.lis.zst" 1K,4K,16K,64K,256K; done
row cloudphysics/w106.trace.xz 1000,16000,64000,200000
for t in wsrch tpcc; do row "block/$t-small.trace.xz" 1K,4K,16K,64K; done
row cloudphysics/cloudPhysicsIO.vscsi.xz 4000,16000,64000,200000
