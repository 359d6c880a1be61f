#!/usr/bin/env bash
# One directory with very many entries, through the mount: made, listed, looked up after a
# new import, some removed, exported, and judged by OpenZFS's zdb (docs/compatibility.md,
# "POSIX").
#
#   scripts/big-directory.sh [ENTRIES]     10000000 unless given
#
# KIND is `files` (empty ones) or `links` (names of a thousand files); ARC_MAX the limit of
# the daemon's cache; DIR a directory on a disk with room (about 200 bytes an entry for
# links, 400 for files). The daemon's memory is told after each step, in MiB: what it has
# now, and the most that it had.
set -uo pipefail
entries=${1:-10000000}
: "${KIND:=files}"
: "${ARC_MAX:=512M}"
: "${MIB:=24576}"
. "$(dirname "$0")/posix-lib.sh"
has python3 || exit 0

memory() {
	local pid
	pid=$("$CENOTE" daemon status | sed -n 's/^ *pid: //p')
	awk '/VmRSS/ {now = $2} /VmHWM/ {most = $2} END {printf "%d MiB, at most %d\n", now / 1024, most / 1024}' "/proc/$pid/status"
}

# step NAME COMMAND...
step() {
	local name=$1 start end
	shift
	start=$(date +%s.%N)
	"$@" || { echo "FAILED: $name" && bad=1; }
	end=$(date +%s.%N)
	awk -v what="$name" -v s="$start" -v e="$end" -v m="$(memory)" \
		'BEGIN {printf "%-28s %8.2f s   daemon %s\n", what, e - s, m}'
}

# What to do, with the directory, how many entries, and their kind.
dir() {
	python3 - "$1" "$mnt/big" "$entries" "$KIND" <<'EOF'
import os, random, sys
what, path, count, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
name = lambda n: f"entry-{n:08}"
if what == "make":
    os.mkdir(path)
    at = os.open(path, os.O_RDONLY)
    if kind == "files":
        for n in range(count):
            os.mknod(name(n), 0o100644, dir_fd=at)
    else:
        names = path + ".of"
        os.mkdir(names)
        source = os.open(names, os.O_RDONLY)
        for n in range(1000):
            os.mknod(name(n), 0o100644, dir_fd=source)
        for n in range(count):
            os.link(name(n % 1000), name(n), src_dir_fd=source, dst_dir_fd=at)
elif what == "list":
    seen = bytearray(count)
    with os.scandir(path) as listing:
        for entry in listing:
            n = int(entry.name[6:])
            assert entry.name == name(n) and not seen[n], entry.name
            seen[n] = 1
    assert sum(seen) == count, sum(seen)
elif what == "look":
    rng = random.Random(7)
    at = os.open(path, os.O_RDONLY)
    for _ in range(min(count, 200_000)):
        os.stat(name(rng.randrange(count)), dir_fd=at)
    for n in range(1000):
        try:
            os.stat(f"no-{n}", dir_fd=at)
            sys.exit("a name that is not there was found")
        except FileNotFoundError:
            pass
    assert os.stat(path).st_size == count + 2, os.stat(path).st_size
elif what == "remove":
    at = os.open(path, os.O_RDONLY)
    for n in range(0, count, 10):
        os.unlink(name(n), dir_fd=at)
elif what == "rest":
    left = 0
    with os.scandir(path) as listing:
        for entry in listing:
            assert int(entry.name[6:]) % 10, entry.name
            left += 1
    assert left == count - (count + 9) // 10, left
EOF
}

remount() { "$CENOTE" zpool export tank && "$CENOTE" zpool import -d "$work/disks" tank; }

new_pool || exit 1
"$CENOTE" tune "zfs_arc_max=$ARC_MAX" >/dev/null || exit 1
echo "$entries $KIND in one directory, cache of $ARC_MAX"
step "make" dir make
step "zpool sync" "$CENOTE" zpool sync tank
step "list" dir list
step "export, import" remount
step "list again" dir list
step "look up 200,000 at random" dir look
step "remove every tenth" dir remove
step "list the rest" dir rest
"$CENOTE" zfs list -o name,used,refer tank
judge
exit "$bad"
