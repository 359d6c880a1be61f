# Resolves citations of the format specification: "chapter 05 §4.3" needs a heading "### 4.3 ..."
# in docs/format/05-*.md. A bare "§4.3" belongs to the chapter of the file itself (docs/format)
# or to a chapter that the file names; a file that names none takes those of its directory's
# mod.rs and of its crate's lib.rs.
# Arguments: the chapters first, in order, then the files to check. Prints what does not resolve.

function chapter_of(path,   name) {
	name = path
	sub(/.*\//, "", name)
	return (path ~ /docs\/format\/[0-9][0-9]-/) ? substr(name, 1, 2) : ""
}

# Section numbers that a token names: "§2.1–§2.3," gives "2.1 2.3".
function sections(token,   out, rest, number) {
	out = ""
	rest = token
	while (match(rest, /\302\247[0-9A-K][0-9.]*/)) {
		number = substr(rest, RSTART + 2, RLENGTH - 2)
		sub(/\.+$/, "", number)
		out = out " " number
		rest = substr(rest, RSTART + RLENGTH)
		if (match(rest, /^(-|\342\200\223)[0-9A-K][0-9.]*/)) {
			number = substr(rest, 1, RLENGTH)
			sub(/^(-|\342\200\223)/, "", number)
			sub(/\.+$/, "", number)
			out = out " " number
			rest = substr(rest, RLENGTH + 1)
		}
	}
	return out
}

function bad(text) { print "tidy: " FILENAME ":" FNR ": " text; failed = 1 }

# Bare sections of the file that ended: any chapter that it (or its module) names will do.
function settle(   i, n, list, j, found, from, dir, crate) {
	if (file == "" || own != "" || bare_count == 0) return
	dir = file; sub(/[^\/]*$/, "", dir)
	crate = file; sub(/\/src\/.*/, "/src/", crate)
	from = named[file]
	for (i = 1; i <= bare_count; i++) {
		n = split(from " " named[dir "mod.rs"] " " named[substr(dir, 1, length(dir) - 1) ".rs"] " " named[crate "lib.rs"], list, " ")
		found = 0
		for (j = 1; j <= n; j++) if ((list[j] " " bare[i]) in heading) { found = 1; break }
		if (!found) {
			print "tidy: " file ":" bare_line[i] ": no chapter named there has \302\247" bare[i]
			failed = 1
		}
	}
}

# The files are read twice: the first time for headings and the chapters that each file names.
FNR == 1 {
	if (pass == 2) settle()
	if (FILENAME == first) pass = 2
	if (first == "") { first = FILENAME; pass = 1 }
	file = FILENAME
	own = chapter_of(FILENAME)
	if (own != "") known[own] = 1
	cited = ""; expect = 0; bare_count = 0
}

pass == 1 && own != "" && /^#+ / {
	number = $2
	sub(/\.$/, "", number)
	if (number ~ /^([0-9]+|[A-K])(\.[0-9]+)*$/) heading[own " " number] = 1
}

{
	line = $0
	if (pass == 1 && line !~ /[Cc]h(apter|\.)/ && !expect) next
	if (pass == 2 && line !~ /\302\247|[Cc]h(apter|\.)/ && !expect && cited == "") next
	sub(/^[ \t]*(\/\/[\/!]?|[*#>|]+)[ \t]*/, "", line)
	count = split(line, token, /[ \t]+/)
	for (i = 1; i <= count; i++) {
		t = token[i]
		if (t == "") continue
		if (t ~ /[Cc]h(apters?|\.)$/) { expect = 1; cited = ""; continue }
		if (expect) {
			expect = 0
			if (match(t, /^[0-9]+/) && RLENGTH <= 2) {
				cited = substr(t, 1, RLENGTH)
				if (length(cited) == 1) cited = "0" cited
				if (pass == 1) named[FILENAME] = named[FILENAME] " " cited
				else if (!(cited in known)) bad("there is no chapter " cited)
				if (t ~ /[.;:)]$/) cited = ""
				continue
			}
		}
		if (pass == 1) continue
		found = sections(t)
		if (found != "") {
			n = split(found, each, " ")
			for (j = 1; j <= n; j++) {
				where = (cited != "") ? cited : own
				if (where != "") {
					if (!((where " " each[j]) in heading)) bad("chapter " where " has no \302\247" each[j])
				} else {
					bare[++bare_count] = each[j]
					bare_line[bare_count] = FNR
				}
			}
			if (t ~ /[.;:)]+$/) cited = ""
			continue
		}
		# "chapter 05 §4.3 and §5, §6": these words go on with the list.
		if (t !~ /^(and|or|to|,|steps?|rules?|case|[0-9]+,?|\(?[a-z0-9]\)?,?)$/) {
			if (t ~ /^[0-9][0-9]$/) continue
			cited = ""
		}
	}
}

END { settle(); exit failed }
