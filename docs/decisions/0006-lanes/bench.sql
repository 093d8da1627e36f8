-- What measure.sh calls: the statements of the store, timed inside the server, without a client's part.
CREATE SCHEMA bench;
CREATE TABLE bench.result (id serial, part text, what text, ms numeric, buffers bigint, how text);
CREATE UNLOGGED TABLE bench.sample (id bigserial, run text, step integer, kind text, ms float8);

CREATE FUNCTION bench.since(start timestamptz) RETURNS float8 LANGUAGE sql VOLATILE AS
    'SELECT extract(epoch FROM clock_timestamp() - start)::float8 * 1000';

CREATE FUNCTION bench.note(part text, what text, ms float8, how text DEFAULT '') RETURNS void
LANGUAGE sql AS
    'INSERT INTO bench.result (part, what, ms, how) VALUES (part, what, round(ms::numeric, 2), how)';

-- The innermost node of a plan, which says by which index it goes.
CREATE FUNCTION bench.leaf(plan json) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    WHILE plan -> 'Plans' IS NOT NULL LOOP
        plan := plan #> '{Plans,0}';
    END LOOP;
    RETURN concat_ws(' ', plan ->> 'Node Type', plan ->> 'Index Name');
END $$;

-- Median of some runs of a read, planning included, and the pages that one of them touched.
CREATE FUNCTION bench.read(part text, what text, query text, runs integer DEFAULT 21) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    start timestamptz;
    times float8[];
    plan  json;
BEGIN
    FOR run IN 1..runs LOOP
        start := clock_timestamp();
        EXECUTE query;
        times := times || bench.since(start);
    END LOOP;
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) ' || query INTO plan;
    plan := plan #> '{0,Plan}';
    INSERT INTO bench.result (part, what, ms, buffers, how)
    SELECT part, what, round((percentile_cont(0.5) WITHIN GROUP (ORDER BY t))::numeric, 2),
        (plan ->> 'Shared Hit Blocks')::bigint + (plan ->> 'Shared Read Blocks')::bigint,
        format('%s rows, %s', plan ->> 'Actual Rows', bench.leaf(plan))
    FROM unnest(times) t;
END $$;

CREATE FUNCTION bench.columns() RETURNS text LANGUAGE sql AS $$
    SELECT 'SELECT number, message, destination, slot, key, attempts, round, started, due, accepted, '
        'size, pabal.time() FROM pabal.outbox WHERE '
$$;
CREATE FUNCTION bench.tail(after bigint) RETURNS text LANGUAGE sql AS $$
    SELECT bench.columns() || format('number > %s ORDER BY number LIMIT 500', after)
$$;
CREATE FUNCTION bench.one_key(key text, after bigint) RETURNS text LANGUAGE sql AS $$
    SELECT bench.columns() || format('destination = ''p/one'' AND slot = 7 AND key = %L '
        'AND number > %s ORDER BY destination, slot, key, number LIMIT 32', key, after)
$$;
CREATE FUNCTION bench.destination(name text, after bigint, filter text DEFAULT '') RETURNS text
LANGUAGE sql AS $$
    SELECT bench.columns() || format('destination = %L AND number > %s %s '
        'ORDER BY destination, number LIMIT 1000', name, after, filter)
$$;

-- The same two as one range of an index, from its first column on. With equalities the planner knows that
-- the order is that of the number alone, and may walk the numbers and throw away what is not asked for.
CREATE FUNCTION bench.one_key_range(key text, after bigint) RETURNS text LANGUAGE sql AS $$
    SELECT bench.columns() || format('key IS NOT NULL AND (destination, slot, key, number) > '
        '(''p/one'', 7, %L, %s) AND (destination, slot, key) <= (''p/one'', 7, %1$L) '
        'ORDER BY destination, slot, key, number LIMIT 32', key, after)
$$;
CREATE FUNCTION bench.destination_range(name text, after bigint, filter text DEFAULT '') RETURNS text
LANGUAGE sql AS $$
    SELECT bench.columns() || format('(destination, number) > (%L, %s) AND destination <= %1$L %3$s '
        'ORDER BY destination, number LIMIT 1000', name, after, filter)
$$;

-- Waiting deliveries; `destination` and `key` are expressions of n.
CREATE FUNCTION bench.wait(rows integer, destination text, key text, due text DEFAULT 'now()')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO pabal.outbox (day, message, destination, slot, key, attempts, round, '
        'due, started, accepted, size) SELECT pabal.today(), gen_random_uuid(), d, '
        'CASE WHEN k = ''deep'' THEN 7 ELSE abs(hashtext(k)) %% 256 END, k, 0, 0, %s, 0, now(), 1024 '
        'FROM (SELECT n, %s AS d, %s AS k FROM generate_series(1, $1) n) it ORDER BY n',
        due, destination, key) USING rows;
END $$;

-- Reads a destination whole, page by page; the time and the number of rows.
CREATE FUNCTION bench.take_over(part text, what text, name text, filter text DEFAULT '') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    start timestamptz := clock_timestamp();
    after bigint := 0;
    found bigint;
    total bigint := 0;
    page  bigint;
BEGIN
    LOOP
        EXECUTE format('SELECT count(*), max(number) FROM (%s) it', CASE name WHEN '' THEN
            bench.columns() || format('number > %s ORDER BY number LIMIT 1000', after)
            ELSE bench.destination(name, after, filter) END) INTO page, found;
        total := total + page;
        EXIT WHEN page < 1000;
        after := found;
    END LOOP;
    PERFORM bench.note(part, what, bench.since(start), total || ' rows in pages of 1,000');
END $$;

-- One group: what the accept transaction writes. A message of 1 KiB for one destination each.
CREATE PROCEDURE bench.accept(run text, groups integer, notify boolean DEFAULT false)
LANGUAGE plpgsql AS $$
DECLARE
    ids     uuid[];
    keys    text[];
    names   text[];
    marks   bytea[];
    numbers bigint[];
    body    bytea := convert_to(repeat(md5('body'), 32), 'UTF8');
    start   timestamptz;
BEGIN
    FOR step IN 1..groups LOOP
        SELECT array_agg(id ORDER BY id), array_agg('key-' || (random() * 50000)::integer),
            array_agg('order-' || id), array_agg(sha256(convert_to(id::text, 'UTF8')))
            INTO ids, keys, names, marks
            FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 500)) it;
        COMMIT;
        start := clock_timestamp();
        INSERT INTO pabal.inbox (identity, source, origin_source, origin_id, message, day, fingerprint,
            received, last_seen, duplicates)
            SELECT id, 'partner/in', '', name, id, pabal.today(), mark, pabal.time(), pabal.time(), 0
            FROM unnest(ids, names, marks) AS new (id, name, mark) ON CONFLICT DO NOTHING;
        numbers := ARRAY(SELECT nextval('pabal.outbox_number_seq') FROM generate_series(1, 500));
        INSERT INTO pabal.message (day, received, numbers, id, source, origin_source, origin_id, type,
            key, content_type, size, rest, body)
            SELECT pabal.today(), pabal.time(), numbers[place:place], id, 'partner/in', '', name,
                'order.created', key, 'application/json', 1024, '{"redeliveries":0,"hops":0}', body
            FROM unnest(ids, names, keys) WITH ORDINALITY AS new (id, name, key, place);
        INSERT INTO pabal.outbox (number, day, message, destination, slot, key, attempts, round, due,
            started, accepted, size)
            SELECT number, pabal.today(), id, 'p/' || place % 100, abs(hashtext(key)) % 256, key, 0, 0,
                pabal.time(), 0, pabal.time(), 1024
            FROM unnest(numbers, ids, keys) WITH ORDINALITY AS new (number, id, key, place);
        IF notify THEN
            PERFORM pg_notify('pabal', '');
        END IF;
        COMMIT;
        INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'accept', bench.since(start));
    END LOOP;
END $$;

CREATE PROCEDURE bench.settle(run text, groups integer, INOUT after bigint)
LANGUAGE plpgsql AS $$
DECLARE
    these bigint[];
    start timestamptz;
BEGIN
    FOR step IN 1..groups LOOP
        these := ARRAY(SELECT number FROM pabal.outbox WHERE number > after ORDER BY number LIMIT 500);
        EXIT WHEN these = '{}';
        COMMIT;
        start := clock_timestamp();
        WITH gone AS (DELETE FROM pabal.outbox WHERE number = ANY(these)
            RETURNING number, message, destination, round)
        INSERT INTO pabal.delivery_log (day, at, message, number, destination, round, outcome, duration,
            status, answer, sha256, size)
            SELECT pabal.today(), pabal.time(), message, number, destination, round, 'delivered', 1500,
                202, '\x', sha256(convert_to(message::text, 'UTF8')), 1024 FROM gone;
        COMMIT;
        INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'settle', bench.since(start));
        after := these[cardinality(these)];
    END LOOP;
END $$;

-- Groups taken, read and settled one after the other, with a heartbeat and lease rows between them.
CREATE TABLE bench.lease (id integer PRIMARY KEY, until timestamptz NOT NULL, filler text)
    WITH (fillfactor = 50);
INSERT INTO bench.lease SELECT n, now(), repeat('x', 40) FROM generate_series(1, 1600) n;
CREATE PROCEDURE bench.relay(run text, groups integer, leases boolean) LANGUAGE plpgsql AS $$
DECLARE
    after bigint := (SELECT coalesce(max(number), 0) FROM pabal.outbox);
    life  bigint;
    start timestamptz;
    took  float8;
BEGIN
    IF after = 0 THEN
        SELECT last_value INTO after FROM pabal.outbox_number_seq;
    END IF;
    INSERT INTO pabal.node (name, plan, beat, at) VALUES ('n', 'p', 0, now()) RETURNING epoch INTO life;
    FOR step IN 1..groups LOOP
        CALL bench.accept(run, 1);
        start := clock_timestamp();
        EXECUTE bench.tail(after);
        took := bench.since(start);
        INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'tail', took);
        start := clock_timestamp();
        EXECUTE bench.tail(0);
        took := bench.since(start);
        INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'front', took);
        CALL bench.settle(run, 1, after);
        COMMIT;
        start := clock_timestamp();
        UPDATE pabal.node SET beat = beat + 1, at = pabal.time() WHERE epoch = life;
        COMMIT;
        took := bench.since(start);
        INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'beat', took);
        IF leases THEN
            COMMIT;
            start := clock_timestamp();
            UPDATE bench.lease SET until = clock_timestamp();
            COMMIT;
            took := bench.since(start);
            INSERT INTO bench.sample (run, step, kind, ms) VALUES (run, step, 'leases', took);
        END IF;
    END LOOP;
    DELETE FROM pabal.node WHERE epoch = life;
END $$;

-- Median of a kind over the first 20 and the last 20 samples.
CREATE FUNCTION bench.ends(part text, of_run text, of_kind text, what text) RETURNS void
LANGUAGE sql AS $$
    WITH it AS (SELECT ms, row_number() OVER (ORDER BY id) AS n, count(*) OVER () AS all_of
        FROM bench.sample WHERE run = of_run AND kind = of_kind),
    ends AS (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FILTER (WHERE n <= 20) AS first,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FILTER (WHERE n > all_of - 20) AS last FROM it)
    SELECT bench.note(part, what || ', first 20', first), bench.note(part, what || ', last 20', last)
    FROM ends
$$;
CREATE FUNCTION bench.median(part text, of_run text, of_kind text, what text) RETURNS void
LANGUAGE sql AS $$
    SELECT bench.note(part, what, percentile_cont(0.5) WITHIN GROUP (ORDER BY ms),
        format('%s groups, slowest %s ms', count(*), round(max(ms)::numeric, 1)))
    FROM bench.sample WHERE run = of_run AND kind = of_kind
$$;
