#!/usr/bin/env bash
# Installs the program with its links, pages, completions and units.
#
#   scripts/install.sh PROGRAM PREFIX [DESTDIR]
#
# PREFIX/bin gets `cenote` alone. The names that OpenZFS's tools have, too, go with their
# pages and completions below PREFIX/lib/cenote, whose bin directory is for PATH. mount(8)
# looks for its helpers in /sbin alone, whatever the prefix.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1 prefix=${2%/} dest=${3:-}
root=$dest$prefix own=$dest$prefix/lib/cenote
names="zpool zfs zdb arcstat zarcstat arcstat.pl arc_summary zarcsummary zilstat"

# A file, its mode, its place.
put() { install -D -m "$2" "$1" "$3"; }

put "$program" 755 "$root/bin/cenote"
mkdir -p "$own/bin"
for name in $names; do
	ln -sfn ../../../bin/cenote "$own/bin/$name"
done

# What mount(8) calls for the types `cenote` and `fuse.cenote`.
sbin=$dest/sbin
[ "$prefix" = /usr ] && sbin=$root/sbin
mkdir -p "$sbin"
for name in mount.cenote mount.fuse.cenote; do
	ln -sfn "$prefix/bin/cenote" "$sbin/$name"
done

for page in man/*.[18]; do
	name=${page#man/} section=${page##*.}
	case $name in
	cenote* | mount.cenote*) dir=$root/share/man ;;
	*) dir=$own/share/man ;;
	esac
	mkdir -p "$dir/man$section"
	gzip -9nc "$page" >"$dir/man$section/$name.gz"
	chmod 644 "$dir/man$section/$name.gz"
done

completions=dist/completions
put $completions/cenote.bash 644 "$root/share/bash-completion/completions/cenote"
put $completions/cenote.bash 644 "$own/share/bash-completion/completions/cenote"
for name in $names; do
	ln -sfn cenote "$own/share/bash-completion/completions/$name"
done
zsh=site-functions
[ "$prefix" = /usr ] && zsh=vendor-completions
put $completions/_cenote 644 "$root/share/zsh/$zsh/_cenote"
put $completions/cenote.fish 644 "$root/share/fish/vendor_completions.d/cenote.fish"

# Programs that run on events of pools. The daemon runs those below /etc/cenote/zed.d, where
# an administrator links them.
for zedlet in dist/zed.d/*.sh; do
	put "$zedlet" 755 "$own/zed.d/${zedlet##*/}"
done
for name in scrub_finish resilver_finish; do
	ln -sfn statechange-notify.sh "$own/zed.d/$name-notify.sh"
done

for unit in dist/systemd/*.service; do
	mkdir -p "$root/lib/systemd/system"
	sed "s|/usr/bin/cenote|$prefix/bin/cenote|" "$unit" >"$root/lib/systemd/system/${unit##*/}"
done
