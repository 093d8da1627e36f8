-- What `relay = "cdc"` needs on PostgreSQL 13 or newer: the rows of the outbox table come out of the
-- server's log, in the order of their commits. Run this in the application's database; `pabal_cdc`
-- stands for the hub's role, `pabal_welfare_applications` for the names of `cdc.publication` and
-- `cdc.slot`, which are made of the partner and the source unless they are set.
--
-- In postgresql.conf, with a restart:
--
--   wal_level = logical
--   max_replication_slots = 10      -- one for each source with cdc, and one or two to spare
--   max_wal_senders = 10            -- the same
--   max_slot_wal_keep_size = 20GB   -- without it a hub that is away for long fills the disk: with it
--                                   -- the slot is lost instead, and the table is read anew
--
-- In pg_hba.conf nothing: a logical stream is a connection to the database like any other.

-- As the owner of the table. Only inserts: what becomes of a row later is the hub's own doing.
CREATE PUBLICATION pabal_welfare_applications FOR TABLE outbox
    WITH (publish = 'insert', publish_via_partition_root = true);

-- The least that will do: it reads, and changes nothing. Rows stay NEW; what the hub refuses is kept as
-- a dead letter of the source. Remove old rows by a job of the application's own.
CREATE ROLE pabal_cdc LOGIN REPLICATION;
GRANT USAGE ON SCHEMA public TO pabal_cdc;
GRANT SELECT ON outbox TO pabal_cdc;

-- With this, too, rows are marked as SENT or FAILED in groups (`sent = "mark"`):
--
--   GRANT UPDATE (status, retry_count, last_error, sent_at) ON outbox TO pabal_cdc;
--
-- and with this one they are deleted (`sent = "delete"`), or pruned (`keep_sent`):
--
--   GRANT DELETE ON outbox TO pabal_cdc;
--
-- The hub makes the slot by itself. Once no source uses it any more, drop it: the server keeps its log
-- for it for ever, or up to max_slot_wal_keep_size.
--
--   SELECT pg_drop_replication_slot('pabal_welfare_applications');
--
-- An application may also insert a row and delete it in the same transaction: the stream has it all the
-- same, and the table stays empty. Then nothing can be read anew should the slot be lost.
