#!/usr/bin/env bash
# Real programs on a mounted pool; OpenZFS's zdb after each (docs/compatibility.md, "POSIX").
#
# Arguments choose some of: sqlite git tar rsync fio stress postgres. GIT is the repository that is
# cloned, TREE the directory that is packed and copied.
set -uo pipefail
. "$(dirname "$0")/posix-lib.sh"
: "${GIT:=$root}"
: "${TREE:=/usr/include}"
: "${SECONDS_EACH:=5}"
: "${PG_SECONDS:=20}"

fail() {
	echo "FAILED: $*"
	bad=1
}

# Transactions in both kinds of journal, a reader beside the writer, and the file as it
# is after a new mount.
try_sqlite() {
	has python3 || return 0
	python3 - "$mnt" <<'EOF' || fail "sqlite"
import sqlite3, sys, threading
for mode in ("wal", "delete", "truncate", "persist"):
    path = f"{sys.argv[1]}/{mode}.db"
    db = sqlite3.connect(path, timeout=60)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("create table t(id integer primary key, a text, b blob)")
    errors = []
    def read():
        try:
            other = sqlite3.connect(path, timeout=60)
            for _ in range(50):
                n, s = other.execute("select count(*), coalesce(sum(length(b)), 0) from t").fetchone()
                assert n % 100 == 0 and s == n * 500, (n, s)
        except Exception as e:
            errors.append(e)
    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        with db:
            db.executemany("insert into t(a, b) values(?, randomblob(500))", [(f"{turn}-{n}",) for n in range(100)])
    try:
        with db:
            db.execute("delete from t")
            raise KeyError
    except KeyError:
        pass
    reader.join()
    assert not errors, errors
    db.execute("vacuum")
    db.close()
    db = sqlite3.connect(path)
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert db.execute("select count(*) from t").fetchone()[0] == 2000
EOF
}

try_git() {
	has git || return 0
	git clone --quiet --no-local "$GIT" "$mnt/clone" || fail "git clone"
	git -C "$mnt/clone" fsck --full --strict >/dev/null 2>&1 || fail "git fsck"
	git -C "$mnt/clone" status --porcelain | grep . && fail "git status"
	git -C "$mnt/clone" gc --quiet && git -C "$mnt/clone" fsck >/dev/null 2>&1 || fail "git gc"
	"$CENOTE" zfs unmount tank && "$CENOTE" zfs mount tank || fail "remount"
	git -C "$mnt/clone" status --porcelain | grep . && fail "git status after a new mount"
}

digest() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%p %y %m %U %G %l\n' | sort) | sha256sum; }

try_tar() {
	mkdir -p "$mnt/tar"
	tar -C "$TREE" -cf - . | tar -C "$mnt/tar" -xpf - || fail "tar"
	"$CENOTE" zfs unmount tank && "$CENOTE" zfs mount tank || fail "remount"
	[ "$(digest "$TREE")" = "$(digest "$mnt/tar")" ] || fail "tar: the trees differ"
	tar -C "$mnt/tar" -cf "$mnt/again.tar" . && tar -C "$mnt/tar" -df "$mnt/again.tar" || fail "tar -d"
}

try_rsync() {
	has rsync || return 0
	mkdir -p "$mnt/from"
	cp -a "$TREE/." "$mnt/from/"
	ln "$(find "$mnt/from" -type f | head -1)" "$mnt/from/hard" && ln -s nowhere "$mnt/from/soft"
	mknod "$mnt/from/null" c 1 3 && mkfifo "$mnt/from/fifo"
	setfattr -n user.colour -v green "$mnt/from/hard" && setfacl -m u:1234:rw "$mnt/from/hard"
	rsync -aHAX "$mnt/from/" "$mnt/to/" || fail "rsync"
	# The second time there is nothing to do.
	rsync -aHAXi --delete "$mnt/from/" "$mnt/to/" | grep . && fail "rsync: the second run found differences"
	rsync -aHAXic "$mnt/from/" "$mnt/to/" | grep . && fail "rsync: the contents differ"
}

try_fio() {
	has fio || return 0
	for job in "rw=write --bs=1M --end_fsync=1" "rw=randwrite --bs=8k --end_fsync=1" \
		"rw=randrw --bs=4k-64k --bsrange=4k-64k" "rw=randwrite --bs=8k --direct=1"; do
		# shellcheck disable=SC2086
		fio --name=verify --directory="$mnt" --size=32M --numjobs=2 --verify=crc32c --verify_fatal=1 \
			--verify_state_save=0 --unlink=1 --output=/dev/null --$job >"$work/fio.log" 2>&1 ||
			{ fail "fio $job" && tail -5 "$work/fio.log"; }
	done
}

try_stress() {
	has stress-ng || return 0
	mkdir -p "$mnt/stress"
	for stressor in access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany fallocate \
		fcntl fiemap file-ioctl filename filerace flock fpunch fstat hdd io iomix link lockf locka locked \
		lockofd mknod open readahead rename rotate seek symlink sync-file touch unlink utime verity \
		writev xattr; do
		stress-ng --"$stressor" 2 -t "$SECONDS_EACH" --temp-path "$mnt/stress" --verify --no-rand-seed \
			>"$work/stress.log" 2>&1
		case $? in
		0 | 3 | 4) ;; # 3 and 4: this version or this kernel has no such thing
		*) grep -q 'unrecognized option' "$work/stress.log" || { fail "stress-ng --$stressor" && grep -E 'fail|error' "$work/stress.log" | head -5; } ;;
		esac
	done
}

# A cluster under load, and the daemon killed in the middle of it: PostgreSQL recovers, its
# own checks find nothing, and no transaction that it reported is missing.
try_postgres() {
	local pg now kept server
	pg=$(echo /usr/lib/postgresql/*/bin | tail -n1 | awk '{print $NF}')
	[ -x "$pg/pgbench" ] || { skip programs "PostgreSQL is not installed" && return 0; }
	id postgres >/dev/null 2>&1 || { skip programs "there is no user postgres" && return 0; }
	local socket=$work/pg
	mkdir -p "$socket" && chown postgres "$socket"
	mkdir "$mnt/pg" && chown postgres "$mnt/pg" && chmod 700 "$mnt/pg"
	as() { (cd / && runuser -u postgres -- env PGHOST="$socket" PGPORT=54329 PGDATABASE=postgres "$@"); }
	# A child of this shell, which can see it end.
	start() {
		setpriv --reuid=postgres --regid=postgres --init-groups \
			"$pg/postgres" -D "$mnt/pg" -k "$socket" -p 54329 -c listen_addresses= >>"$socket/log" 2>&1 &
		server=$!
		for _ in $(seq 600); do
			as "$pg/pg_isready" -q && return 0
			kill -0 "$server" 2>/dev/null || return 1
			sleep 0.1
		done
		return 1
	}
	ask() { as "$pg/psql" -XAtc "$1"; }
	as "$pg/initdb" -k -D "$mnt/pg" >"$work/pg.log" 2>&1 || { fail "initdb" && tail -5 "$work/pg.log"; }
	start || { fail "start" && tail -5 "$socket/log" && return; }
	as "$pg/pgbench" -q -i -s 5 >"$work/pg.log" 2>&1 || { fail "pgbench -i" && tail -5 "$work/pg.log"; }
	as "$pg/pgbench" -n -T "$PG_SECONDS" -c 4 >"$work/pg.log" 2>&1 || { fail "pgbench" && tail -5 "$work/pg.log"; }
	grep -E '^(tps|number of transactions actually|number of failed)' "$work/pg.log"
	ask "create extension amcheck" >/dev/null
	as "$pg/pg_amcheck" --heapallindexed -d postgres || fail "pg_amcheck"

	# Each client writes down what was committed; then everything stops at once.
	ask "create table kept(client int, n int, primary key (client, n))" >/dev/null
	as "$pg/pgbench" -n -T 60 -c 4 >/dev/null 2>&1 &
	for client in 1 2 3 4; do
		(
			n=0
			while ask "insert into kept values($client, $n)" >/dev/null 2>&1; do
				echo "$n" >"$work/kept.$client"
				n=$((n + 1))
			done
		) &
	done
	sleep 8
	kill -9 "$("$CENOTE" daemon status | sed -n 's/^ *pid: //p')"
	as "$pg/pg_ctl" -D "$mnt/pg" -m immediate stop >/dev/null 2>&1
	wait
	"$CENOTE" daemon start || fail "daemon start"
	start || { fail "recovery" && tail -5 "$socket/log" && return; }
	for client in 1 2 3 4; do
		now=$(ask "select count(*) from kept where client = $client")
		kept=$(($(cat "$work/kept.$client") + 1))
		# One more can be there: committed, and nobody was told.
		[ "$now" -ge "$kept" ] && [ "$now" -le $((kept + 1)) ] || fail "client $client: $now rows of $kept"
		echo "client $client: $kept rows reported, $now there after the crash"
	done
	[ "$(ask "select count(*) from pgbench_accounts")" = 500000 ] || fail "accounts"
	ask "select sum(abalance) = (select sum(bbalance) from pgbench_branches) and sum(abalance) =
		(select sum(delta) from pgbench_history) from pgbench_accounts" | grep -qx t || fail "balances"
	as "$pg/pg_amcheck" --heapallindexed -d postgres || fail "pg_amcheck after the crash"
	kill -INT "$server" && wait "$server" || fail "stop"
	as "$pg/pg_checksums" -D "$mnt/pg" --check >"$work/pg.log" || { fail "pg_checksums" && cat "$work/pg.log"; }
}

[ $# -gt 0 ] || set -- sqlite git tar rsync fio stress postgres
for what in "$@"; do
	echo "== $what"
	new_pool -O acltype=posixacl -O xattr=sa || exit 1
	before=$bad
	"try_$what"
	[ "$bad" = "$before" ] && echo "$what: done"
	judge
done
exit "$bad"
