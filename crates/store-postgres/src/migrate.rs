//! What schema the database has, and whose it is.

use sqlx::{
    Connection, Executor, PgConnection, Row, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

use crate::{
    PostgresStore, error,
    open::{OpenError, Options},
    server::Server,
};

const MIGRATIONS: &[(i64, &str, &str)] =
    &[(1, "init", include_str!("../../../migrations/postgres/0001_init.sql"))];
/// The last step this version knows.
pub(crate) fn known() -> i64 {
    MIGRATIONS.last().map_or(0, |(step, ..)| *step)
}

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

impl Server {
    /// Brings the schema up to date, if it is not and this role may; in one transaction, as everything
    /// here, so that it can go through a pooler.
    async fn migrate(
        &self,
        connection: &mut PgConnection,
        hub_name: &str,
        may: bool,
    ) -> Result<Vec<i64>, OpenError> {
        let fail = |error| self.database(error);
        let mut transaction = connection.begin_with(BEGIN).await.map_err(fail)?;
        let known = known();
        let mut has = self.step(&mut transaction).await?;
        if has < known {
            let pending = OpenError::Pending { place: self.place.clone(), has, needs: known };
            if !may {
                return Err(pending);
            }
            // One at a time, however many nodes start together; the others find it done.
            transaction.execute("SELECT pg_advisory_xact_lock(8032, 0)").await.map_err(fail)?;
            has = self.step(&mut transaction).await?;
            if has < known {
                match self.apply(&mut transaction).await {
                    Err(OpenError::Migrate { error, .. }) if may_not(&error) => {
                        return Err(pending);
                    }
                    done => done?,
                }
            }
        }
        if has > known {
            return Err(OpenError::Newer { place: self.place.clone(), step: has, known });
        }
        self.belongs(&mut transaction, hub_name).await?;
        transaction.commit().await.map_err(fail)?;
        Ok((has + 1..=known).collect())
    }

    /// The last step applied; 0: none.
    pub(crate) async fn step(&self, connection: &mut PgConnection) -> Result<i64, OpenError> {
        let there = "SELECT to_regclass('pabal._migrations') IS NOT NULL";
        let fail = |error| self.database(error);
        if !connection.fetch_one(there).await.map_err(fail)?.get::<bool, _>(0) {
            return Ok(0);
        }
        let last = "SELECT coalesce(max(version), 0) FROM pabal._migrations WHERE success";
        Ok(connection.fetch_one(last).await.map_err(fail)?.get(0))
    }

    async fn apply(&self, connection: &mut PgConnection) -> Result<(), OpenError> {
        let fail = |error| OpenError::Migrate { place: self.place.clone(), error };
        let there = connection.fetch_one("SELECT to_regnamespace('pabal') IS NOT NULL").await;
        if !there.map_err(|error| fail(error.into()))?.get::<bool, _>(0) {
            let made = connection.execute("CREATE SCHEMA pabal").await;
            made.map_err(|error| fail(error.into()))?;
        }
        let steps = MIGRATIONS.iter().map(|(version, name, sql)| {
            let kind = MigrationType::Simple;
            Migration::new(*version, (*name).into(), kind, sql.into_sql_str(), false)
        });
        let mut migrator = Migrator::with_migrations(steps.collect());
        migrator.dangerous_set_table_name("pabal._migrations");
        migrator.set_locking(false);
        migrator.run_direct(None, connection, false).await.map_err(fail)
    }

    /// The hub whose database it is, if that is written yet.
    pub(crate) async fn owner(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<String>, OpenError> {
        let stored = "SELECT value FROM pabal.meta WHERE name = 'hub'";
        let stored = sqlx::query_scalar(stored).persistent(false);
        stored.fetch_optional(connection).await.map_err(|error| self.database(error))
    }

    /// Writes the hub's name into a new database, and compares it with an old one's.
    async fn belongs(
        &self,
        connection: &mut PgConnection,
        hub_name: &str,
    ) -> Result<(), OpenError> {
        let mut name = self.owner(connection).await?;
        if name.is_none() {
            let insert = "INSERT INTO pabal.meta (name, value) VALUES ('hub', $1) \
                          ON CONFLICT (name) DO UPDATE SET name = 'hub' RETURNING value";
            let insert = sqlx::query_scalar(insert).bind(hub_name).persistent(false);
            let inserted = insert.fetch_one(&mut *connection).await;
            name = Some(inserted.map_err(|error| self.database(error))?);
        }
        match name {
            Some(stored) if stored != hub_name => {
                let (place, given) = (self.place.clone(), hub_name.to_owned());
                Err(OpenError::OtherHub { place, stored, given })
            }
            _ => Ok(()),
        }
    }
}

fn may_not(error: &MigrateError) -> bool {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            error::is_forbidden(error)
        }
        _ => false,
    }
}

impl PostgresStore {
    /// Brings the schema of a database up to date, with a role that owns it or may make it; the steps
    /// that were applied. A role that only runs the hub is given what it needs by
    /// `SELECT pabal.grant_to('role')`.
    ///
    /// # Errors
    /// If the server cannot be reached or used, is newer than this version, belongs to another hub,
    /// or the role may not.
    pub async fn migrate(options: &Options) -> Result<Vec<i64>, OpenError> {
        let server = Server::of(&options.url)?;
        let mut connection = server.connect().await?;
        server.check(&mut connection).await?;
        let applied =
            server.migrate(&mut connection, &options.hub_name, options.may_migrate).await?;
        // It is committed; how the session ends changes nothing.
        let _ = connection.close().await;
        Ok(applied)
    }
}
