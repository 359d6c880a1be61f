#!/usr/bin/env bash
# The tables of docs/benchmarks.md and docs/benchmarks-pools.md, from benches/results/*.json
# (schema: README.md there). Tables numbered 80 and above are those of the second page.
#   scripts/bench-table.sh           prints them
#   scripts/bench-table.sh update    puts them into the pages, between their markers
#   scripts/bench-table.sh check     fails if the tables there are not those
set -eu
cd "$(dirname "$0")/.."
pages='docs/benchmarks.md docs/benchmarks-pools.md'
begin='<!-- made by scripts/bench-table.sh from benches/results -->'
end='<!-- end of what was made -->'

# The tables of a page.
tables() {
	case $1 in
	*-pools.md) set -- benches/results/[89]*.json ;;
	*) set -- benches/results/[1-7]*.json ;;
	esac
	LC_ALL=C awk '
	# A row is one line. text("work") is a string, list("ours") fills v[1..n] with numbers.
	function text(key,   at) {
		if (!match($0, "\"" key "\": \"")) return ""
		at = substr($0, RSTART + RLENGTH)
		match(at, /^([^"\\]|\\.)*/)
		return substr(at, 1, RLENGTH)
	}
	function object(key,   at) {
		if (!match($0, "\"" key "\": [{][^}]*}")) return ""
		at = substr($0, RSTART, RLENGTH)
		sub("^\"" key "\": [{]", "", at)
		sub(/}$/, "", at)
		return at
	}
	function list(from, key,   at) {
		delete v
		if (!match(from, "\"" key "\": [[][^]]*[]]")) return 0
		at = substr(from, RSTART, RLENGTH)
		sub("^\"" key "\": [[]", "", at)
		sub(/[]]$/, "", at)
		return split(at, v, /, */)
	}
	function number(n,   whole, rest) {
		if (n + 0 < 1000 && n + 0 > -1000) return n ""
		whole = sprintf("%d", n)
		rest = ""
		while (length(whole) > 3) {
			rest = "," substr(whole, length(whole) - 2) rest
			whole = substr(whole, 1, length(whole) - 3)
		}
		return whole rest
	}
	function two(n) { return n ~ /^-?[0-9]*[.][0-9]$/ ? n "0" : number(n) }
	function range(n) { return n == 3 ? " (" number(v[2]) "–" number(v[3]) ")" : "" }

	FNR == 1 {
		title = text("title")
		runs = (title == "Runs")
		print "\n## " title "\n"
		if (runs) {
			print "| run | command | build | rounds | settings |"
			print "|---|---|---|---|---|"
		} else {
			print "| work | ours | peers | limit | ratio | target | run |"
			print "|---|---|---|---|---|---|---|"
		}
		next
	}
	!/^[{]/ { next }
	runs {
		if (!(text("run") in used)) next
		match($0, /"rounds": [0-9]+/)
		rounds = substr($0, RSTART + 10, RLENGTH - 10)
		print "| " text("run") " | `" text("command") "` | " text("commit") " | " rounds " | " text("settings") " |"
		next
	}
	{
		used[text("run")]
		unit = text("unit")
		work = text("work") (unit == "" ? "" : ", " unit)
		if (/"keepawake": true/) work = work ", **keepawake**"
		ratio = object("ratio")
		n = list($0, "ours")
		ours = n ? number(v[1]) (ratio == "" ? range(n) : "") : ""
		peers = object("peers")
		gsub(/"/, "", peers)
		count = split(peers, each, /, /)
		peers = ""
		for (i = 1; i <= count; i++) {
			split(each[i], pair, /: /)
			peers = peers (i > 1 ? ", " : "") pair[1] " " number(pair[2])
		}
		limit = ""
		if (match($0, /"limit": [{]"name": "[^"]*", "value": [0-9.]+/)) {
			limit = substr($0, RSTART, RLENGTH)
			value = limit
			sub(/.*"value": /, "", value)
			sub(/^"limit": [{]"name": "/, "", limit)
			sub(/".*/, "", limit)
			limit = limit " " number(value)
		}
		judged = (list($0, "ours") == 3 && ratio == "") ? "" : v[1]
		target = object("target")
		if (target ~ /min/ && ratio == "") judged = list($0, "ours") ? v[1] : ""
		if (target ~ /max/ && ratio == "") { n = list($0, "ours"); judged = n == 3 ? v[3] : v[1] }
		shown = ""
		if (ratio != "") {
			n = list(ratio, "value")
			judged = v[1]
			of = ratio
			sub(/^"of": "/, "", of)
			sub(/".*/, "", of)
			shown = two(v[1]) (n == 3 ? " (" two(v[2]) "–" two(v[3]) ")" : "") (of == "limit" || count == 1 && index(peers, of) == 1 ? "" : " of " of)
			sub(/ of OpenZFS, times faster/, " times faster", shown)
		}
		goal = ""
		if (target != "") {
			bound = target
			gsub(/[^0-9.]/, "", bound)
			met = (target ~ /min/) ? judged + 0 >= bound + 0 : judged + 0 <= bound + 0
			goal = ((target ~ /min/) ? "≥ " : "≤ ") number(bound)
		} else {
			met = (text("cause") == "")
		}
		if (!met) {
			goal = goal (goal == "" ? "" : ", ") "**lost**"
			lost[++losses] = "* " text("run") ", " text("work") ": " (text("cause") == "" ? "no cause is known" : text("cause")) "."
		}
		line = "| " work " | " ours " | " peers " | " limit " | " shown " | " goal " | " text("run") " |"
		gsub(/[|]  /, "| ", line)
		print line
	}
	END {
		print "\n## Lost cells and their causes\n"
		for (i = 1; i <= losses; i++) print lost[i]
	}' "$@" benches/results/runs.json
}

case ${1:-} in
'') for doc in $pages; do tables "$doc"; done ;;
update)
	new=$(mktemp)
	trap 'rm -f "$new"' EXIT
	for doc in $pages; do
		{
			sed "\\|^$begin\$|q" "$doc"
			tables "$doc"
			sed -n "\\|^$end\$|,\$p" "$doc"
		} >"$new"
		cat "$new" >"$doc"
	done
	;;
check)
	for doc in $pages; do
		sed -n "\\|^$begin\$|,\\|^$end\$|p" "$doc" | sed '1d;$d' | cmp -s - <(tables "$doc") || {
			echo "$doc: its tables are not those of benches/results; scripts/bench-table.sh update" >&2
			exit 1
		}
	done
	;;
*)
	echo "usage: $0 [update|check]" >&2
	exit 2
	;;
esac
