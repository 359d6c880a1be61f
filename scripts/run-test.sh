#!/usr/bin/env bash
# run-test.sh BINARY ARGUMENTS...: runs one test binary for cargo, in the directory of its
# crate, and prints its wall time.
#
# Tests that end with zdb wait for it: it takes six seconds a pool and is idle for five. In
# crates with many of these, more tests run at a time than there are cores.
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
from=$(date +%s)
"$@"
status=$?
echo "TIME $(($(date +%s) - from)) s $crate $binary"
exit "$status"
