//! An application's database with the documented tables, and the hub's account with the documented
//! rights.

use pabal_conformance::{
    mariadb,
    postgres::{self, OWNER, RUNTIME},
};
use sqlx::{ConnectOptions, Connection, Executor, Row, sqlite::SqliteConnectOptions};

/// One of the three kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MySql,
    Sqlite,
}

pub(crate) const ALL: [Kind; 3] = [Kind::Postgres, Kind::MySql, Kind::Sqlite];

/// A database with the inbox tables in it.
#[derive(Debug)]
pub(crate) struct Application {
    pub(crate) kind: Kind,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Postgres(postgres::Database<'static>),
    MySql(mariadb::Database<'static>),
    Sqlite(tempfile::TempDir),
}

impl Application {
    /// With a table `application` of the application's own: `no` is unique, `amount` a number of any
    /// size, `memo` text; the hub's account may add to it, and change it.
    pub(crate) async fn new(kind: Kind) -> Self {
        let place = match kind {
            Kind::Postgres => Place::Postgres(postgres::Server::shared().database()),
            Kind::MySql => Place::MySql(mariadb::Server::shared().database()),
            Kind::Sqlite => Place::Sqlite(tempfile::tempdir().unwrap()),
        };
        let it = Self { kind, place };
        let ddl = it.ddl();
        it.run(ddl).await;
        let own = match kind {
            Kind::Postgres => {
                "CREATE TABLE application (seq bigint GENERATED ALWAYS AS IDENTITY, \
                 no text UNIQUE, amount numeric, ref bigint, memo text, version bigint)"
            }
            Kind::MySql => {
                "CREATE TABLE application (seq bigint AUTO_INCREMENT PRIMARY KEY, \
                 no varchar(100) COLLATE utf8mb4_bin UNIQUE, amount decimal(60, 10), ref bigint, \
                 memo text, version bigint) ENGINE = InnoDB"
            }
            Kind::Sqlite => {
                "CREATE TABLE application (seq INTEGER PRIMARY KEY, no TEXT UNIQUE, amount TEXT, \
                 ref INTEGER, memo TEXT, version INTEGER)"
            }
        };
        it.run(own).await;
        it.grant(ddl).await;
        match &it.place {
            Place::Postgres(database) => {
                database.ask(&format!("GRANT INSERT, UPDATE, SELECT ON application TO {RUNTIME}"));
            }
            Place::MySql(database) => {
                let name = database.name();
                database.ask(&format!(
                    "GRANT INSERT, UPDATE, SELECT ON {name}.application TO {RUNTIME}"
                ));
            }
            Place::Sqlite(_) => {}
        }
        it
    }

    fn ddl(&self) -> &'static str {
        match self.kind {
            Kind::Postgres => {
                include_str!("../../../../../migrations/app-side/postgres/inbox.sql")
            }
            Kind::MySql => include_str!("../../../../../migrations/app-side/mysql/inbox.sql"),
            Kind::Sqlite => include_str!("../../../../../migrations/app-side/sqlite/inbox.sql"),
        }
    }

    /// The rights that stand in the file, and no others.
    async fn grant(&self, ddl: &str) {
        let lines = ddl.lines().filter_map(|line| line.strip_prefix("--   GRANT "));
        let mut count = 0;
        for line in lines {
            let mut grant = format!("GRANT {}", line.replace(" pabal;", &format!(" {RUNTIME}")));
            if let Place::MySql(database) = &self.place {
                grant = grant.replace(" app.", &format!(" {}.", database.name()));
            }
            self.run(&grant).await;
            count += 1;
        }
        assert_eq!(count, if self.kind == Kind::Sqlite { 0 } else { 2 });
    }

    /// As the hub's account.
    pub(crate) fn url(&self) -> String {
        match &self.place {
            Place::Postgres(database) => database.url(RUNTIME),
            Place::MySql(database) => format!("{}?ssl-mode=disabled", database.url(RUNTIME)),
            Place::Sqlite(folder) => {
                format!("sqlite:{}", folder.path().join("app.db").display())
            }
        }
    }

    /// As the owner of the database, who may do everything but what the superuser made.
    pub(crate) fn owners_url(&self) -> String {
        self.url().replace(&format!("//{RUNTIME}@"), &format!("//{OWNER}@"))
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        match &self.place {
            Place::Postgres(_) => postgres::Server::shared().port(),
            Place::MySql(_) => mariadb::Server::shared().port(),
            Place::Sqlite(_) => unreachable!("a file has no port"),
        }
    }

    /// Runs statements as the owner.
    pub(crate) async fn run(&self, sql: &str) {
        let _ = self.ask(sql).await;
    }

    /// What statements print: of the last, row by row and column by column, with `|` between.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let folder = match &self.place {
            Place::Postgres(database) => return database.ask(sql),
            Place::MySql(database) => return database.ask(sql).replace('\t', "|"),
            Place::Sqlite(folder) => folder,
        };
        let options = SqliteConnectOptions::new().filename(folder.path().join("app.db"));
        let mut connection = options.create_if_missing(true).connect().await.unwrap();
        let rows = connection.fetch_all(sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        connection.close().await.unwrap();
        let lines = rows.iter().map(|row| {
            let columns = (0..row.len()).map(|index| {
                let text: Option<String> = row.try_get_unchecked(index).unwrap();
                text.unwrap_or_default()
            });
            columns.collect::<Vec<_>>().join("|")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// How many rows there are in a table.
    pub(crate) async fn count(&self, table: &str) -> String {
        self.ask(&format!("SELECT count(*) FROM {table}")).await
    }
}
