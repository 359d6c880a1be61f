#!/usr/bin/env bash
# Databases on a mounted pool (docs/databases.md).
#
#   scripts/bench-databases.sh run CELL...    appends to benches/results/raw/DATE-db-CELL[-TAG].txt
#   scripts/bench-databases.sh table CELL...  medians of what is there
#
# Cells: postgres (record sizes, where the log is, logbias; a database that is cached and one
# that is larger than the cache), timeout (zfs_txg_timeout), mariadb (one hot table, then
# `select *` over another, on a master and its replica). Raw lines are
# "TURN WHAT TPS P99_MS READ_KIB WRITTEN_KIB CPU_MS", the last three a transaction: bytes that
# the daemon moved to and from its disks, and processor time of the whole machine. Pools lie
# on files that were written once. The databases and the page cache of what they read have
# MEMORY together, by a control group; where there is none, the script says so. Needs root, FUSE, and the programs of the databases.
set -uo pipefail
: "${MIB:=6144}"
WRITTEN=1
if [ "${1:-}" = table ]; then
	root=$(cd "$(dirname "$0")/.." && pwd)
else
	. "$(dirname "$0")/posix-lib.sh"
fi
: "${RUNS:=$root/benches/results/raw}"
: "${ROUNDS:=7}"
: "${SECONDS_EACH:=15}"
: "${ARC:=256M}"    # Cenote's cache
: "${MEMORY:=512M}" # memory of the databases, with the kernel's cache of their files
: "${SMALL:=20}"    # pgbench's scale of the database that is cached: 15 MiB each
: "${LARGE:=100}"   # and of the one that is not
: "${SIZES:=cached larger}"
: "${RECORDS:=8K 128K}"
: "${CLIENTS:=4}"
: "${ROWS:=400000}" # of MariaDB's hot table: 250 bytes each; the other one has four times as many
: "${LOG_DIR:=}" # where the log device's file lies, if not beside the pool
: "${TAG:=}"
raw() { echo "$RUNS/$(date +%F)-db-$1${TAG:+-$TAG}.txt"; }

table() {
	awk '
	/^#/ || NF < 3 { next }
	{ if (!($2 in n)) order[++m] = $2; n[$2]++; for (i = 3; i <= NF; i++) v[$2, i, n[$2]] = $i; if (NF > most) most = NF }
	function median(k, i,   a, b, t, list) {
		for (a = 1; a <= n[k]; a++) list[a] = v[k, i, a]
		for (a = 2; a <= n[k]; a++) for (b = a; b > 1 && list[b] + 0 < list[b-1] + 0; b--) { t = list[b]; list[b] = list[b-1]; list[b-1] = t }
		least = list[1]; largest = list[n[k]]
		return n[k] % 2 ? list[(n[k]+1)/2] : (list[n[k]/2] + list[n[k]/2+1]) / 2
	}
	END {
		for (j = 1; j <= m; j++) {
			k = order[j]; line = sprintf("| %s | %.4g", k, median(k, 3)); line = line sprintf(" (%.4g–%.4g)", least, largest)
			for (i = 4; i <= most; i++) line = line sprintf(" | %.3g", median(k, i))
			print line " | " n[k] " |"
		}
	}' "$1"
}
if [ "${1:-}" = table ]; then
	shift
	for cell in "$@"; do table "$(raw "$cell")"; done
	exit
fi
[ "${1:-}" = run ] && shift || { echo "usage: $0 run|table CELL..." >&2 && exit 2; }
export CENOTE_ARC_MAX=$ARC

daemon_pid() { "$CENOTE" daemon status | sed -n 's/^ *pid: //p'; }
# Bytes that the daemon read and wrote below it, and the machine's busy time in ms.
counts() {
	awk '/^read_bytes/ {r = $2} /^write_bytes/ {w = $2} END {printf "%s %s ", r, w}' "/proc/$(daemon_pid)/io"
	awk -v hz="$(getconf CLK_TCK)" '/^cpu / {print ($2 + $3 + $4 + $7 + $8) * 1000 / hz}' /proc/stat
}
# note CELL TURN WHAT TPS P99 TRANSACTIONS BEFORE... AFTER...
note() {
	echo "$@" | awk '{printf "%s %s %s %s %.1f %.1f %.3f\n", $2, $3, $4, $5, ($10 - $7) / 1024 / $6, ($11 - $8) / 1024 / $6, ($12 - $9) / $6}' |
		tee -a "$(raw "$1")"
}

group=
make_group() {
	local dir=/sys/fs/cgroup/cenote-db file=memory.max
	[ ! -d /sys/fs/cgroup/memory ] || { dir=/sys/fs/cgroup/memory/cenote-db && file=memory.limit_in_bytes; }
	if mkdir -p "$dir" 2>/dev/null && echo "$MEMORY" >"$dir/$file" 2>/dev/null; then
		group=$dir/cgroup.procs
	else
		echo "SKIPPED: no control group for memory; what is larger than the cache is in the kernel's"
	fi
}
# Becomes a program whose memory is limited; in the background, so that $! is it.
within() {
	exec bash -c '[ -z "$0" ] || echo $$ >"$0"; exec "$@"' "$group" "$@"
}

pg=$(echo /usr/lib/postgresql/*/bin | awk '{print $NF}')
as() { (cd / && runuser -u postgres -- env PGHOST="$work/pg" PGPORT=54329 PGDATABASE=postgres "$@"); }
server=
pg_start() {
	within setpriv --reuid=postgres --regid=postgres --init-groups "$pg/postgres" -D "$mnt/db/pg" -k "$work/pg" -p 54329 \
		-c listen_addresses= -c shared_buffers=64MB -c full_page_writes=off -c max_wal_size=512MB >>"$work/pg/log" 2>&1 &
	server=$!
	for _ in $(seq 600); do
		as "$pg/pg_isready" -q && return 0
		sleep 0.1
	done
	tail -5 "$work/pg/log" && return 1
}
pg_stop() { kill -INT "$server" && wait "$server"; }

# A cluster of that scale, on records of that size.
pg_new() {
	mkdir -p "$work/pg" && chown postgres "$work/pg"
	"$CENOTE" zfs create -o recordsize="$1" tank/db || return 1
	mkdir "$mnt/db/pg" && chown postgres "$mnt/db/pg" && chmod 700 "$mnt/db/pg"
	as "$pg/initdb" -D "$mnt/db/pg" >"$work/pg.log" 2>&1 && pg_start || return 1
	as "$pg/pgbench" -q -i -s "$2" >"$work/pg.log" 2>&1
}

# One run of pgbench, noted.
pg_round() {
	local before tps p99 n
	rm -f "$work"/pg/lat.*
	sync -f "$mnt"
	before=$(counts)
	(cd "$work/pg" && as "$pg/pgbench" -n -M prepared -c "$CLIENTS" -j 2 -T "$SECONDS_EACH" -l --log-prefix="$work/pg/lat") >"$work/pg.log" 2>&1 || return 1
	before+=" $(counts)"
	tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/pg.log")
	n=$(cat "$work"/pg/lat.* | wc -l)
	p99=$(cat "$work"/pg/lat.* | awk '{print $3}' | sort -n | awk -v at=$((n * 99 / 100)) 'NR == at {printf "%.2f", $1 / 1000}')
	note "$1" "$2" "$3" "$tps" "$p99" "$n" $before
}

cell_postgres() {
	[ -x "$pg/pgbench" ] && id postgres >/dev/null 2>&1 || { echo "SKIPPED: PostgreSQL is not installed" && return; }
	local size scale record round
	local log=${LOG_DIR:-$work}/log
	disk_file "$log" 512
	for size in $SIZES; do
		scale=$SMALL && [ "$size" = cached ] || scale=$LARGE
		for record in $RECORDS; do
			new_pool || return 1
			pg_new "$record" "$scale" || return 1
			for round in $(seq "$ROUNDS"); do
				"$CENOTE" zfs set logbias=latency tank/db
				pg_round postgres "$round" "$size,$record,log-in-pool"
				"$CENOTE" zfs set logbias=throughput tank/db
				pg_round postgres "$round" "$size,$record,throughput"
				"$CENOTE" zfs set logbias=latency tank/db
				"$CENOTE" zpool add tank log "$log"
				pg_round postgres "$round" "$size,$record,log-device"
				"$CENOTE" zpool remove tank "$log"
			done
			pg_stop
			judge
		done
	done
	rm -f "$log"
}

cell_timeout() {
	[ -x "$pg/pgbench" ] && id postgres >/dev/null 2>&1 || { echo "SKIPPED: PostgreSQL is not installed" && return; }
	local round seconds
	new_pool && pg_new 8K "$LARGE" || return 1
	for round in $(seq "$ROUNDS"); do
		for seconds in 1 5 30; do
			"$CENOTE" tune zfs_txg_timeout="$seconds" >/dev/null
			SECONDS_EACH=$((SECONDS_EACH > 35 ? SECONDS_EACH : 35)) pg_round timeout "$round" "${seconds}s"
		done
	done
	pg_stop
	judge
}

# maria NAME SQL...: asks the master or the replica.
maria() { mariadb --no-defaults -S "$work/my/$1.sock" -u root -N -B -e "${*:2}"; }
maria_start() {
	within mariadbd --no-defaults --user=mysql --datadir="$mnt/$1" --socket="$work/my/$1.sock" --pid-file="$work/my/$1.pid" \
		--port="$2" --bind-address=127.0.0.1 --server-id="$2" --log-bin="$mnt/$1/binlog" --innodb-buffer-pool-size=16M \
		--innodb-flush-method=fsync --innodb-doublewrite=0 --innodb-stats-persistent=0 >"$work/my/$1.log" 2>&1 &
	for _ in $(seq 600); do
		maria "$1" "select 1" >/dev/null 2>&1 && return 0
		sleep 0.1
	done
	tail -5 "$work/my/$1.log" && return 1
}

# Lookups by key in the hot table for some seconds: how many a second; with how many KiB of
# reads from the disk each.
maria_round() {
	local before n
	before=$(counts)
	n=$(maria "$2" "use bench; call lookups($SECONDS_EACH)")
	note mariadb "$3" "$4,$2" "$(echo "$n $SECONDS_EACH" | awk '{printf "%.1f", $1 / $2}')" - "$n" $before $(counts)
}

cell_mariadb() {
	command -v mariadbd >/dev/null || { echo "SKIPPED: MariaDB is not installed" && return; }
	local name round
	new_pool || return 1
	mkdir -p "$work/my" && chown mysql "$work/my"
	for name in master replica; do
		"$CENOTE" zfs create -o recordsize=16K "tank/$name" && chown mysql "$mnt/$name"
		mariadb-install-db --no-defaults --user=mysql --datadir="$mnt/$name" --skip-test-db >"$work/my/$name.log" 2>&1 || return 1
	done
	maria_start master 33071 && maria_start replica 33072 || return 1
	maria master "create user r@'127.0.0.1' identified by 'r'; grant replication slave on *.* to r@'127.0.0.1'"
	maria replica "change master to master_host='127.0.0.1', master_port=33071, master_user='r', master_password='r'; start slave"
	maria master "create database bench; use bench;
		create table hot(id int primary key, pad char(200) not null) engine=innodb;
		create table cold like hot;
		insert into hot select seq, repeat(md5(seq), 6) from seq_1_to_$ROWS;
		insert into cold select seq, repeat(sha1(seq), 5) from seq_1_to_$((4 * ROWS));
		delimiter //
		create procedure lookups(seconds int)
		begin
			declare n int default 0; declare k int; declare p char(200);
			declare till datetime(6) default now(6) + interval seconds second;
			while sysdate(6) < till do
				set k = 1 + floor(rand() * $ROWS), n = n + 1;
				select pad into p from hot where id = k;
			end while;
			select n;
		end//" || return 1
	for _ in $(seq 3000); do
		[ "$(maria replica "select count(*) from bench.cold" 2>/dev/null)" = $((4 * ROWS)) ] && break
		sleep 0.2
	done
	for round in $(seq "$ROUNDS"); do
		for name in master replica; do
			maria "$name" "use bench; call lookups($SECONDS_EACH)" >/dev/null
			maria_round mariadb "$name" "$round" before
			maria "$name" "select * from bench.cold" >/dev/null
			maria_round mariadb "$name" "$round" after
		done
	done
	for name in replica master; do maria "$name" "shutdown"; done
	wait
	judge
}

mkdir -p "$RUNS"
make_group
{ for cell in "$@"; do
	printf '# %s, load %s\n' "$cell" "$(cut -d' ' -f1-3 /proc/loadavg)" >>"$(raw "$cell")"
	"cell_$cell"
done; exit "$bad"; }
