#!/bin/bash
# Measures what the lane design rests on, on a PostgreSQL of its own: started on a free port in a
# temporary directory, stopped and removed at the end. As root it runs the server as user postgres.
# Usage: [PG_BIN=directory of PostgreSQL's programs] measure.sh [part ...]; without parts all of them,
# which takes about ten minutes and 8 GB.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${PG_BIN:-$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)}
dir=$(mktemp -d)
as=()
if [ "$(id -u)" = 0 ]; then as=(runuser -u postgres --); chown postgres "$dir"; fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export PGHOST=127.0.0.1 PGPORT=$port PGUSER=postgres PGDATABASE=postgres PGOPTIONS='-c client_min_messages=warning'
stop() {
    exec 3>&- 2>/dev/null || true
    psql -X -P format=unaligned -P fieldsep=' | ' -P footer=off \
        -c "SELECT part, what, ms, buffers, how FROM bench.result ORDER BY id" || true
    # By the id that the server wrote down, and only that.
    "${as[@]}" "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap stop EXIT
"${as[@]}" "$bin/initdb" -D "$dir/data" -A trust -U postgres -E UTF8 --locale=C.UTF-8 >/dev/null
cat >>"$dir/data/postgresql.conf" <<C
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = ''
shared_buffers = 512MB
max_wal_size = 8GB
C
"${as[@]}" "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w start >/dev/null
ask() { psql -X -q -v ON_ERROR_STOP=1 -At "$@"; }
sql() { ask "$@" >/dev/null; }
say() { echo "$(date +%T) $*" >&2; }
sql -c 'CREATE SCHEMA pabal'
sql -1 -f "$here/../../../migrations/postgres/0001_init.sql"
sql -f "$here/bench.sql"

# A second session, fed line by line.
open_session() { mkfifo "$dir/session"; psql -X -q -At <"$dir/session" >"$dir/session.out" 2>&1 & session=$!; exec 3>"$dir/session"; }
tell() { echo "$1" >&3; echo "\\echo done-$((++told))" >&3; until grep -q "^done-$told\$" "$dir/session.out"; do read -rt 0.02 <> <(:) || true; done; }
close_session() { exec 3>&-; wait "$session" || true; rm -f "$dir/session"; told=0; }
told=0

# The ten days before yesterday, as if the hub had run since then.
old_days=$(cat <<'S'
DO $$ BEGIN
    FOR ago IN 2..11 LOOP
        EXECUTE format('CREATE TABLE IF NOT EXISTS pabal.%I PARTITION OF pabal.delivery_log FOR VALUES FROM (%L) TO (%L)',
            'delivery_log_' || to_char(pabal.today() - ago, 'YYYYMMDD'), pabal.today() - ago, pabal.today() - ago + 1);
    END LOOP;
END $$;
S
)

tail_reads() {
say "tail reads"
sql <<'S'
SELECT bench.wait(500, '''p/'' || n % 100', '''key-'' || n % 50000');
ANALYZE pabal.outbox;
SELECT bench.read('next 500', 'nothing else waiting', bench.tail(0));
TRUNCATE pabal.outbox;
SELECT bench.wait(1000000, '''p/'' || n % 100', '''key-'' || n % 50000');
SELECT bench.read('next 500', '1,000,000 waiting, not yet analyzed', bench.tail((SELECT max(number) - 500 FROM pabal.outbox)));
VACUUM ANALYZE pabal.outbox;
SELECT bench.read('next 500', '1,000,000 waiting', bench.tail((SELECT max(number) - 500 FROM pabal.outbox)));
SELECT bench.read('next 500', '1,000,000 waiting, in their middle', bench.tail((SELECT max(number) - 500000 FROM pabal.outbox)));
TRUNCATE pabal.outbox;
SELECT bench.wait(100000, '''p/one''', '''deep''');
SELECT bench.wait(500, '''p/'' || n % 100', '''key-'' || n');
VACUUM ANALYZE pabal.outbox;
SELECT bench.read('next 500', 'one key 100,000 deep in front', bench.tail((SELECT max(number) - 500 FROM pabal.outbox)));
SELECT bench.read('next 500', 'the same, from the front past that key', bench.columns() || $q$key <> 'deep' ORDER BY number LIMIT 500$q$);
SELECT bench.read('one key', 'next 32 of a key 100,000 deep, its front', bench.one_key('deep', 0));
SELECT bench.read('one key', 'next 32 of a key 100,000 deep, its middle', bench.one_key('deep', (SELECT max(number) - 50000 FROM pabal.outbox)));
TRUNCATE pabal.outbox;
TRUNCATE pabal.outbox;
SELECT bench.wait(1000000, '''p/'' || n % 100', '''key-'' || n % 50000');
SELECT bench.wait(100000, '''p/one''', '''deep''');
VACUUM ANALYZE pabal.outbox;
SELECT bench.read('one key', 'the same behind 1,000,000 others', bench.one_key('deep', 0), 5);
SELECT bench.read('one key', 'the same, as a range', bench.one_key_range('deep', 0), 5);
SELECT bench.read('one key', 'the same in its middle, as a range', bench.one_key_range('deep', (SELECT max(number) - 50000 FROM pabal.outbox)), 5);
SELECT bench.read('one key', '100,000 of one destination behind 1,000,000 others', bench.destination('p/one', 0), 5);
SELECT bench.read('one key', 'the same, as a range', bench.destination_range('p/one', 0), 5);
TRUNCATE pabal.outbox;
SELECT bench.wait(100000, '''p/'' || n % 100', '''key-'' || n', 'now() + interval ''1 hour''');
SELECT bench.wait(500, '''p/'' || n % 100', '''new-'' || n');
VACUUM ANALYZE pabal.outbox;
SELECT bench.read('next 500', '100,000 keys in back-off in front', bench.tail((SELECT max(number) - 500 FROM pabal.outbox)));
SELECT bench.read('next 500', 'the same, from the front past those', bench.columns() || 'due <= pabal.time() ORDER BY number LIMIT 500');
S
}

take_over() {
say "taking a lane over"
sql <<'S'
TRUNCATE pabal.outbox;
SELECT bench.wait(1000000, '''p/one''', '''key-'' || n % 50000');
SELECT bench.wait(1000, '''p/few''', '''key-'' || n');
VACUUM ANALYZE pabal.outbox;
CREATE INDEX IF NOT EXISTS outbox_destination ON pabal.outbox (destination, number) WHERE destination IS NOT NULL;
SELECT bench.take_over('take-over', 'all of 1,000,000, third index', 'p/one');
SELECT bench.read('take-over', 'a page of one lane of four', bench.destination('p/one', 0, 'AND slot % 4 = 1'), 5);
SELECT bench.read('take-over', 'the same, as a range', bench.destination_range('p/one', 0, 'AND slot % 4 = 1'), 5);
SELECT bench.read('take-over', '1,000 behind 1,000,000 of others, third index', bench.destination('p/few', 0));
DROP INDEX IF EXISTS pabal.outbox_destination;
SELECT bench.take_over('take-over', 'all of 1,000,000, two indexes', 'p/one');
SELECT bench.read('take-over', '1,000 behind 1,000,000 of others, two indexes', bench.destination('p/few', 0), 5);
SELECT bench.read('take-over', 'a destination with nothing, two indexes', bench.destination('p/none', 0), 5);
SELECT bench.take_over('take-over', 'all destinations in one read, two indexes', '');
S
}

# The usual state of a hub after a quiet hour: rows come before the table is counted again.
counted_empty() {
say "counted while it was empty"
for variant in 'plain index' 'partial index' 'partial index, settings'; do
    where=; settings=
    case $variant in partial*) where='WHERE destination IS NOT NULL';; esac
    case $variant in *settings) settings='SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;';; esac
    sql <<S
DROP INDEX IF EXISTS pabal.outbox_destination;
CREATE INDEX outbox_destination ON pabal.outbox (destination, number) $where;
ALTER TABLE pabal.outbox SET (autovacuum_enabled = off);
TRUNCATE pabal.outbox;
SELECT bench.wait(20000, '''p/'' || n % 100', '''key-'' || n');
VACUUM ANALYZE pabal.outbox;
DELETE FROM pabal.outbox;
VACUUM ANALYZE pabal.outbox;
SELECT bench.wait(200000, '''p/'' || n % 100', '''key-'' || n % 5000');
SELECT bench.wait(20000, '''p/one''', '''deep''');
$settings
SELECT bench.read('counted while empty', 'next 500 of 220,000, $variant', bench.tail((SELECT min(number) + 500 FROM pabal.outbox)), 5);
SELECT bench.read('counted while empty', '1,000 of a destination, $variant', bench.destination_range('p/3', 0), 5);
SELECT bench.read('counted while empty', '32 of a key, $variant', bench.one_key_range('deep', 0), 5);
PREPARE these(bigint[]) AS DELETE FROM pabal.outbox WHERE number = ANY(\$1);
SET plan_cache_mode = force_generic_plan;
SELECT bench.read('counted while empty', 'delete 500 by numbers, $variant', format('EXECUTE these(%L)',
    ARRAY(SELECT number FROM pabal.outbox ORDER BY number LIMIT 500)), 1);
ALTER TABLE pabal.outbox RESET (autovacuum_enabled);
S
done
}

groups() {
say "accept and settle, two and three indexes"
sql <<'S'
TRUNCATE pabal.outbox;
CALL bench.accept('warm', 40);
CALL bench.settle('warm', 40, 0);
DROP INDEX IF EXISTS pabal.outbox_destination;
CALL bench.accept('two', 60);
CALL bench.settle('two', 60, 0);
CREATE INDEX IF NOT EXISTS outbox_destination ON pabal.outbox (destination, number) WHERE destination IS NOT NULL;
CALL bench.accept('three', 60);
CALL bench.settle('three', 60, 0);
CALL bench.accept('three more', 60);
CALL bench.settle('three more', 60, 0);
DROP INDEX IF EXISTS pabal.outbox_destination;
CALL bench.accept('two more', 60);
CALL bench.settle('two more', 60, 0);
CREATE INDEX IF NOT EXISTS outbox_destination ON pabal.outbox (destination, number) WHERE destination IS NOT NULL;
UPDATE bench.sample SET run = replace(run, ' more', '');
SELECT bench.median('groups of 500', 'two', 'accept', 'accept, two indexes');
SELECT bench.median('groups of 500', 'three', 'accept', 'accept, three indexes');
SELECT bench.median('groups of 500', 'two', 'settle', 'settle, two indexes');
SELECT bench.median('groups of 500', 'three', 'settle', 'settle, three indexes');
CALL bench.accept('quiet', 60);
S
psql -X -q -c 'LISTEN pabal' -c 'SELECT pg_sleep(30)' >/dev/null 2>&1 & listener=$!
sql -c "CALL bench.accept('loud', 60, true)" \
    -c "SELECT bench.median('groups of 500', 'quiet', 'accept', 'accept without NOTIFY')" \
    -c "SELECT bench.median('groups of 500', 'loud', 'accept', 'accept with one NOTIFY, one listener')"
kill "$listener" 2>/dev/null || true; wait "$listener" 2>/dev/null || true
}

retries() {
say "retries"
sql <<'S'
TRUNCATE pabal.outbox;
SELECT bench.wait(50000, '''p/'' || n % 100', '''key-'' || n');
VACUUM ANALYZE pabal.outbox;
SELECT pg_stat_reset_single_table_counters('pabal.outbox'::regclass);
UPDATE pabal.outbox SET due = due + interval '1 minute', attempts = attempts + 1 WHERE number % 5 = 0;
SELECT pg_stat_force_next_flush();
S
sql -c "SELECT bench.note('retries', 'share of retries that touch no index', 100.0 * n_tup_hot_upd / n_tup_upd, 'percent; every fifth row tried again') FROM pg_stat_user_tables WHERE relid = 'pabal.outbox'::regclass"
}

forgotten() {
say "a forgotten transaction"
sql -c 'TRUNCATE pabal.outbox' -c 'VACUUM FULL pabal.node, bench.lease'
sql -c "CALL bench.relay('free', 400, true)"
open_session
tell 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pabal.meta;'
sql -c "CALL bench.relay('forgotten', 400, true)"
tell 'ROLLBACK;'
close_session
for run in free forgotten; do
    for kind in 'tail:next 500 from the tail' 'front:next 500 from the front' 'accept:accept' 'settle:settle' \
        'beat:one heartbeat' 'leases:1,600 lease rows'; do
        sql -c "SELECT bench.ends('200,000 settled, $run', '$run', '${kind%%:*}', '${kind#*:}')" >/dev/null
    done
    sql -c "SELECT bench.median('200,000 settled, $run', '$run', 'settle', 'settle, all of them')"
done
}

history() {
say "10,000,000 settled rows"
sql -c "$old_days"
sql <<'S'
INSERT INTO pabal.delivery_log (day, at, message, number, destination, round, outcome, duration, status, answer, sha256, size)
SELECT pabal.today() - 2 - (n / 1000001)::integer, now(), md5(n::text)::uuid, 100000000 - n, 'p/' || n % 100, 0, 'delivered', 1500, 202, '\x', NULL, 1024
FROM generate_series(1, 10000000) n;
ANALYZE pabal.delivery_log;
TRUNCATE pabal.outbox;
CALL bench.accept('history', 60);
SELECT bench.read('10,000,000 settled', 'next 500', bench.tail((SELECT min(number) - 1 FROM pabal.outbox)));
CALL bench.settle('history', 60, 0);
SELECT bench.median('10,000,000 settled', 'history', 'accept', 'accept');
SELECT bench.median('10,000,000 settled', 'history', 'settle', 'settle');
SELECT bench.read('10,000,000 settled', 'the lines of one message', 'SELECT * FROM pabal.delivery_log WHERE number = ANY(ARRAY[95000000])');
S
}

late_commit() {
say "a late commit"
sql -c 'TRUNCATE pabal.outbox'
row="INSERT INTO pabal.outbox (day, message, destination, slot, attempts, round, due, started, accepted, size) VALUES (pabal.today(), gen_random_uuid(), 'p/late', 0, 0, 0, now(), 0, now(), 1) RETURNING number"
late() {
    open_session
    tell "BEGIN; $row;"
    low=$(grep -m1 '^[0-9]' "$dir/session.out")
    high=$(ask -c "$row")
    sql -c "SELECT bench.note('late commit', 'the tail sees', (SELECT count(*) FROM pabal.outbox WHERE number > $low - 1), '$1: number $low is open, $high is committed')" >/dev/null
    sql -c "SELECT bench.note('late commit', 'the probe finds, before', (SELECT count(*) FROM pabal.outbox WHERE number = ANY(ARRAY[$low])), '$1')" >/dev/null
    tell "$1;"
    sql -c "SELECT bench.note('late commit', 'the tail after $high sees', (SELECT count(*) FROM pabal.outbox WHERE number > $high), '$1')" >/dev/null
    sql -c "SELECT bench.note('late commit', 'the probe finds, after', (SELECT count(*) FROM pabal.outbox WHERE number = ANY(ARRAY[$low])), '$1')" >/dev/null
    close_session
    sql -c 'DELETE FROM pabal.outbox'
}
late COMMIT
late ROLLBACK
sql -c "SELECT bench.wait(100000, '''p/one''', '''k-'' || n')" -c 'DELETE FROM pabal.outbox WHERE number % 100 = 0' -c 'ANALYZE pabal.outbox'
sql -c "SELECT bench.read('late commit', 'probing for 500 numbers that never come', bench.columns() || format('number = ANY(%L) ORDER BY number LIMIT 500', ARRAY(SELECT (min(number) / 100 + n) * 100 FROM pabal.outbox, generate_series(1, 500) n GROUP BY n)))"
}

. "$here/partitions.sh"

for part in ${*:-tail_reads take_over counted_empty groups retries forgotten history late_commit partitions inbox}; do
    "$part"
done
