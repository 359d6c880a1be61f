#!/usr/bin/env bash
# Makes target/cenote_VERSION_ARCH.deb of a built program.
#
#   scripts/make-deb.sh [PROGRAM [DIRECTORY]]
#
# Needs dpkg-deb, and nothing else that a system with a shell lacks. CENOTE_DEB_COMPRESSION
# chooses how it is compressed (xz).
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-target/release/cenote} out=${2:-target}
if ! command -v dpkg-deb >/dev/null 2>&1; then
	echo "make deb: dpkg-deb is not installed: no package is made" >&2
	exit 1
fi
version=$("$program" --version | sed -n 's/^cenote //p')
arch=$(dpkg --print-architecture)
root=$(mktemp -d "${TMPDIR:-/tmp}/cenote-deb.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022

strip -o "$root/program" "$program" 2>/dev/null || cp "$program" "$root/program"
scripts/install.sh "$root/program" /usr "$root"
rm "$root/program"
install -D -m 644 dist/debian/cenote.default "$root/etc/default/cenote"
doc=$root/usr/share/doc/cenote
install -d "$doc"
{
	sed '/@MIT@/,$d' dist/debian/copyright
	sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT
	sed '1,/@MIT@/d' dist/debian/copyright
} >"$doc/copyright"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
gzip -9nc README.md >"$doc/README.md.gz"

# The C library's symbols tell which one is needed.
libc=$(grep -ao 'GLIBC_2\.[0-9]*' "$root/usr/bin/cenote" | sort -uV | tail -n 1)
install -d "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: cenote
Version: $version
Architecture: $arch
Maintainer: The authors of Cenote <cenote@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1
Recommends: fuse3
Section: admin
Priority: optional
Description: ZFS in user space
 Cenote opens the pools that OpenZFS writes, without a kernel module: a daemon
 mounts their file systems through FUSE, and zpool, zfs, zdb, arcstat and
 arc_summary behave as OpenZFS's tools of these names.
 .
 They are in /usr/lib/cenote/bin, so that this package lives beside
 zfsutils-linux; everything is in the program "cenote", too.
END
echo /etc/default/cenote >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
	install -m 755 "dist/debian/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$out"
package=$out/cenote_${version}_$arch.deb
dpkg-deb --root-owner-group "-Z${CENOTE_DEB_COMPRESSION:-xz}" --build "$root" "$package" >/dev/null
echo "$package"
