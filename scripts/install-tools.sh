#!/usr/bin/env bash
# Installs the judges and helpers that the tests use, where that is possible.
# Nothing here is required: a check whose tool is absent says that it was skipped.
set -u
have() { command -v "$1" >/dev/null 2>&1; }

missing=()
have zdb || missing+=(zfsutils-linux)
have ztest || missing+=(zfs-test)
have fusermount3 || missing+=(fuse3)
# Clients of network block devices, and file systems that are made on volumes.
clients=()
have nbdinfo || clients+=(libnbd-bin)
have qemu-img || clients+=(qemu-utils)
have fio || clients+=(fio)
have mkfs.xfs || clients+=(xfsprogs)
have mkfs.btrfs || clients+=(btrfs-progs)
missing+=("${clients[@]}")
# A peer whose package conflicts with OpenZFS's: only unpacked, and kept out of PATH, as
# ztest would call its zdb.
peer=${CENOTE_PEERS:-/opt/cenote-peers}/zfs-fuse
[ -x "$peer/sbin/zfs-fuse" ] || missing+=(zfs-fuse)
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if [ "$(id -u)" != 0 ] || ! have apt-get; then
	echo "SKIPPED: cannot install ${missing[*]} (needs root and apt-get)"
	exit 0
fi
export DEBIAN_FRONTEND=noninteractive
quiet() { "$@" >/dev/null 2>&1; }

# The backports entry is derived from the machine's own package source.
source_file=$(grep -lsE '^(URIs:|deb ).*debian' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
if [[ " ${missing[*]} " == *" zfs"* ]] && [ -n "$source_file" ]; then
	uri=$(grep -hoE 'https?://[^ ]+/debian/?( |$)' "$source_file" | head -n 1 | tr -d ' ')
	. /etc/os-release
	list=/etc/apt/sources.list.d/cenote-judges.list
	if [ -n "$uri" ] && [ -n "${VERSION_CODENAME:-}" ] && [ ! -e "$list" ]; then
		# Two entries of one suite must name the same key.
		key=$(grep -hE '^Signed-By:' "$source_file" | head -n 1 | cut -d ' ' -f 2)
		for suite in "$VERSION_CODENAME contrib" "$VERSION_CODENAME-backports main contrib"; do
			echo "deb ${key:+[signed-by=$key] }$uri $suite"
		done > "$list"
		quiet apt-get update || rm -f "$list"
	fi
	quiet apt-get update || echo "note: apt-get update failed; using the lists at hand"
	have zdb && have ztest ||
		quiet apt-get install -y --no-install-recommends -t "$VERSION_CODENAME-backports" \
		zfsutils-linux zfs-test ||
		quiet apt-get install -y --no-install-recommends -t "$VERSION_CODENAME-backports" zfsutils-linux ||
		echo "SKIPPED: OpenZFS's zdb could not be installed; its checks are left out"
else
	quiet apt-get update || true
fi
have fusermount3 || quiet apt-get install -y --no-install-recommends fuse3 ||
	echo "note: fuse3 could not be installed; unprivileged mounts are not tested"
[ ${#clients[@]} -eq 0 ] || quiet apt-get install -y --no-install-recommends "${clients[@]}" ||
	echo "note: ${clients[*]} could not be installed; volumes are not tested with them"
if [ ! -x "$peer/sbin/zfs-fuse" ]; then
	work=$(mktemp -d)
	quiet apt-get install -y --no-install-recommends libaio1 libssl3 libfuse2 libtirpc3
	# apt downloads as a user of its own.
	chmod 755 "$work"
	(cd "$work" && quiet apt-get download zfs-fuse && mkdir -p "$peer" &&
		quiet dpkg -x zfs-fuse_*.deb "$peer") ||
		echo "SKIPPED: zfs-fuse could not be unpacked; pools are not exchanged with it"
	rm -rf "$work"
fi
exit 0
