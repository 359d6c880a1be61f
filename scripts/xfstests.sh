#!/usr/bin/env bash
# xfstests' generic tests on Cenote as FSTYP=fuse, or on ext4 in files of the same disk
# (docs/compatibility.md, "POSIX").
#
#   scripts/xfstests.sh cenote|ext4 TESTS     as `-g generic/quick` or `generic/001`
#
# XFSTESTS is where xfstests was built; LIMIT the seconds that a test may take; EXCLUDE a
# file of tests to leave out. Users fsgqa, 123456-fsgqa and fsgqa2 must be there. The log
# goes to stdout, what failed to XFSTESTS/results.
set -uo pipefail
: "${XFSTESTS:?is where xfstests was built}"
: "${LIMIT:=120}"
kind=$1
shift
. "$(dirname "$0")/posix-lib.sh"
export CENOTE CENOTE_RUNTIME_DIR
helper=/sbin/mount.fuse.zfs
export TEST_DIR=$work/test SCRATCH_MNT=$work/scratch RESULT_BASE=$XFSTESTS/results/$kind
mkdir -p "$TEST_DIR" "$SCRATCH_MNT" "$work/disks" "$RESULT_BASE"
done_with() {
	kill "$watch" 2>/dev/null
	cd /
	umount -q "$SCRATCH_MNT"
	umount -q "$TEST_DIR"
	for loop in ${loops:-}; do losetup -d "$loop"; done
	[ -L "$helper" ] && rm "$helper"
	cleanup
}
trap done_with EXIT

case $kind in
cenote)
	[ -e "$helper" ] && echo "$helper is in the way" && exit 1
	ln -s "$root/scripts/xfstests-mount.sh" "$helper"
	for pool in xtest xscratch; do
		truncate -s "${MIB}M" "$work/disks/$pool"
		"$CENOTE" zpool create -O canmount=noauto -O "mountpoint=$TEST_DIR" -O acltype=posixacl -O xattr=sa \
			-O atime=on -O relatime=on "$pool" "$work/disks/$pool" || exit 1
	done
	# xfstests expects the type alone, without what kind of FUSE it is.
	grep -q 's/fuse.zfs/fuse/' "$XFSTESTS/common/rc" ||
		sed -i "s|-e 's/fuse.ceph-fuse/ceph-fuse/'|& -e 's/fuse.zfs/fuse/'|" "$XFSTESTS/common/rc"
	export FSTYP=fuse FUSE_SUBTYP=.zfs TEST_DEV=xtest SCRATCH_DEV=xscratch
	mount -t fuse.zfs xtest "$TEST_DIR" && chmod 755 "$TEST_DIR" || exit 1
	;;
ext4)
	for dev in test scratch; do truncate -s "${MIB}M" "$work/disks/$dev" && mkfs.ext4 -q "$work/disks/$dev"; done
	TEST_DEV=$(losetup -f --show "$work/disks/test")
	SCRATCH_DEV=$(losetup -f --show "$work/disks/scratch")
	loops="$TEST_DEV $SCRATCH_DEV"
	export FSTYP=ext4 TEST_DEV SCRATCH_DEV
	;;
*) echo "cenote or ext4?" && exit 2 ;;
esac

# Ends a test that takes longer than LIMIT, with all that it started.
end_tree() {
	kill -STOP "$1" 2>/dev/null
	for child in $(pgrep -P "$1"); do end_tree "$child"; done
	kill -KILL "$1" 2>/dev/null
}
(
	while sleep 2; do
		for pid in $(pgrep -f "^/bin/bash $XFSTESTS/tests/generic/" | head -1); do
			[ "$(ps -o etimes= -p "$pid" || echo 0)" -gt "$LIMIT" ] &&
				echo "longer than $LIMIT s: $(tr '\0' ' ' <"/proc/$pid/cmdline")" && end_tree "$pid"
		done
	done
) &
watch=$!
cd "$XFSTESTS" && ./check ${EXCLUDE:+-E "$EXCLUDE"} "$@"
kill "$watch"
[ "$kind" = ext4 ] && exit
cd /
umount -q "$SCRATCH_MNT"
umount -q "$TEST_DIR"
for pool in xtest xscratch; do
	for _ in $(seq 50); do "$CENOTE" zpool export "$pool" 2>/dev/null && break || sleep 0.1; done
	if zdb -e -p "$work/disks" -bcc "$pool" >"$work/zdb" 2>&1 && grep -q 'No leaks' "$work/zdb"; then
		echo "$pool: zdb -e -bcc: clean"
	else
		echo "$pool: zdb -e -bcc: NOT CLEAN" && tail -20 "$work/zdb"
	fi
done
