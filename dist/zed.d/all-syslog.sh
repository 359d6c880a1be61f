#!/bin/sh
# Writes each event of a pool to the system's log, with the values that identify it.

[ "$ZEVENT_SUBCLASS" != history_event ] || exit 0

# Errors and changed states are warnings, operations are notices.
case "$ZEVENT_CLASS" in
ereport.* | resource.*) level=warning ;;
*) level=notice ;;
esac

text="eid=$ZEVENT_EID class=$ZEVENT_SUBCLASS"
[ -z "$ZEVENT_POOL" ] || text="$text pool='$ZEVENT_POOL'"
[ -z "$ZEVENT_VDEV_PATH" ] || text="$text vdev='$ZEVENT_VDEV_PATH'"
[ -z "$ZEVENT_VDEV_STATE_STR" ] || text="$text vdev_state=$ZEVENT_VDEV_STATE_STR"
[ -z "$ZEVENT_ZIO_ERR" ] || text="$text err=$ZEVENT_ZIO_ERR"
[ -z "$ZEVENT_ZIO_OFFSET" ] || text="$text offset=$ZEVENT_ZIO_OFFSET size=$ZEVENT_ZIO_SIZE"

exec logger -t cenote -p "daemon.$level" -- "$text"
