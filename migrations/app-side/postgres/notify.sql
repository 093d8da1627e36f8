-- Optional, for `relay = "notify"`: the hub learns of a new row at its commit, and not at its next
-- look. Run it as the role that owns the table, after outbox.sql.
--
-- One notification per statement, whatever the number of its rows, and the same one twice in a
-- transaction is sent once. It says nothing but that there is something. Commits that notify wait
-- for each other for a moment: where thousands of transactions a second write to the table, look
-- more often instead (`relay = "poll"`, `interval`).

CREATE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The channel in `notify = { channel = … }`.
    PERFORM pg_notify('pabal_outbox', '');
    RETURN NULL;
END
$$;

CREATE TRIGGER outbox_notify AFTER INSERT ON outbox
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_notify();
