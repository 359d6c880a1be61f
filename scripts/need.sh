# Checks of scripts that need a tool or a right; to be sourced.
#
# skip NEED TEXT: prints that a check is left out, and why; an error if the list CENOTE_REQUIRE
# has that need. The words are those of crates/testkit/src/need.rs.
skip() {
	case ",${CENOTE_REQUIRE:-}," in
	*,"$1",*)
		echo "error: CENOTE_REQUIRE lists '$1', but $2" >&2
		exit 1
		;;
	esac
	echo "SKIPPED: $2"
}
