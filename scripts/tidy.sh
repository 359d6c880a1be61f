#!/usr/bin/env bash
# Rules that the compiler does not know: sizes of files, safety comments, things left open.
set -u
cd "$(dirname "$0")/.."
bad=0
say() { echo "tidy: $1"; bad=1; }

while read -r lines file; do
	[ "$lines" -gt 800 ] && say "$file has $lines lines (800 at most)"
done < <(git ls-files '*.rs' | xargs wc -l | awk '$2 != "total" {print $1, $2}')

if git grep -nE 'todo!\(|unimplemented!\(|TODO|FIXME|(^|[^X])XXX([^X]|$)|#\[ignore' -- '*.rs' '*.sh' ':!scripts/tidy.sh'; then
	say "left open in the code"
fi

# Citations of docs/format lead to a section.
scripts/citations.sh || bad=1

# The tables of docs/benchmarks.md are those of benches/results.
scripts/bench-table.sh check || bad=1

# Engine crates contain no unsafe code but for buffers, SIMD kernels and system calls.
allowed='^crates/((base|codec|daemon|device|fuse|ui)/|cli/tests/)'
while read -r file; do
	[[ "$file" =~ $allowed ]] || say "$file: unsafe code outside the crates that may have it"
done < <(git grep -lE 'unsafe (\{|impl|fn)' -- 'crates/*.rs')
exit "$bad"
