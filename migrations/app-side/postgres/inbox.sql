-- The inbox table of an application on PostgreSQL: what a hub delivers by [destination.x.database].
-- Run it in the application's own schema. Columns are called as in the outbox table.

CREATE TABLE inbox (
    -- The message id: the same in every repeat, so that a repeat changes nothing.
    id             uuid PRIMARY KEY,
    -- Grows with the order in which messages came; within an aggregate that is their order.
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    -- The hub's own way in, e.g. welfare/decisions.
    source         text NOT NULL,
    -- Where the message says it comes from, and its id there.
    origin_source  text NOT NULL,
    origin_id      text,
    event_type     text NOT NULL,
    -- The ordering key, and its business version.
    aggregate_id   text,
    version        bigint,
    schema_version text,
    correlation_id text,
    causation_id   text,
    traceparent    text,
    subject        text,
    -- As the origin wrote it.
    occurred_at    text,
    content_type   text,
    -- A JSON object of strings.
    headers        jsonb NOT NULL DEFAULT '{}',
    -- Byte for byte; as JSON: convert_from(payload, 'UTF8')::jsonb
    payload        bytea NOT NULL,
    received_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- For an application that reads the table itself; the hub leaves it alone.
    processed_at   timestamptz
);

CREATE INDEX inbox_received_at ON inbox (received_at);
CREATE INDEX inbox_unprocessed ON inbox (seq) WHERE processed_at IS NULL;

-- The highest version that came of each aggregate (version_table = "inbox_version"): a lower one is
-- dropped.
CREATE TABLE inbox_version (
    source       text NOT NULL,
    event_type   text NOT NULL,
    aggregate_id text NOT NULL,
    version      bigint NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, event_type, aggregate_id)
) WITH (fillfactor = 80);

-- What the hub's account needs, and no more, beside what the statements of `apply` do:
--
--   GRANT INSERT, SELECT (id) ON inbox TO pabal;
--   GRANT INSERT, UPDATE, SELECT ON inbox_version TO pabal;

-- Retention is the application's. A row must stay for as long as the hub may deliver the message
-- again: at least `retention.bodies` and `retention.dead_letters` of its hub.toml.
--
--   DELETE FROM inbox WHERE received_at < now() - interval '120 days';
