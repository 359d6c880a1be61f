#!/usr/bin/env bash
# pjdfstest and fsx on a mounted pool and on ext4 (docs/compatibility.md, "POSIX").
#
# Installs both by `cargo install` below SUITES where they are missing; OPS is the length
# of one run of fsx, SEEDS their seeds; WHAT names one of the two, or both. Ends with 1 if something fails that passes on ext4.
set -uo pipefail
. "$(dirname "$0")/posix-lib.sh"
: "${SUITES:=$root/target/suites}"
: "${OPS:=10000}"
: "${SEEDS:=1 2 3}"
: "${WHAT:=pjdfstest fsx}"
for suite in pjdfstest fsx; do
	[ -x "$SUITES/bin/$suite" ] || cargo install --quiet --root "$SUITES" "$suite" ||
		{ skip programs "$suite cannot be installed" && exit 0; }
done

ext4=$work/ext4
mkdir "$ext4"
truncate -s 2G "$work/ext4.img"
mkfs.ext4 -q "$work/ext4.img" && mount -o loop "$work/ext4.img" "$ext4" && chmod 755 "$ext4" ||
	{ skip loop "no loop devices, nothing to compare with" && ext4=; }

# mount(8) would call the helper of the type's name.
mkdir "$work/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$work/bin/mount"
chmod +x "$work/bin/mount"
cat >"$work/pjdfstest.toml" <<'EOF'
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
EOF
# One run leaves files open that the tests of read-only mounts stumble over, on every file
# system: those run once more by themselves.
pjd() {
	mkdir -p "$1/pjd"
	chmod 755 "$1/pjd"
	PATH=$work/bin:$PATH "$SUITES/bin/pjdfstest" -c "$work/pjdfstest.toml" -p "$1/pjd" -s /dev/shm \
		${2:-} 2>/dev/null | tee "$work/pjd.log" | grep -E ' (FAILED|skipped)$' | awk '{print $1, $2}' | sort
	grep '^Summary' "$work/pjd.log" >&2
}
new_pool -O acltype=posixacl
case $WHAT in *pjdfstest*) ;; *) pjd() { :; } ;; esac
echo "pjdfstest on Cenote"
pjd "$mnt" >"$work/ours"
pjd "$mnt" erofs >"$work/ours.erofs"
if [ -n "$ext4" ]; then
	echo "pjdfstest on ext4"
	pjd "$ext4" >"$work/theirs"
	pjd "$ext4" erofs >"$work/theirs.erofs"
	for run in "" .erofs; do
		if worse=$(comm -23 <(grep FAILED "$work/ours$run") <(grep FAILED "$work/theirs$run") | grep .); then
			printf 'fails, and passes on ext4:\n%s\n' "$worse"
			bad=1
		fi
	done
fi
echo "skipped: $(grep -h skipped "$work/ours" "$work/ours.erofs" | awk '{print $1}' | tr '\n' ' ')"

cat >"$work/fsx.toml" <<'EOF'
flen = 4194304
[opsize]
max = 262144
min = 1
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 0.05
fdatasync = 0.05
posix_fallocate = 2.0
punch_hole = 3.0
sendfile = 3.0
posix_fadvise = 1.0
copy_file_range = 3.0
EOF
# As many runs as there are seeds, in a file below the directory $2.
fsx() {
	for seed in $SEEDS; do
		if "$SUITES/bin/fsx" -f "$work/fsx.toml" -N "$OPS" -S "$seed" -P "$work" "$2/fsx" >"$work/fsx.log" 2>&1; then
			echo "fsx on $1, seed $seed, $OPS operations: passed"
		else
			echo "fsx on $1, seed $seed: FAILED" && tail -5 "$work/fsx.log" && return 1
		fi
	done
}
case $WHAT in *fsx*) ;; *) SEEDS= ;; esac
fsx Cenote "$mnt" || bad=1
# A failure here says something of ext4 or of fsx.
[ -z "$ext4" ] || fsx ext4 "$ext4"
judge
exit "$bad"
