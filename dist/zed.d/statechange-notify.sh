#!/bin/sh
# Tells an administrator, by mail or by a webhook, that a device has failed or recovered, and
# that a scrub or resilver has ended. Links of other names choose the events: this file is
# installed as statechange-notify.sh, scrub_finish-notify.sh and resilver_finish-notify.sh.
#
# /etc/cenote/zed.rc (beside the directory of zedlets) sets, in the shell's syntax:
#   ZED_EMAIL_ADDR   whom to write to, with the program mail
#   ZED_WEBHOOK_URL  where to post {"text": "..."}, with the program curl

rc=${ZED_ZEDLET_DIR%/*}/zed.rc
# Only what nobody but its owner can change is sourced.
if [ -f "$rc" ] && [ -z "$(find -L "$rc" -prune -perm /022)" ]; then
	. "$rc"
fi
[ -n "$ZED_EMAIL_ADDR$ZED_WEBHOOK_URL" ] || exit 0

host=$(uname -n)
case "$ZEVENT_SUBCLASS" in
statechange)
	subject="$ZEVENT_POOL on $host: ${ZEVENT_VDEV_PATH:-vdev $ZEVENT_VDEV_GUID} is $ZEVENT_VDEV_STATE_STR"
	;;
*)
	subject="$ZEVENT_POOL on $host: $ZEVENT_SUBCLASS"
	;;
esac
body=$("${ZPOOL:-zpool}" status -v "$ZEVENT_POOL" 2>&1)
# The program itself has all commands, without links by their names.
[ "${ZPOOL##*/}" != cenote ] || body=$("$ZPOOL" zpool status -v "$ZEVENT_POOL" 2>&1)

failed=0
if [ -n "$ZED_EMAIL_ADDR" ]; then
	printf '%s\n\n%s\n' "$ZEVENT_TIME_STRING" "$body" |
		mail -s "$subject" "$ZED_EMAIL_ADDR" || failed=1
fi
if [ -n "$ZED_WEBHOOK_URL" ]; then
	text=$(printf '%s\n%s' "$subject" "$body" |
		tr '\t' ' ' | sed 's/\\/\\\\/g; s/"/\\"/g' | awk '{ printf "%s%s", sep, $0; sep = "\\n" }')
	curl -fsS -m 8 -H 'Content-Type: application/json' -d "{\"text\": \"$text\"}" \
		"$ZED_WEBHOOK_URL" || failed=1
fi
exit $failed
