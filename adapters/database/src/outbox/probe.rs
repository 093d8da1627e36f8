//! A look at an outbox table that takes nothing from it and changes nothing in it.

use pabal_core::Finding;

use super::{
    access::{Connection, Kind, Sql, Value},
    columns::Field,
    relay::Relay,
    settings::{OnFailed, RelayKind, SentRow},
    statements::Wanted,
    table::Table,
    trouble::Trouble,
};
use crate::{classify::said, name::Dialect};

/// Where the table is written down.
const DDL: &str =
    "migrations/app-side/{postgres,mysql,sqlite}/outbox.sql has the table and the rights";

/// A transaction that is open for so long, in minutes, keeps what was sent from being cleaned away.
const OLD_TRANSACTION_MINUTES: u32 = 10;

impl Relay {
    /// What is found, worst first.
    pub(super) async fn probe(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Err(trouble) = self.look_around(&mut found).await {
            let (Trouble::Passing(why) | Trouble::Lasting(why)) = trouble;
            found.push(Finding::fault(why).help(DDL));
        }
        found.sort_by_key(|finding| finding.severity);
        found
    }

    async fn look_around(&self, found: &mut Vec<Finding>) -> Result<(), Trouble> {
        let table = self.find().await?;
        let mut connection = self.connect().await?;
        self.statements(&table, &mut connection, found).await;
        self.layout(&table, found);
        self.order(&table, found);
        let state = Look { table: &table, relay: self };
        let looked = match table.dialect {
            Dialect::Postgres => state.on_postgres(&mut connection, found).await,
            Dialect::MySql => state.on_mysql(&mut connection, found).await,
            Dialect::Sqlite => state.on_sqlite(&mut connection, found).await,
        };
        if let Err(error) = looked {
            let what = format!("the rest could not be looked at: {}", said(&error));
            found.push(Finding::warning(what));
        }
        connection.give_back();
        Ok(())
    }

    /// Lets the database plan what the relay will ask, which checks columns, types and rights.
    async fn statements(
        &self,
        table: &Table,
        connection: &mut Connection,
        found: &mut Vec<Finding>,
    ) {
        let (id, row) = (vec![table.some_id()], vec![(table.some_id(), "why".to_owned())]);
        let settings = &self.checked.settings;
        let mut statements = vec![
            ("looking for rows", Some(table.head(&Wanted::default()))),
            ("reading rows", Some(table.load(&id, !settings.one_transaction))),
        ];
        // With one transaction it is the hub's own role that marks.
        if !settings.one_transaction {
            statements.push(("marking rows as sent", Some(table.mark_sent(&id))));
        }
        statements.push(("marking rows as refused", table.mark_failed(&row, true)));
        statements.push(("counting retries", table.count_retries(&row, true)));
        let prune = settings.keep_sent.and_then(|keep| table.prune(keep));
        statements.push(("removing sent rows", prune));
        for (what, statement) in statements {
            let Some(statement) = statement else { continue };
            if let Err(error) = connection.explain(&statement).await {
                let what = format!("{what} would be refused: {}", said(&error));
                found.push(Finding::fault(what).help(DDL));
            }
        }
    }

    /// In which order rows go.
    fn order(&self, table: &Table, found: &mut Vec<Finding>) {
        let has = |field| table.columns.get(field).is_some();
        let name = &self.checked.table;
        if !has(Field::Order) {
            let by = if has(Field::Time) { "time, and rows of one moment by id" } else { "id" };
            found.push(
                Finding::warning(format!(
                    "{name} has no column of the order: rows of a key go by {by}"
                ))
                .help("columns = { order = \"…\" }: a number that the database counts up"),
            );
        } else if !table.has_numbers() {
            found.push(Finding::note(format!(
                "the order of {name} is no whole number: each look is through all unsent rows"
            )));
        }
    }

    /// What the columns say by themselves.
    pub(super) fn layout(&self, table: &Table, found: &mut Vec<Finding>) {
        let has = |field| table.columns.get(field).is_some();
        let name = &self.checked.table;
        let body = table.type_of(Field::Body).to_ascii_uppercase();
        if body == "JSONB" || body == "JSON" && table.dialect == Dialect::MySql {
            found.push(
                Finding::warning(format!(
                    "bodies of {name} are {body}, which writes JSON anew: what is sent is not byte for \
                     byte what was written"
                ))
                .help("bytea, or text; on MySQL longblob"),
            );
        }
        if !has(Field::Key) {
            found.push(
                Finding::note(format!("{name} has no key: its rows keep no order among them"))
                    .help("columns = { key = \"…\" }, or `read.identify` of the source"),
            );
        }
        for (field, why) in [
            (Field::Schema, "receivers cannot tell which version of a schema a body follows"),
            (Field::Version, "receivers cannot tell an older state from a newer one"),
        ] {
            if !has(field) {
                let key = field.key();
                found.push(
                    Finding::note(format!("{name} has no column for `{key}`: {why}"))
                        .help(format!("columns = {{ {key} = \"…\" }}")),
                );
            }
        }
        if self.checked.sent == SentRow::Mark && self.checked.settings.keep_sent.is_none() {
            found.push(
                Finding::warning(format!("what was sent stays in {name} for ever"))
                    .help("keep_sent = \"7d\", with the right to delete"),
            );
        }
    }
}

struct Look<'a> {
    table: &'a Table,
    relay: &'a Relay,
}

impl Look<'_> {
    /// The answer to a question about the table, as text.
    async fn ask(
        &self,
        connection: &mut Connection,
        before: &str,
        after: &str,
    ) -> Result<Option<String>, sqlx::Error> {
        let mut sql = Sql::new(self.table.dialect, before);
        sql.text(match self.table.dialect {
            Dialect::Postgres => self.table.name.as_str(),
            Dialect::MySql | Dialect::Sqlite => self.relay.checked.table.name(),
        });
        sql.push(after);
        let rows = connection.fetch(&sql, &[Kind::Text]).await?;
        Ok(rows.into_iter().next().and_then(|mut cells| cells.next().and_then(Value::text)))
    }

    fn column(&self, field: Field) -> &str {
        self.table.columns.get(field).unwrap_or_default()
    }

    /// `indexes`: one a line, as `unique|predicate|first column,second column`.
    fn indexes(&self, indexes: &str, found: &mut Vec<Finding>) {
        let (table, name) = (self.table, &self.relay.checked.table);
        let lines = indexes.lines().filter_map(|line| {
            let (unique, rest) = line.split_once('|')?;
            let (predicate, columns) = rest.rsplit_once('|')?;
            Some((unique == "t", predicate, columns.split(',').collect::<Vec<_>>()))
        });
        let indexes: Vec<_> = lines.collect();
        let (id, status) = (self.column(Field::Id), self.column(Field::Status));
        let order = match table.columns.get(Field::Order) {
            Some(order) => order,
            None => self.column(Field::Time),
        };
        let unique = |(unique, predicate, columns): &(bool, &str, Vec<&str>)| {
            *unique && predicate.is_empty() && columns[..] == [id]
        };
        if !indexes.iter().any(unique) {
            found.push(
                Finding::warning(format!(
                    "nothing keeps two rows of {name} from having one `{id}`"
                ))
                .help(
                    "the second would be taken for a repeat, or refused: make it the primary key",
                ),
            );
        }
        let finds = |(_, predicate, columns): &(bool, &str, Vec<&str>)| match status {
            "" => columns.first() == Some(&order),
            _ if predicate.contains(status) => columns.first() == Some(&order),
            _ => columns.first() == Some(&status) && columns.get(1) == Some(&order),
        };
        if !order.is_empty() && !indexes.iter().any(finds) {
            let help = match table.dialect {
                Dialect::MySql => format!("CREATE INDEX … ON {name} ({status}, {order})"),
                _ if status.is_empty() => format!("CREATE INDEX … ON {name} ({order})"),
                _ => format!("CREATE INDEX … ON {name} ({order}) WHERE {status} = 'NEW'"),
            };
            found.push(
                Finding::warning(format!("no index finds the unsent rows of {name}: every look reads more the more was sent"))
                    .help(help),
            );
        }
        let failed = |(_, predicate, columns): &(bool, &str, Vec<&str>)| {
            columns.first() == Some(&self.column(Field::Key))
                && (predicate.contains(status) || columns.contains(&status))
        };
        if self.relay.checked.settings.on_failed == OnFailed::Hold && !indexes.iter().any(failed) {
            let (key, order) = (self.column(Field::Key), self.column(Field::Order));
            found.push(
                Finding::warning(format!("no index finds the refused rows of a key of {name}"))
                    .help(format!(
                        "CREATE INDEX … ON {name} ({key}, {order}) for the refused rows"
                    )),
            );
        }
    }

    async fn on_postgres(
        &self,
        connection: &mut Connection,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let name = &self.relay.checked.table;
        let indexes = "SELECT string_agg(concat(CASE WHEN i.indisunique THEN 't' END, '|', \
            replace(pg_get_expr(i.indpred, i.indrelid), '|', ' '), '|', (SELECT string_agg(a.attname, ',' \
            ORDER BY k.place) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place) \
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number \
            WHERE k.place <= i.indnkeyatts)), E'\\n') FROM pg_index i WHERE i.indisvalid AND i.indrelid = ";
        let lines = self.ask(connection, indexes, "::text::regclass").await?;
        self.indexes(&lines.unwrap_or_default(), found);
        // Each part is there or not.
        let state = "SELECT concat_ws(' ', CASE WHEN pg_is_in_recovery() THEN 'standby' END, \
            CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN 'superuser' END, \
            CASE WHEN has_table_privilege(c.oid, 'TRUNCATE') OR has_table_privilege(c.oid, 'INSERT') THEN \
            'owner' END, CASE WHEN array_to_string(c.reloptions, ' ') ~ 'autovacuum_enabled=(false|off|0)' \
            THEN 'unclean' END, CASE WHEN array_to_string(c.reloptions, ' ') ~ \
            'autovacuum_vacuum_(threshold|scale_factor)' THEN NULL ELSE 'share' END, \
            CASE WHEN EXISTS (SELECT 1 FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid \
            WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' \
            AND p.prosrc ILIKE '%notify%') THEN 'trigger' END) FROM pg_class c WHERE c.oid = ";
        let state = self.ask(connection, state, "::text::regclass").await?.unwrap_or_default();
        let is = |word: &str| state.split(' ').any(|it| it == word);
        if is("standby") {
            found.push(Finding::fault("it is a standby, which takes no marks"));
        }
        if is("superuser") {
            found.push(Finding::warning("the role is a superuser").help(DDL));
        } else if is("owner") {
            found.push(
                Finding::note(format!("the role may do more with {name} than a relay needs"))
                    .help(DDL),
            );
        }
        if is("unclean") {
            found.push(
                Finding::warning(format!("{name} is never cleaned: autovacuum is off for it"))
                    .help(format!("ALTER TABLE {name} RESET (autovacuum_enabled)")),
            );
        } else if is("share") {
            found.push(
                Finding::note(format!("{name} is cleaned by the share of rows that changed"))
                    .help("autovacuum_vacuum_scale_factor = 0 with a threshold, as in outbox.sql"),
            );
        }
        if self.relay.checked.settings.relay == RelayKind::Notify && !is("trigger") {
            found.push(
                Finding::warning(format!(
                    "no trigger of {name} notifies: rows are found by looking, every `idle_interval`"
                ))
                .help("migrations/app-side/postgres/notify.sql"),
            );
        }
        let oldest = "SELECT floor(extract(epoch FROM max(now() - xact_start)) / 60)::text \
            FROM pg_stat_activity WHERE datname = current_database() AND to_regclass(";
        let oldest = self.ask(connection, oldest, "::text) IS NOT NULL").await?;
        let minutes = oldest.and_then(|minutes| minutes.parse().ok()).unwrap_or(0_u32);
        if minutes >= OLD_TRANSACTION_MINUTES {
            found.push(
                Finding::warning(format!(
                    "a transaction is open for {minutes} minutes: nothing that was sent since can be \
                     cleaned away"
                ))
                .help("pg_stat_activity shows whose; idle_in_transaction_session_timeout ends it"),
            );
        }
        Ok(())
    }

    async fn on_mysql(
        &self,
        connection: &mut Connection,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let schema = match self.relay.checked.table.schema() {
            Some(schema) => format!("'{schema}'"),
            None => "database()".to_owned(),
        };
        let indexes = "SELECT CAST(group_concat(line SEPARATOR '\\n') AS CHAR) FROM (SELECT \
            concat(CASE WHEN min(non_unique) = 0 THEN 't' ELSE '' END, '||', \
            group_concat(column_name ORDER BY seq_in_index)) AS line \
            FROM information_schema.statistics WHERE table_name = ";
        let after = format!(" AND table_schema = {schema} GROUP BY index_name) AS lines_of");
        let lines = self.ask(connection, indexes, &after).await?;
        self.indexes(&lines.unwrap_or_default(), found);
        let engine =
            "SELECT CAST(engine AS CHAR) FROM information_schema.tables WHERE table_name = ";
        let engine = self.ask(connection, engine, &format!(" AND table_schema = {schema}")).await?;
        if engine.as_deref() != Some("InnoDB") {
            found.push(Finding::fault(format!(
                "the table is kept by {}, which knows no transactions",
                engine.unwrap_or_default()
            )));
        }
        Ok(())
    }

    async fn on_sqlite(
        &self,
        connection: &mut Connection,
        found: &mut Vec<Finding>,
    ) -> Result<(), sqlx::Error> {
        let indexes = "SELECT group_concat(line, char(10)) FROM (SELECT CASE WHEN l.\"unique\" THEN 't' \
            ELSE '' END || '|' || CASE WHEN l.partial THEN coalesce((SELECT replace(substr(m.sql, \
            instr(upper(m.sql), 'WHERE')), '|', ' ') FROM sqlite_master m WHERE m.name = l.name), '') \
            ELSE '' END || '|' || (SELECT group_concat(i.name, ',') FROM pragma_index_info(l.name) i) \
            AS line FROM pragma_index_list(";
        let mut lines = self.ask(connection, indexes, ") l)").await?.unwrap_or_default();
        // The key of the table itself is no index.
        let key = "SELECT group_concat(name, ',') FROM pragma_table_info(";
        if let Some(key) = self.ask(connection, key, ") WHERE pk > 0").await? {
            lines.push_str(&format!("\nt||{key}"));
        }
        self.indexes(&lines, found);
        let mode = self
            .ask(connection, "SELECT journal_mode FROM pragma_journal_mode WHERE ", " <> ''")
            .await?;
        if mode.as_deref() != Some("wal") {
            found.push(
                Finding::warning("readers and writers of the database wait for each other")
                    .help("PRAGMA journal_mode = WAL, once; it stays with the file"),
            );
        }
        Ok(())
    }
}
