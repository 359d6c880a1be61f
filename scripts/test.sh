#!/usr/bin/env bash
# test.sh [quick]: runs every test, or a fast selection of them, and prints what was verified
# and skipped, and the time of each test binary.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
scratch=
trap cleanup EXIT
. scripts/need.sh

cleanup() {
	[ -z "${daemon:-}" ] || { pkill -x zfs-fuse; umount -l /zfs-kstat 2>/dev/null; }
	[ -z "$scratch" ] || rm -rf "$scratch"
	rm -f "$log"
}

required=${CENOTE_REQUIRE:-}
for word in ${required//,/ }; do
	grep -q "(\"$word\", Need::" crates/testkit/src/need.rs || {
		echo "error: CENOTE_REQUIRE: '$word' is no need (crates/testkit/src/need.rs lists them)" >&2
		exit 1
	}
done
need() { command -v "$2" >/dev/null 2>&1 || skip "$1" "$2 is not installed; checks that need it are left out"; }
need zdb zdb
need ztest ztest
need ztest raidz_test
need fuse fusermount3
[ -e /dev/fuse ] || skip fuse "/dev/fuse is absent; mounts are not tested"
[ "$(id -u)" = 0 ] || skip root "not root; checks that need it are left out"

# zdb takes half a second a pool, and five more to release its memory (zdb-no-teardown.c). A
# program of this name, first in PATH, leaves that out.
quick_zdb() {
	local zdb dir=$PWD/target/zdb
	zdb=$(command -v zdb) && [ "$zdb" != "$dir/zdb" ] && mkdir -p "$dir" || return 0
	cc -shared -fPIC -o "$dir/no-teardown.so" scripts/zdb-no-teardown.c || return 0
	printf '#!/bin/sh\nLD_PRELOAD=%s exec %s "$@"\n' "$dir/no-teardown.so" "$zdb" >"$dir/zdb"
	chmod +x "$dir/zdb"
	export PATH=$dir:$PATH
}

# Pools of the tests that run-test.sh names are in memory if there is enough of it: these tests
# wait for a disk most of their time. Sets CENOTE_TEST_MEMORY.
memory_scratch() {
	local need=$((4 << 20)) free available
	[ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] || return 0
	free=$(df --output=avail -k /dev/shm | tail -n 1)
	available=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
	[ "$free" -ge "$need" ] && [ "$available" -ge $((2 * need)) ] || return 0
	scratch=$(mktemp -d /dev/shm/cenote-tests.XXXXXX) && export CENOTE_TEST_MEMORY=$scratch
}

# Unit tests, and integration tests that take seconds. CONTRIBUTING.md lists what quick lacks.
selection=(--workspace --locked)
quick=
if [ "${1:-}" = quick ]; then
	quick=yes
	selection+=(--lib --bins)
	for test in agreement blocks datasets engines golden import model read refusals space write \
		written zap_pools; do
		selection+=(--test "$test")
	done
fi

# zfs-fuse's commands know one daemon a machine.
peer=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse/sbin
if [ -z "$quick${CENOTE_ZFS_FUSE:-}" ] && [ -x "$peer/zfs-fuse" ] && [ "$(id -u)" = 0 ] && [ -e /dev/fuse ] &&
	! pgrep -r R,S,D -x zfs-fuse >/dev/null; then
	mkdir -p /var/run/zfs /var/lib/zfs
	setsid "$peer/zfs-fuse" --no-daemon >/dev/null 2>&1 &
	daemon=yes
	for _ in 1 2 3 4 5; do
		"$peer/zpool" list >/dev/null 2>&1 && export CENOTE_ZFS_FUSE=$peer && break
		sleep 1
	done
fi

# What makes this run repeatable and short, and the nightly run does without.
if [ -z "${CENOTE_NIGHTLY:-}" ]; then
	# The nightly run draws property tests anew; this one must say the same of the same tree.
	export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20130101}
	quick_zdb
	memory_scratch
	# A test that fails on a busy machine and passes alone is reported, and does not fail the run
	# (run-test.sh).
	export CENOTE_TEST_LOG=$log
fi

# The compiler may be silent for as long as it likes; a test is not, for ten minutes.
cargo test "${selection[@]}" --no-run 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 1
runner="target.'cfg(all())'.runner = ['$PWD/scripts/run-test.sh']"
scripts/watch.sh "$log" 600 cargo --config "$runner" test "${selection[@]}" --no-fail-fast -- --nocapture 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# The threads of the cache, of the transaction groups and of the write queues under a scheduler
# that tries thousands of interleavings.
model() { RUSTFLAGS="--cfg shuttle" "$@" --locked --target-dir target/shuttle -p arc -p txg -p vdev --test model --no-fail-fast; }
if [ -z "$quick" ]; then
	model cargo test --no-run 2>&1 | tee -a "$log"
	model scripts/watch.sh "$log" 600 cargo --config "$runner" test 2>&1 | tee -a "$log"
	models=${PIPESTATUS[0]}
	[ "$status" -ne 0 ] || status=$models
fi

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

echo "Wall time of test binaries that took a second or more:"
grep -aohE 'TIME [0-9]+ s .*' "$log" | sort -k 2,2nr |
	awk '{all += $2} $2 {printf "  %5d s  %s %s\n", $2, $4, $5} END {printf "  %5d s  all\n", all}'

sum() { grep -aE '^test result:' "$log" | grep -oE "[0-9]+ $1" | awk '{s += $1} END {print s + 0}'; }
passed=$(sum passed) failed=$(sum failed)
skipped=$(grep -ao 'SKIPPED: ' "$log" | wc -l)
# A second run that passed is counted as passed.
unstable=$(grep -acE '^UNSTABLE: ' "$log")
failed=$((failed - unstable))

# What a test said when it failed.
said() {
	grep -aF -A 3 "thread '$1' " "$log" | grep -av '^stack backtrace:' | head -n 12 | sed 's/^/      /'
}
grep -aE '^(UNSTABLE|FAILING): ' "$log" | while read -r kind crate binary tests; do
	echo "${kind%:}: $crate $binary $tests"
	for test in $tests; do said "$test"; done
done
echo
echo "$passed passed, $failed failed, $unstable unstable, $skipped skipped" | sed -E ':a; s/([0-9])([0-9]{3})\b/\1,\2/; ta'
exit "$status"
