#!/usr/bin/env bash
# Whether every citation of the format specification ("chapter 05 §4.3", and "§4.3" where the
# chapter is named before) leads to a section of docs/format. Takes a fraction of a second.
set -eu
cd "$(dirname "$0")/.."
mapfile -t chapters < <(printf '%s\n' docs/format/[0-9][0-9]-*.md)
mapfile -t others < <(git ls-files -co --exclude-standard -- '*.rs' '*.md' ':!docs/format/[0-9]*')
LC_ALL=C awk -f scripts/citations.awk "${chapters[@]}" "${others[@]}" "${chapters[@]}" "${others[@]}"
