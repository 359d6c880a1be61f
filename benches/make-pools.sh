#!/usr/bin/env bash
# Pools for scripts/bench.sh, made by any ZFS that can write: OpenZFS's kernel
# module, zfs-fuse, or later Cenote itself. ZPOOL and ZFS name its commands.
#
#   benches/make-pools.sh DIR
#
# Sizes: SMALL_MIB and LARGE_MIB of incompressible data in `big1` and `big4`,
# RAND_MIB in one file of 8 KiB records in `rand8`, FILES small files (0.6 to
# 3 KiB, 200 a directory) in `small`, GROUPS of 99 file systems each and a
# snapshot of every one in `many`. Each pool is one image in a directory of its
# own, and is exported; digests of the large files are kept beside.
set -euo pipefail
dir=${1:?usage: make-pools.sh DIR}
: "${ZPOOL:=zpool}" "${ZFS:=zfs}"
: "${SMALL_MIB:=512}" "${LARGE_MIB:=3712}" "${RAND_MIB:=1024}" "${FILES:=100000}" "${GROUPS_OF_99:=50}"
mkdir -p "$dir/mnt"
dir=$(cd "$dir" && pwd)

create() { # NAME MIB OPTIONS...
	local name=$1 mib=$2
	shift 2
	mkdir -p "$dir/$name"
	truncate -s "${mib}M" "$dir/$name/$name.img"
	"$ZPOOL" create -o cachefile=none -O compression=off "$@" "$name" "$dir/$name/$name.img"
}
# Bytes that nothing compresses, the same for the same seed.
noise() { openssl enc -aes-128-ctr -pass "pass:$1" -nosalt -pbkdf2 -iter 1 </dev/zero 2>/dev/null | head -c "${2}M"; }
finish() {
	(cd "$dir/mnt" && find "$1" -type f -size +1M -exec sha256sum {} +) >>"$dir/digests"
	"$ZPOOL" export "$1"
}

for pool in big1 big4; do
	[ $pool = big1 ] && more=$SMALL_MIB || more=$LARGE_MIB
	create $pool $(((1024 + more) * 3 / 2)) -m "$dir/mnt/$pool"
	noise a 1024 >"$dir/mnt/$pool/file1g"
	for ((part = 0; more > 0; part++, more -= 2048)); do
		noise "$pool$part" $((more > 2048 ? 2048 : more)) >"$dir/mnt/$pool/more$part"
	done
	finish $pool
done

create rand8 $((RAND_MIB * 3)) -m "$dir/mnt/rand8" -O recordsize=8K
noise r "$RAND_MIB" >"$dir/mnt/rand8/file1g"
finish rand8

create small $((FILES / 64 + 512)) -m "$dir/mnt/small"
noise s 1 >"$dir/noise"
for ((n = 0; n < FILES; n++)); do
	[ $((n % 200)) != 0 ] || mkdir "$dir/mnt/small/d$((n / 200))"
	head -c $((600 + n * 7919 % 2472)) "$dir/noise" >"$dir/mnt/small/d$((n / 200))/f$((n % 200))"
done
finish small

create many $((GROUPS_OF_99 * 80 + 512)) -O mountpoint=none
for ((g = 1; g <= GROUPS_OF_99; g++)); do
	"$ZFS" create "many/g$g"
	for ((d = 1; d <= 99; d++)); do "$ZFS" create "many/g$g/d$d"; done
done
"$ZFS" snapshot -r many@s1
finish many
