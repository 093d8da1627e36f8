-- Pabal on SQLite. Times are INTEGER microseconds since 1970 (UTC), message ids 16-byte BLOBs,
-- words such as a kind or a reason TEXT as the command line prints them.

-- Facts about this database itself: the hub it belongs to.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per arrival taken. The primary key is what makes a repeat harmless: the authenticated own
-- source comes first, so that no partner can suppress another one's ids.
CREATE TABLE inbox (
    source        TEXT NOT NULL,
    origin_source TEXT NOT NULL,
    origin_id     TEXT NOT NULL,
    message       BLOB NOT NULL,
    fingerprint   BLOB NOT NULL,
    received      INTEGER NOT NULL,
    last_seen     INTEGER NOT NULL,
    duplicates    INTEGER NOT NULL,
    PRIMARY KEY (source, origin_source, origin_id)
) STRICT, WITHOUT ROWID;

-- One immutable row per message taken. The body stands last: what is before it is read without it.
-- Deliveries made on arrival have the numbers from first_number on, so the outbox needs no index by
-- message.
CREATE TABLE message (
    sequence       INTEGER PRIMARY KEY AUTOINCREMENT,
    id             BLOB NOT NULL UNIQUE,
    received       INTEGER NOT NULL,
    first_number   INTEGER NOT NULL,
    deliveries     INTEGER NOT NULL,
    source         TEXT NOT NULL,
    origin_source  TEXT NOT NULL,
    origin_id      TEXT,
    type           TEXT NOT NULL,
    key            TEXT,
    version        INTEGER,
    schema         TEXT,
    content_type   TEXT,
    correlation    TEXT,
    size           INTEGER NOT NULL,
    rest           TEXT,                -- JSON: headers and whatever nobody searches for
    body           BLOB                 -- NULL: kept elsewhere, see rest
) STRICT;
CREATE INDEX message_received ON message (received);
CREATE INDEX message_origin_id ON message (origin_id);
CREATE INDEX message_correlation ON message (correlation) WHERE correlation IS NOT NULL;
CREATE INDEX message_key ON message (key) WHERE key IS NOT NULL;

-- Messages that no destination takes.
CREATE TABLE unrouted (
    message BLOB PRIMARY KEY NOT NULL,
    at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The hot table: one row per delivery not settled; a settled row leaves it, so there is no state
-- column. AUTOINCREMENT, because a plain rowid is given again once the newest row is gone.
CREATE TABLE outbox (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    message     BLOB NOT NULL,
    destination TEXT NOT NULL,
    slot        INTEGER NOT NULL,
    key         TEXT,
    attempts    INTEGER NOT NULL,
    round       INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    accepted    INTEGER NOT NULL,
    size        INTEGER NOT NULL        -- of the body, so that memory is planned before it is read
) STRICT;
-- For the rest of one key, however deep the others are.
CREATE INDEX outbox_key ON outbox (destination, slot, key, number) WHERE key IS NOT NULL;
-- For one destination in order, however many rows the others have in front.
CREATE INDEX outbox_destination ON outbox (destination, number);

-- Deliveries added later, which message.first_number does not cover.
CREATE TABLE routed (
    message     BLOB NOT NULL,
    destination TEXT NOT NULL,
    number      INTEGER NOT NULL,
    PRIMARY KEY (message, destination)
) STRICT, WITHOUT ROWID;

-- The pinned wire form of deliveries that may have reached the partner; written on failure only.
CREATE TABLE written (
    number       INTEGER PRIMARY KEY NOT NULL,
    content_type TEXT,
    body         BLOB NOT NULL
) STRICT;

-- What was tried and what came of it: history and evidence.
CREATE TABLE delivery_log (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    message     BLOB NOT NULL,
    number      INTEGER,
    destination TEXT NOT NULL,
    round       INTEGER NOT NULL,
    outcome     TEXT NOT NULL,
    duration    INTEGER NOT NULL,
    status      INTEGER,
    cause       TEXT,
    detail      TEXT,
    answer      BLOB,
    sha256      BLOB,
    size        INTEGER
) STRICT;
-- By number, not by message: numbers are settled about in their order, so the index is written at
-- its end, where ids would touch a page per row. Lines without a number are rare.
CREATE INDEX delivery_log_number ON delivery_log (number) WHERE number IS NOT NULL;
CREATE INDEX delivery_log_message ON delivery_log (message) WHERE number IS NULL;

-- What was set aside: a delivery, an arrival, or the question whether a destination takes a message.
-- A table of its own, so that retention of history cannot lose it.
CREATE TABLE dead_letter (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    kind          TEXT NOT NULL CHECK (kind IN ('delivery', 'source', 'routing')),
    endpoint      TEXT NOT NULL,
    message       BLOB,
    origin_source TEXT NOT NULL,
    origin_id     TEXT,
    type          TEXT NOT NULL,
    key           TEXT,
    slot          INTEGER,
    number        INTEGER UNIQUE,
    reason        TEXT NOT NULL,
    cause         TEXT NOT NULL,
    detail        TEXT,
    attempts      INTEGER NOT NULL,
    round         INTEGER NOT NULL,
    holds         TEXT NOT NULL CHECK (holds IN ('nothing', 'key', 'destination')),
    at            INTEGER NOT NULL,
    accepted      INTEGER NOT NULL,
    fingerprint   BLOB,
    superseded    INTEGER               -- when an accepted arrival of the same identity closed it
) STRICT;
CREATE INDEX dead_letter_holds ON dead_letter (endpoint, key, number) WHERE holds <> 'nothing';
CREATE INDEX dead_letter_endpoint ON dead_letter (endpoint, id) WHERE superseded IS NULL;
CREATE INDEX dead_letter_message ON dead_letter (message) WHERE message IS NOT NULL;
CREATE INDEX dead_letter_origin ON dead_letter (endpoint, origin_source, origin_id)
    WHERE kind = 'source' AND superseded IS NULL;

-- The arrival behind a dead letter of kind source: it never became a message.
CREATE TABLE arrival (
    dead_letter    INTEGER PRIMARY KEY NOT NULL,
    id             BLOB NOT NULL,
    source         TEXT NOT NULL,
    origin_source  TEXT NOT NULL,
    origin_id      TEXT,
    type           TEXT NOT NULL,
    key            TEXT,
    version        INTEGER,
    schema         TEXT,
    content_type   TEXT,
    correlation    TEXT,
    size           INTEGER NOT NULL,
    rest           TEXT,
    body           BLOB
) STRICT;

-- One heartbeat per life of a node. AUTOINCREMENT: an epoch is never given again.
CREATE TABLE node (
    epoch INTEGER PRIMARY KEY AUTOINCREMENT,
    name  TEXT NOT NULL,
    plan  TEXT NOT NULL,
    beat  INTEGER NOT NULL,
    at    INTEGER NOT NULL
) STRICT;

-- What nodes run: the endpoints of each plan that was announced, as JSON.
CREATE TABLE plan (
    hash      TEXT PRIMARY KEY NOT NULL,
    endpoints TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- How a destination is spread over lanes; a change gives it the next number.
CREATE TABLE layout (
    destination TEXT PRIMARY KEY NOT NULL,
    number      INTEGER NOT NULL,
    lanes       INTEGER NOT NULL,
    ordering    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who holds what; written only when it changes hands. Layout 0: the right to run a receiver.
CREATE TABLE lane (
    endpoint TEXT NOT NULL,
    layout   INTEGER NOT NULL,
    lane     INTEGER NOT NULL,
    lanes    INTEGER NOT NULL,      -- of its layout: it has the slots with slot % lanes = lane
    holder   INTEGER,               -- an epoch; NULL: nobody
    clean    INTEGER NOT NULL,      -- whether the last holder let go with nothing in flight
    PRIMARY KEY (endpoint, layout, lane)
) STRICT, WITHOUT ROWID;

-- What outlives a restart per source or destination.
CREATE TABLE link_state (
    endpoint      TEXT PRIMARY KEY NOT NULL,
    paused_by     TEXT,
    paused_why    TEXT,
    paused_at     INTEGER,
    tripped_cause TEXT,
    tripped_at    INTEGER,
    probes        INTEGER,
    pace          REAL                  -- messages a second, over all nodes
) STRICT, WITHOUT ROWID;

-- Small durable values of adapters; the revision counts the writes.
CREATE TABLE adapter_state (
    endpoint TEXT NOT NULL,
    name     TEXT NOT NULL,
    revision INTEGER NOT NULL,
    value    BLOB NOT NULL,
    PRIMARY KEY (endpoint, name)
) STRICT, WITHOUT ROWID;

-- The highest version delivered, for destinations that drop stale messages.
CREATE TABLE key_version (
    destination TEXT NOT NULL,
    source      TEXT NOT NULL,
    type        TEXT NOT NULL,
    key         TEXT NOT NULL,
    version     INTEGER NOT NULL,
    PRIMARY KEY (destination, source, type, key)
) STRICT, WITHOUT ROWID;

-- What operators did; append-only.
CREATE TABLE operator_log (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    by      TEXT NOT NULL,
    verb    TEXT NOT NULL,
    subject TEXT NOT NULL,
    why     TEXT
) STRICT;

-- What holders of lanes are asked to notice. AUTOINCREMENT: readers ask for what is above a number.
CREATE TABLE request (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    at   INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
