# Part of measure.sh: work on partitions while somebody reads, and pruning the inbox.

partitions() {
say "partitions behind an open reader"
# Settles go on while `$2` is tried every half second for five seconds beside an open reader.
beside_reader() {
    sql -c "CALL bench.accept('fill', 12)" >/dev/null
    oldest=$(ask -c "SELECT min(name) FROM pabal.partition WHERE of = 'delivery_log'")
    open_session
    tell "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM (SELECT 1 FROM pabal.delivery_log WHERE day = '$3' LIMIT 1) it;"
    sql -c "CALL bench.trickle('$1', 50)" & trickle=$!
    for _ in 1 2 3 4 5; do
        psql -X -q -At -c "$(printf "$2" "$oldest")" >>"$dir/attempts" 2>&1 || true
        sleep 0.5
    done
    wait "$trickle"
    tell 'ROLLBACK;'
    close_session
    sql -c "SELECT bench.median('partitions', '$1', 'settle', '$1: a settle of 20')" >/dev/null
}
sql <<'S'
-- Small groups, ten a second: whatever waits is seen.
CREATE PROCEDURE bench.trickle(run text, groups integer) LANGUAGE plpgsql AS $$
DECLARE
    start timestamptz;
BEGIN
    FOR step IN 1..groups LOOP
        PERFORM pg_sleep(0.1);
        COMMIT;
        start := clock_timestamp();
        WITH gone AS (DELETE FROM pabal.outbox WHERE number = ANY(ARRAY
            (SELECT number FROM pabal.outbox ORDER BY number LIMIT 20)) RETURNING number, message, destination)
        INSERT INTO pabal.delivery_log (day, at, message, number, destination, round, outcome, duration)
            SELECT pabal.today(), pabal.time(), message, number, destination, 0, 'delivered', 0 FROM gone;
        COMMIT;
        INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'settle', bench.since(start));
    END LOOP;
END $$;
S
sql -c "$old_days"
read_day=$(ask -c "SELECT min(day) FROM pabal.partition WHERE of = 'delivery_log'")
other=$(ask -c 'SELECT pabal.today()')
beside_reader 'nothing done' 'SELECT 1' "$read_day"
beside_reader 'plain DROP, given up after 2 s' "SET lock_timeout = '2s'; DROP TABLE pabal.%s" "$read_day"
beside_reader 'drop_partition, its day is read' "SELECT pabal.drop_partition('delivery_log', pabal.today() - 2)" "$read_day"
beside_reader 'drop_partition, another day is read' "SELECT pabal.drop_partition('delivery_log', pabal.today() - 2)" "$other"
beside_reader 'CREATE TABLE .. PARTITION OF, 200 ms' "SET lock_timeout = '200ms'; CREATE TABLE pabal.delivery_log_20991231 PARTITION OF pabal.delivery_log FOR VALUES FROM ('2099-12-31') TO ('2100-01-01')" "$other"
beside_reader 'make_partitions' "SELECT pabal.make_partitions(12)" "$other"
sed "s/^/    /" "$dir/attempts" | sort | uniq -c >&2
}

inbox() {
say "pruning the inbox"
# 20,000 ids a day, kept for ten days; each night what is older is removed and the table vacuumed.
for kind in brin btree; do
    with=$([ $kind = brin ] && echo 'WITH (pages_per_range = 32, autosummarize = on)' || true)
    sql -c "CREATE TABLE bench.inbox_$kind (LIKE pabal.inbox, PRIMARY KEY (identity)) WITH (autovacuum_enabled = off)" \
        -c "CREATE INDEX by_$kind ON bench.inbox_$kind USING $kind (last_seen) $with"
    for day in $(seq 1 25); do
        sql -c "INSERT INTO bench.inbox_$kind (identity, source, origin_source, origin_id, message, day, fingerprint,
                received, last_seen, duplicates) SELECT gen_random_uuid(), 'partner/in', '', 'order-' || n,
                gen_random_uuid(), pabal.today(), sha256('x'), t, t, 0 FROM (SELECT n,
                '2026-01-01'::timestamptz + $day * interval '1 day' + n * interval '1 second' AS t
                FROM generate_series(1, 20000) n) it" \
            -c "DELETE FROM bench.inbox_$kind WHERE last_seen < '2026-01-01'::timestamptz + ($day - 9) * interval '1 day'" \
            -c "VACUUM ANALYZE bench.inbox_$kind"
    done
    sql -c "SELECT bench.read('pruning', 'the next 500 of 200,000, $kind', \$q\$SELECT identity FROM bench.inbox_$kind
                WHERE last_seen < '2026-01-18' ORDER BY last_seen LIMIT 500\$q\$)" \
        -c "SELECT bench.read('pruning', 'nothing of 200,000 is old enough, $kind', \$q\$SELECT identity FROM bench.inbox_$kind
                WHERE last_seen < '2026-01-16' ORDER BY last_seen LIMIT 500\$q\$)" \
        -c "SELECT bench.note('pruning', 'size of the index, $kind', NULL, pg_size_pretty(pg_relation_size('bench.by_$kind')))"
done
}
