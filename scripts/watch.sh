#!/usr/bin/env bash
# watch.sh LOG SECONDS COMMAND...: runs a command whose output grows LOG. If LOG stands still
# for so long, tells where the threads of the processes below it stand, and kills these: a test
# that hangs fails with what is needed to find out why, and the others are run.
set -uo pipefail
log=$1 patience=$2
shift 2

below() {
	local child
	for child in $(pgrep -P "$1"); do
		echo "$child"
		below "$child"
	done
}

# All of them, and daemons: programs of this build that are nobody's children.
suspects() {
	local process
	below "$1"
	for process in /proc/[0-9]*; do
		case $(readlink "$process/exe" 2>/dev/null) in
		"${CARGO_TARGET_DIR:-$PWD/target}"/*) echo "${process#/proc/}" ;;
		esac
	done
}

stacks() {
	echo "HANGS: $(tr '\0' ' ' <"/proc/$1/cmdline")"
	if command -v gdb >/dev/null 2>&1; then
		timeout 60 gdb -p "$1" -batch -ex 'thread apply all backtrace 40' 2>/dev/null |
			grep -E '^(Thread|#)' | cut -c1-200
		return
	fi
	local task
	for task in /proc/"$1"/task/*; do
		echo "thread $(cat "$task/comm"): $(cat "$task/wchan" 2>/dev/null) $(cat "$task/syscall" 2>/dev/null)"
		cat "$task/stack" 2>/dev/null
	done
}

"$@" &
main=$!
(
	still=0 size=0
	while sleep 10; do
		now=$(stat -c %s "$log")
		if [ "$now" != "$size" ]; then
			size=$now still=0
			continue
		fi
		still=$((still + 10))
		[ "$still" -ge "$patience" ] || continue
		found=$(suspects "$main" | sort -un)
		for process in $found; do stacks "$process"; done
		# shellcheck disable=SC2086
		kill -9 $found 2>/dev/null
		still=0
	done
) &
watcher=$!
wait "$main"
status=$?
kill "$watcher" 2>/dev/null
exit "$status"
