#!/usr/bin/env bash
# Runs every test and says what was verified and what was skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for tool in zdb ztest raidz_test fusermount3; do
	command -v "$tool" >/dev/null 2>&1 || echo "SKIPPED: $tool is not installed; checks that need it are left out"
done
[ -e /dev/fuse ] || echo "SKIPPED: /dev/fuse is absent; mounts are not tested"

# zfs-fuse's commands know one daemon a machine.
peer=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse/sbin
if [ -z "${CENOTE_ZFS_FUSE:-}" ] && [ -x "$peer/zfs-fuse" ] && [ "$(id -u)" = 0 ] && [ -e /dev/fuse ] &&
	! pgrep -r R,S,D -x zfs-fuse >/dev/null; then
	mkdir -p /var/run/zfs /var/lib/zfs
	setsid "$peer/zfs-fuse" --no-daemon >/dev/null 2>&1 &
	trap 'pkill -x zfs-fuse; umount -l /zfs-kstat 2>/dev/null; rm -f "$log"' EXIT
	for _ in 1 2 3 4 5; do
		"$peer/zpool" list >/dev/null 2>&1 && export CENOTE_ZFS_FUSE=$peer && break
		sleep 1
	done
fi

# The nightly run draws property tests anew; this one must say the same of the same tree.
[ -n "${CENOTE_NIGHTLY:-}" ] || export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20130101}

# The compiler may be silent for as long as it likes; a test is not, for ten minutes.
cargo test --workspace --locked --no-run 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 1
scripts/watch.sh "$log" 600 cargo test --workspace --locked --no-fail-fast -- --nocapture 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# The threads of the cache and of the transaction groups under a scheduler that tries
# thousands of interleavings.
model() { RUSTFLAGS="--cfg shuttle" "$@" --locked --target-dir target/shuttle -p arc -p txg --test model --no-fail-fast; }
model cargo test --no-run 2>&1 | tee -a "$log"
model scripts/watch.sh "$log" 600 cargo test 2>&1 | tee -a "$log"
models=${PIPESTATUS[0]}
[ "$status" -ne 0 ] || status=$models

echo
echo "Golden pools verified through the library:"
grep -aohE 'VERIFIED [^:]+: [0-9]+ entries, [0-9]+ differences' "$log" | sort -u | sed 's/^/  /'
echo "Golden pools verified through the mount:"
grep -aohE 'MOUNTED [^:]+: [0-9]+ entries, [0-9]+ differences' "$log" | sort -u | sed 's/^/  /'
echo "Copied without a daemon:"
grep -aohE 'COPIED [^:]+: [0-9]+ entries, [0-9]+ differences' "$log" | sort -u | sed 's/^/  /'
echo "Audited, and compared with zdb:"
grep -aohE '(AUDITED|COMPARED|OUTPUTS) .*' "$log" | sort -u | sed 's/^/  /'
echo "Skipped:"
grep -aohE 'SKIPPED: .*' "$log" | sort -u | sed 's/^/  /' || true

sum() { grep -aE '^test result:' "$log" | grep -oE "[0-9]+ $1" | awk '{s += $1} END {print s + 0}'; }
passed=$(sum passed) failed=$(sum failed)
echo
echo "$passed passed, $failed failed"
exit "$status"
