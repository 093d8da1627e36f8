-- The outbox table of an application on MariaDB 10.6 or MySQL 8.0, or newer. The application inserts
-- a row in the transaction of the business data it is about, and does nothing else with it.
--
-- Any other layout works, too: see `columns` in `[source.x.database]`.

CREATE TABLE outbox (
    -- Made by the application before the insert, for ever: the hub knows the message by it.
    id             varchar(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    -- The order of the rows of one aggregate. Holes and late commits do no harm: what was sent is
    -- known by its status and by nothing else.
    seq            bigint       NOT NULL AUTO_INCREMENT,
    -- What it is about, e.g. 'application' and its number. Nothing of one aggregate_id overtakes
    -- another of the same aggregate_id.
    aggregate_type varchar(255) NOT NULL,
    aggregate_id   varchar(512) COLLATE utf8mb4_bin NOT NULL,
    -- What happened or is asked, e.g. 'application.submitted'. Destinations subscribe to it.
    event_type     varchar(255) NOT NULL,
    -- The body, byte for byte. Not json: MySQL writes numbers and members anew.
    payload        longblob     NOT NULL,
    content_type   varchar(255) NOT NULL DEFAULT 'application/json',
    -- The schema that the payload follows, e.g. 'application@1.0'.
    schema_version varchar(255),
    -- The business version: grows with every change of the aggregate. By it a receiver knows what
    -- is older than what it has.
    version        bigint,
    -- What the message belongs to and what caused it.
    correlation_id varchar(512),
    causation_id   varchar(512),
    -- W3C trace context.
    traceparent    varchar(255),
    -- The one destination it is for, 'partner/name', instead of all that subscribe to its type.
    destination    varchar(160),
    -- A JSON object of strings.
    headers        longtext,
    -- NEW until the hub has it (SENT) or refuses it for good (FAILED, with the reason in last_error).
    -- Setting it to NEW again sends it again, under the same id.
    status         varchar(6)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'NEW'
                   CHECK (status IN ('NEW', 'SENT', 'FAILED')),
    retry_count    int          NOT NULL DEFAULT 0,
    last_error     text,
    -- In UTC.
    created_at     datetime(6)  NOT NULL DEFAULT (utc_timestamp(6)),
    sent_at        datetime(6),
    UNIQUE KEY outbox_seq (seq),
    -- What the relay looks for, in its order.
    KEY outbox_status (status, seq),
    -- What may be removed (`keep_sent`).
    KEY outbox_sent (sent_at)
) ENGINE = InnoDB CHARACTER SET utf8mb4;

-- Only for `on_failed = "hold"`:
--
--   CREATE INDEX outbox_failed ON outbox (aggregate_id, status, seq);

-- What the hub's account needs, and no more (`pabal_relay` stands for its name, `app` for the database):
--
--   GRANT SELECT, UPDATE (status, retry_count, last_error, sent_at) ON app.outbox TO pabal_relay;
--   GRANT DELETE ON app.outbox TO pabal_relay;  -- only with `keep_sent` or `sent = "delete"`
--
-- MySQL locks rows with SELECT … FOR UPDATE only for an account that may update: column by column
-- is enough.
