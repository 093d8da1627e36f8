-- The outbox table of an application on SQLite 3.37 or newer. The application inserts a row in the
-- transaction of the business data it is about, and does nothing else with it. Application and hub
-- run on one machine; both need `PRAGMA journal_mode = WAL` (it stays with the file) and a busy timeout.
--
-- Any other layout works, too: see `columns` in `[source.x.database]`.

CREATE TABLE outbox (
    -- The order of the rows of one aggregate; never given out twice.
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Made by the application before the insert, for ever: the hub knows the message by it.
    id             TEXT    NOT NULL UNIQUE,
    -- What it is about, e.g. 'application' and its number. Nothing of one aggregate_id overtakes
    -- another of the same aggregate_id.
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    -- What happened or is asked, e.g. 'application.submitted'. Destinations subscribe to it.
    event_type     TEXT    NOT NULL,
    -- The body, byte for byte; text is sent in UTF-8.
    payload        BLOB    NOT NULL,
    content_type   TEXT    NOT NULL DEFAULT 'application/json',
    -- The schema that the payload follows, e.g. 'application@1.0'.
    schema_version TEXT,
    -- The business version: grows with every change of the aggregate. By it a receiver knows what
    -- is older than what it has.
    version        INTEGER,
    -- What the message belongs to and what caused it.
    correlation_id TEXT,
    causation_id   TEXT,
    -- W3C trace context.
    traceparent    TEXT,
    -- The one destination it is for, 'partner/name', instead of all that subscribe to its type.
    destination    TEXT,
    -- A JSON object of strings.
    headers        TEXT,
    -- NEW until the hub has it (SENT) or refuses it for good (FAILED, with the reason in last_error).
    -- Setting it to NEW again sends it again, under the same id.
    status         TEXT    NOT NULL DEFAULT 'NEW' CHECK (status IN ('NEW', 'SENT', 'FAILED')),
    retry_count    INTEGER NOT NULL DEFAULT 0,
    last_error     TEXT,
    created_at     TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    sent_at        TEXT
);

-- What the relay looks for, in its order: as large as what waits, however much was sent.
CREATE INDEX outbox_new ON outbox (seq) WHERE status = 'NEW';
-- What may be removed (`keep_sent`).
CREATE INDEX outbox_sent ON outbox (sent_at) WHERE status = 'SENT';
-- What was refused: for people, and for `on_failed = "hold"`.
CREATE INDEX outbox_failed ON outbox (aggregate_id, seq) WHERE status = 'FAILED';
