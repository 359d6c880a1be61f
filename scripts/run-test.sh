#!/usr/bin/env bash
# run-test.sh BINARY ARGUMENTS...: runs one test binary for cargo, in the directory of its
# crate, and prints its wall time.
#
# Tests that end with zdb wait for it, and those that flush wait for the disk. In crates with
# many of these, more tests run at a time than there are cores.
set -u
crate=$(basename "$PWD")
binary=$(basename "$1")
binary=${binary%-*}
[ "$binary" != rust_out ] || binary="documentation"
# Those that measure the memory or the patience of a whole process run as usual.
case $crate/$binary in
cenote/hostile | cenote/mutants | cenote/memory) ;;
cenote/* | spa/*) : "${RUST_TEST_THREADS:=$(($(nproc) * 4))}" && export RUST_TEST_THREADS ;;
esac
# Pools in memory (test.sh): crates that judge what is written. Tests of devices, mounts and
# commands use the disk.
case $crate/$binary in
cenote/memory) ;;
cenote/* | sim/* | spa/* | synth/*)
	[ -z "${CENOTE_TEST_MEMORY:-}" ] || export TMPDIR=$CENOTE_TEST_MEMORY
	;;
esac
from=$(date +%s)
"$@"
status=$?
echo "TIME $(($(date +%s) - from)) s $crate $binary"
exit "$status"
