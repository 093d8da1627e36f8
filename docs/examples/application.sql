-- The business of the examples: application forms of citizens. Beside it, in the same database, stand
-- the tables of migrations/app-side/postgres: outbox.sql and inbox.sql.
CREATE TABLE application (
    number    text PRIMARY KEY,            -- given by the form, so that sending it again changes nothing
    applicant text NOT NULL,
    region    text NOT NULL,
    version   bigint NOT NULL DEFAULT 1    -- one more with every change
);
