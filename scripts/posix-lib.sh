# A mounted pool for the scripts beside this file; to be sourced.
#
# CENOTE names the binary, DIR a directory on a disk with room, MIB the pool's size. After
# that: $mnt is the pool's root file system, `judge` exports the pool and has OpenZFS's
# zdb look at every block.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${CENOTE:=$root/target/release/cenote}"
: "${DIR:=${TMPDIR:-/tmp}}"
: "${MIB:=4096}"
. "$root/scripts/need.sh"
[ "$(id -u)" = 0 ] || { skip root "needs root" && exit 0; }
[ -e /dev/fuse ] || { skip fuse "/dev/fuse is absent" && exit 0; }

work=$(mktemp -d "$DIR/cenote-posix.XXXXXX")
mnt=$work/mnt
export CENOTE_RUNTIME_DIR=$work/run
chmod 755 "$work"
cleanup() {
	cd /
	"$CENOTE" daemon stop -f >/dev/null 2>&1
	if [ -n "${ext4:-}" ]; then umount "$ext4" 2>/dev/null; fi
	rm -rf "$work"
}
trap cleanup EXIT
bad=0

. "$root/scripts/disk-file.sh"

# A new pool; arguments go to `zpool create`.
new_pool() {
	mkdir -p "$work/disks" "$mnt"
	disk_file "$work/disks/disk" "$MIB"
	"$CENOTE" zpool create -O "mountpoint=$mnt" "$@" tank "$work/disks/disk"
	chmod 755 "$mnt"
}

# Exports the pool; says whether it is whole.
judge() {
	cd /
	"$CENOTE" zpool export tank || bad=1
	command -v zdb >/dev/null || { skip zdb "zdb is not installed" && return 0; }
	if zdb -e -p "$work/disks" -bcc tank >"$work/zdb" 2>&1 && grep -q 'No leaks' "$work/zdb"; then
		echo "zdb -e -bcc: clean"
	else
		echo "zdb -e -bcc: NOT CLEAN" && tail -20 "$work/zdb" && bad=1
	fi
}

has() {
	command -v "$1" >/dev/null && return 0
	skip programs "$1 is not installed"
	return 1
}
