#!/usr/bin/env bash
# A picture of a terminal: terminal-svg.sh < RECORDING > FILE.svg. Lines that begin with "$ " are
# commands, with "# " remarks; everything else is output.
set -eu
expand | LC_ALL=C.UTF-8 awk '
{
	line = $0
	if (length(line) > wide) wide = length(line)
	colour = "#d0d0d0"
	if (line ~ /^[$] /) colour = "#7fd67f"
	else if (line ~ /^# /) colour = "#8c8c8c"
	gsub(/&/, "\\&amp;", line)
	gsub(/</, "\\&lt;", line)
	gsub(/>/, "\\&gt;", line)
	text[NR] = "<text x=\"16\" y=\"" (NR * 19 + 14) "\" fill=\"" colour "\">" line "</text>"
}
END {
	width = int(wide * 8.43) + 32
	height = NR * 19 + 30
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n", width, height, width, height
	printf "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#1c1c1c\"/>\n", width, height
	for (i = 1; i <= NR; i++) print text[i]
	print "</svg>"
}'
