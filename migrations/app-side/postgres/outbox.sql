-- The outbox table of an application on PostgreSQL 13 or newer. The application inserts a row in the
-- transaction of the business data it is about, and does nothing else with it. Run this in the
-- application's own schema, as the role that owns its tables.
--
-- Any other layout works, too: see `columns` in `[source.x.database]`.

CREATE TABLE outbox (
    -- Made by the application before the insert, for ever: the hub knows the message by it. Any text
    -- will do instead of a UUID.
    id             uuid        PRIMARY KEY,
    -- The order of the rows of one aggregate. Holes and late commits do no harm: what was sent is
    -- known by its status and by nothing else.
    seq            bigint      GENERATED ALWAYS AS IDENTITY,
    -- What it is about, e.g. 'application' and its number. Nothing of one aggregate_id overtakes
    -- another of the same aggregate_id.
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    -- What happened or is asked, e.g. 'application.submitted'. Destinations subscribe to it.
    event_type     text        NOT NULL,
    -- The body, byte for byte. Not jsonb: that writes numbers anew (1.50 stays, 1E2 does not),
    -- reorders the members, and cannot hold a zero character.
    payload        bytea       NOT NULL,
    content_type   text        NOT NULL DEFAULT 'application/json',
    -- The schema that the payload follows, e.g. 'application@1.0'.
    schema_version text,
    -- The business version: grows with every change of the aggregate. By it a receiver knows what
    -- is older than what it has.
    version        bigint,
    -- What the message belongs to and what caused it.
    correlation_id text,
    causation_id   text,
    -- W3C trace context.
    traceparent    text,
    -- The one destination it is for, 'partner/name', instead of all that subscribe to its type.
    destination    text,
    -- A JSON object of strings.
    headers        json,
    -- NEW until the hub has it (SENT) or refuses it for good (FAILED, with the reason in last_error).
    -- Setting it to NEW again sends it again, under the same id.
    status         text        NOT NULL DEFAULT 'NEW' CHECK (status IN ('NEW', 'SENT', 'FAILED')),
    retry_count    integer     NOT NULL DEFAULT 0,
    last_error     text,
    -- When the row was written. now() would be the beginning of the transaction.
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at        timestamptz
) WITH (
    -- Room for the new version of a row beside the old one.
    fillfactor = 70,
    -- Every row is updated once and deleted once: cleaned by the number of rows that changed, not by
    -- their share in a table that may be large.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_cost_delay = 1,
    -- Giving pages back to the system takes a lock that would hold up the application.
    vacuum_truncate = off
);

-- What the relay looks for, in its order: as large as what waits, however much was sent.
CREATE INDEX outbox_new ON outbox (seq) INCLUDE (aggregate_id) WHERE status = 'NEW';
-- What may be removed (`keep_sent`).
CREATE INDEX outbox_sent ON outbox (sent_at) WHERE status = 'SENT';
-- What was refused: for people, and for `on_failed = "hold"`.
CREATE INDEX outbox_failed ON outbox (aggregate_id, seq) WHERE status = 'FAILED';

-- What the hub's role needs, and no more (`pabal_relay` stands for its name):
--
--   GRANT USAGE ON SCHEMA public TO pabal_relay;
--   GRANT SELECT, UPDATE (status, retry_count, last_error, sent_at) ON outbox TO pabal_relay;
--   GRANT DELETE ON outbox TO pabal_relay;  -- only with `keep_sent` or `sent = "delete"`
--
-- With `one_transaction = true` it is the role of the hub's store that needs it.
