#!/usr/bin/env bash
# run-test.sh BINARY ARGUMENTS...: runs one test binary for cargo, in the directory of its
# crate, and prints its wall time.
#
# Tests that end with zdb wait for it, those that flush wait for the disk, and those of commands
# for a daemon. In crates with many of these, more tests run at a time than there are cores.
#
# Where CENOTE_TEST_LOG names the file that this output goes to, tests that failed run a second
# time, each alone. Those that pass then are listed as UNSTABLE, and the binary passes. A test
# that hangs, a binary that a signal ends, and more than two failures get no second run.
set -u
crate=$(basename "$PWD")
binary=$(basename "$1")
binary=${binary%-*}
[ "$binary" != rust_out ] || binary="documentation"
# Those that measure the memory or the patience of a whole process run as usual.
case $crate/$binary in
cenote/hostile | cenote/mutants | cenote/memory) ;;
cli/unavailable | cli/descriptors | cli/bench) ;;
# A new mount namespace of one test holds the mounts of all.
cli/mountpoints) : "${RUST_TEST_THREADS:=1}" && export RUST_TEST_THREADS ;;
cli/*) : "${RUST_TEST_THREADS:=$(($(nproc) * 2))}" && export RUST_TEST_THREADS ;;
cenote/* | spa/*) : "${RUST_TEST_THREADS:=$(($(nproc) * 4))}" && export RUST_TEST_THREADS ;;
esac
# Pools in memory (test.sh): crates that judge what is written. Tests of devices, mounts and
# commands use the disk.
case $crate/$binary in
cenote/memory) ;;
cenote/* | dmu/* | dsl/* | mover/* | sim/* | spa/* | synth/*)
	[ -z "${CENOTE_TEST_MEMORY:-}" ] || export TMPDIR=$CENOTE_TEST_MEMORY
	;;
esac

# The tests that the output since byte $1 of the log lists as failed. The log is written by
# another process: waits for the end of the list.
failed_since() {
	local output
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		output=$(tail -c "+$1" "$CENOTE_TEST_LOG" | tr -d '\000')
		grep -q '^test result: FAILED' <<<"$output" && break
		sleep 0.5
	done
	awk '/^failures:$/ {list = ""} /^    [A-Za-z_][A-Za-z0-9_:]*$/ {list = list $1 "\n"} END {printf "%s", list}' <<<"$output"
}

second_run() {
	local tests test
	mapfile -t tests < <(failed_since "$start")
	[ "${#tests[@]}" -ge 1 ] && [ "${#tests[@]}" -le 2 ] || return 1
	for test in "${tests[@]}"; do
		echo "RUN AGAIN: $crate $binary $test"
		"$program" "$test" --exact --nocapture || return 1
	done
	for test in "${tests[@]}"; do
		echo "UNSTABLE: $crate $binary $test"
	done
}

program=$1
start=1
[ -z "${CENOTE_TEST_LOG:-}" ] || start=$(($(stat -c %s "$CENOTE_TEST_LOG") + 1))
from=$(date +%s)
"$@"
status=$?
echo "TIME $(($(date +%s) - from)) s $crate $binary"
# 101 is the status of a test binary that ran all its tests.
if [ "$status" -eq 101 ] && [ -n "${CENOTE_TEST_LOG:-}" ]; then
	second_run && exit 0
	echo "FAILING: $crate $binary $(failed_since "$start" | tr '\n' ' ')"
elif [ "$status" -ne 0 ]; then
	echo "FAILING: $crate $binary (status $status)"
fi
exit "$status"
