-- The inbox table of an application on SQLite: what a hub delivers by [destination.x.database]. The
-- hub runs on the same machine and must be able to write the file and its folder. Columns are called
-- as in the outbox table.

CREATE TABLE inbox (
    -- Grows with the order in which messages came; within an aggregate that is their order.
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The message id: the same in every repeat, so that a repeat changes nothing.
    id             TEXT NOT NULL UNIQUE,
    -- The hub's own way in, e.g. welfare/decisions.
    source         TEXT NOT NULL,
    -- Where the message says it comes from, and its id there.
    origin_source  TEXT NOT NULL,
    origin_id      TEXT,
    event_type     TEXT NOT NULL,
    -- The ordering key, and its business version.
    aggregate_id   TEXT,
    version        INTEGER,
    schema_version TEXT,
    correlation_id TEXT,
    causation_id   TEXT,
    traceparent    TEXT,
    subject        TEXT,
    -- As the origin wrote it.
    occurred_at    TEXT,
    content_type   TEXT,
    -- A JSON object of strings.
    headers        TEXT NOT NULL DEFAULT '{}',
    -- Byte for byte; as text: CAST(payload AS TEXT)
    payload        BLOB NOT NULL,
    received_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')),
    -- For an application that reads the table itself; the hub leaves it alone.
    processed_at   TEXT
);

CREATE INDEX inbox_received_at ON inbox (received_at);
CREATE INDEX inbox_unprocessed ON inbox (seq) WHERE processed_at IS NULL;

-- The highest version that came of each aggregate (version_table = "inbox_version"): a lower one is
-- dropped.
CREATE TABLE inbox_version (
    source       TEXT NOT NULL,
    event_type   TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    version      INTEGER NOT NULL,
    updated_at   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')),
    PRIMARY KEY (source, event_type, aggregate_id)
) WITHOUT ROWID;

-- A whole number beyond 64 bits, and a decimal, keep their digits in a column of type TEXT alone:
-- INTEGER, NUMERIC and REAL round them.

-- Retention is the application's. A row must stay for as long as the hub may deliver the message
-- again: at least `retention.bodies` and `retention.dead_letters` of its hub.toml.
--
--   DELETE FROM inbox WHERE received_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-120 days');
