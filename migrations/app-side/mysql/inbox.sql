-- The inbox table of an application on MariaDB or MySQL 8: what a hub delivers by
-- [destination.x.database]. Run it in the application's own database. Columns are called as in the
-- outbox table. InnoDB: the row of the inbox and what follows from it are one transaction.

CREATE TABLE inbox (
    -- The message id: the same in every repeat, so that a repeat changes nothing.
    id             CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    -- Grows with the order in which messages came; within an aggregate that is their order.
    seq            BIGINT NOT NULL AUTO_INCREMENT UNIQUE,
    -- The hub's own way in, e.g. welfare/decisions.
    source         VARCHAR(160) NOT NULL,
    -- Where the message says it comes from, and its id there.
    origin_source  VARCHAR(512) NOT NULL,
    origin_id      VARCHAR(512),
    event_type     VARCHAR(256) NOT NULL,
    -- The ordering key, and its business version.
    aggregate_id   VARCHAR(512),
    version        BIGINT,
    schema_version VARCHAR(256),
    correlation_id VARCHAR(512),
    causation_id   VARCHAR(512),
    traceparent    VARCHAR(512),
    subject        VARCHAR(512),
    -- As the origin wrote it.
    occurred_at    VARCHAR(256),
    content_type   VARCHAR(256),
    -- A JSON object of strings.
    headers        JSON NOT NULL,
    -- Byte for byte; as text: CONVERT(payload USING utf8mb4)
    payload        LONGBLOB NOT NULL,
    received_at    DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    -- For an application that reads the table itself; the hub leaves it alone.
    processed_at   DATETIME(6),
    INDEX inbox_received_at (received_at),
    INDEX inbox_unprocessed (processed_at, seq)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The highest version that came of each aggregate (version_table = "inbox_version"): a lower one is
-- dropped. Bytes, because a collation would take two keys for one.
CREATE TABLE inbox_version (
    source       VARBINARY(160) NOT NULL,
    event_type   VARBINARY(256) NOT NULL,
    aggregate_id VARBINARY(512) NOT NULL,
    version      BIGINT NOT NULL,
    updated_at   DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (source, event_type, aggregate_id)
) ENGINE = InnoDB;

-- What the hub's account needs, and no more, beside what the statements of `apply` do:
--
--   GRANT INSERT ON app.inbox TO pabal;
--   GRANT INSERT, UPDATE, SELECT ON app.inbox_version TO pabal;

-- Retention is the application's. A row must stay for as long as the hub may deliver the message
-- again: at least `retention.bodies` and `retention.dead_letters` of its hub.toml.
--
--   DELETE FROM inbox WHERE received_at < NOW() - INTERVAL 120 DAY LIMIT 10000;
