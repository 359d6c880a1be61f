#!/usr/bin/env bash
# Wall time of a compiler build, a git clone and a git checkout on a mounted pool and on
# ext4 in a file of the same disk, interleaved (docs/benchmarks.md).
#
# CRATE is built in its debug profile, its sources and dependencies on the file system
# that is measured; GIT is a repository to clone, CHECKOUT two of its revisions. PAIRS runs
# each, CLONES of the clone. Arguments choose some of: build clone checkout.
set -uo pipefail
. "$(dirname "$0")/posix-lib.sh"
: "${CRATE:=ripgrep}"
: "${GIT:=$root}"
: "${CHECKOUT:=}"
: "${PAIRS:=3}"
: "${CLONES:=$PAIRS}"
ext4=$work/ext4
mkdir "$ext4" "$work/fetch"
truncate -s "${MIB}M" "$work/ext4.img"
mkfs.ext4 -q "$work/ext4.img" && mount -o loop "$work/ext4.img" "$ext4" || exit 1
new_pool || exit 1

[[ " ${*:-build} " != *" build "* ]] || (
	cd "$work/fetch" && cargo -q init --name fetch --bin . && cargo -q add "$CRATE" && cargo -q vendor v >/dev/null 2>&1
	mv "v/$CRATE" "$work/source" && rm -rf v && cd "$work/source" && rm -f .cargo-checksum.json
	mkdir .cargo && cargo -q vendor >.cargo/config.toml 2>/dev/null
) || { echo "SKIPPED: $CRATE cannot be fetched" && exit 0; }
[ ! -d "$work/source" ] || for fs in "$mnt" "$ext4"; do cp -r "$work/source" "$fs/source"; done
sync

seconds() {
	local begin
	begin=$(date +%s.%N)
	"$@" >"$work/log" 2>&1 || { echo "FAILED: $*" && tail -3 "$work/log"; } >&2
	echo "$(date +%s.%N) $begin" | awk '{printf "%.1f", $1 - $2}'
}
build() {
	rm -rf "$1/source/target"
	(cd "$1/source" && seconds env -u CARGO_TARGET_DIR -u RUSTFLAGS cargo build --offline)
}
clone() {
	rm -rf "$1/clone"
	seconds git clone --no-local -q "$GIT" "$1/clone"
}
checkout() {
	local a b
	a=${CHECKOUT% *} b=${CHECKOUT#* }
	seconds bash -c "cd '$1/clone' && git checkout -q $a && git checkout -q $b && git status --porcelain"
}
[ $# -gt 0 ] || set -- build clone ${CHECKOUT:+checkout}
for what in "$@"; do
	rounds=$PAIRS
	[ "$what" = clone ] && rounds=$CLONES
	for _ in $(seq "$rounds"); do
		echo "$what: Cenote $($what "$mnt") s, ext4 $($what "$ext4") s"
		sync
	done
done
judge
exit "$bad"
