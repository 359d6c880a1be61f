#!/usr/bin/env bash
# What mount(8) runs for `mount -t fuse.zfs DATASET DIR`, linked as mount.fuse.zfs: so that
# xfstests can mount and remount datasets of imported pools as it does devices.
#
# CENOTE names the binary, CENOTE_RUNTIME_DIR the daemon's directory.
set -u
dataset=$1
dir=$2
shift 2
options=
while [ $# -gt 0 ]; do
	case $1 in
	-o) options=$options${options:+,}$2 && shift ;;
	-t | -N) shift ;;
	esac
	shift
done
case ",$options," in
*,remount,*)
	# The kernel changes its flags itself, and the daemon hears of it.
	exec mount -i -o "$options" "$dir"
	;;
esac
# The daemon knows its own defaults of these, and takes no others from here.
wanted=$(tr , '\n' <<<"$options" | grep -vxE 'defaults|allow_other|default_permissions|' | paste -sd,)

# As with every file system, what is mounted already shows at the second place, too.
first=$(awk -v d="$dataset" '$1 == d && $3 == "fuse.zfs" {print $2; exit}' /proc/self/mounts)
[ -n "$first" ] && [ "$first" != "$(readlink -f "$dir")" ] && exec mount --bind "$first" "$dir"

"$CENOTE" zfs set mountpoint="$(readlink -f "$dir")" "$dataset" || exit 32
# A mount just ended may still be closing its files.
for _ in $(seq 100); do
	said=$("$CENOTE" zfs mount -O ${wanted:+-o "$wanted"} "$dataset" 2>&1) && exit 0
	grep -q busy <<<"$said" || break
	sleep 0.1
done
echo "mount: $said" >&2
exit 32
