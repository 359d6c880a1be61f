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

# A type name has at most two meanings in the workspace.
while read -r count name; do
	[ "$count" -gt 2 ] && say "$count types are called $name (2 at most)"
done < <(git grep -hoE '^ *(pub(\([a-z:]+\))? )?(struct|enum|trait|union) [A-Z][A-Za-z0-9]*|^(pub(\([a-z:]+\))? )?type [A-Z][A-Za-z0-9]*' \
	-- 'crates/*.rs' | awk '{print $NF}' | sort | uniq -c)

# Words that CONTRIBUTING.md rules out, in code and comments.
if git grep -nwiE 'somebody|whoever|everybody|be_patient|give_way|adorned|strays' -- 'crates/*.rs'; then
	say "words that CONTRIBUTING.md rules out"
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

# Front ends use only crates below them, and of those only what ARCHITECTURE.md names.
engine='base cachesim cenote codec device sim stream synth'
may_use() {
	local crate=$1 used
	shift
	for used in $(sed -n '/^\[dependencies\]/,/^\[/s/^\([a-z_]*\)\.workspace = true.*/\1/p' "crates/$crate/Cargo.toml"); do
		[[ " $* $engine " == *" $used "* ]] || say "crates/$crate depends on $used, which is not below it"
	done
}
may_use ui
may_use commands ui
may_use proto ui
may_use mount fuse ui
may_use nbd
may_use daemon commands fuse mount nbd proto ui
may_use zdb commands proto ui
may_use stats commands proto ui
may_use bench fuse mount ui
may_use cli bench commands daemon mount proto stats ui zdb

# The engine's internals are for tools that inspect pools.
if git grep -n 'cenote::inspect' -- 'crates/*/src/*.rs' ':!crates/cenote' ':!crates/zdb' ':!crates/stats' \
	':!crates/bench' ':!crates/testkit' ':!crates/daemon/src/vdev_history.rs'; then
	say "cenote::inspect outside the tools that may use it"
fi
exit "$bad"
