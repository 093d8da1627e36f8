//! A look at the database that changes nothing in it.

use pabal_core::Finding;
use sqlx::{Connection, Executor, PgConnection, Row};

use crate::{
    PostgresStore, migrate,
    open::{OpenError, Options},
    server::Server,
};

impl PostgresStore {
    /// What is found there by a role that wants to run a hub on it; nothing if all is well.
    pub async fn probe(options: &Options) -> Vec<Finding> {
        let mut found = Vec::new();
        if let Err(error) = look(options, &mut found).await {
            found.push(Finding::fault(error.to_string()));
        }
        found
    }
}

async fn look(options: &Options, found: &mut Vec<Finding>) -> Result<(), OpenError> {
    let server = Server::of(&options.url)?;
    let mut connection = server.connect().await?;
    server.check(&mut connection).await?;
    setting(&server, &mut connection, found).await?;
    let (has, known) = (server.step(&mut connection).await?, migrate::known());
    if has > known {
        return Err(OpenError::Newer { place: server.place, step: has, known });
    }
    if has < known {
        found.push(pending(&server, &mut connection, has, known).await?);
    }
    if has > 0 {
        if let Some(stored) = server.owner(&mut connection).await?
            && stored != options.hub_name
        {
            let given = options.hub_name.clone();
            return Err(OpenError::OtherHub { place: server.place, stored, given });
        }
        may_run(&server, &mut connection, found).await?;
    }
    let _ = connection.close().await;
    match &options.listen_url {
        Some(url) => {
            Server::of(url)?.connect().await?;
        }
        None if server.is_pooled().await? => found.push(
            Finding::warning(
                "it is reached through a transaction pooler, which carries no notifications",
            )
            .help("give listening a way around it: store.postgres.listen"),
        ),
        None => {}
    }
    Ok(())
}

/// What of the server's settings and of the role is dear one day.
async fn setting(
    server: &Server,
    connection: &mut PgConnection,
    found: &mut Vec<Finding>,
) -> Result<(), OpenError> {
    let row = connection
        .fetch_one(
            "SELECT current_setting('fsync'), coalesce((SELECT rolsuper FROM pg_roles \
             WHERE rolname = current_user), false)",
        )
        .await
        .map_err(|error| server.database(error))?;
    if row.get::<String, _>(0) == "off" {
        found.push(
            Finding::warning("fsync is off: what a receipt was given for is lost with the power")
                .help("fsync = on in the server's configuration"),
        );
    }
    if row.get::<bool, _>(1) {
        found.push(
            Finding::note("the role is a superuser: it can do more than run a hub")
                .help("SELECT pabal.grant_to('role') gives another role what it needs"),
        );
    }
    Ok(())
}

async fn pending(
    server: &Server,
    connection: &mut PgConnection,
    has: i64,
    known: i64,
) -> Result<Finding, OpenError> {
    let may = "SELECT CASE WHEN to_regnamespace('pabal') IS NULL \
               THEN has_database_privilege(current_database(), 'CREATE') \
               ELSE pg_has_role((SELECT nspowner FROM pg_namespace WHERE nspname = 'pabal'), 'USAGE') \
               END";
    let row = connection.fetch_one(may).await.map_err(|error| server.database(error))?;
    let what = match has {
        0 => "the schema is not there yet".to_owned(),
        has => format!("the schema has step {has}, this version needs {known}"),
    };
    Ok(match row.get(0) {
        true => {
            Finding::note(what).help("`pabal run` brings it up to date, or `pabal migrate` before")
        }
        false => Finding::fault(format!("{what}, and this role may not change it"))
            .help("run `pabal migrate` with the role that owns it"),
    })
}

/// Whether the role was given what a hub needs.
async fn may_run(
    server: &Server,
    connection: &mut PgConnection,
    found: &mut Vec<Finding>,
) -> Result<(), OpenError> {
    let may = "SELECT has_table_privilege('pabal.inbox', 'INSERT') \
               AND has_table_privilege('pabal.outbox', 'INSERT') \
               AND has_table_privilege('pabal.outbox', 'DELETE') \
               AND has_table_privilege('pabal.message', 'INSERT') \
               AND has_function_privilege('pabal.make_partitions(integer)', 'EXECUTE')";
    let row = connection.fetch_one(may).await.map_err(|error| server.database(error))?;
    if !row.get::<bool, _>(0) {
        let role = server.options.get_username();
        found.push(Finding::fault(format!("the role `{role}` may not do what a hub does")).help(
            format!("the owner of the schema gives it that by SELECT pabal.grant_to('{role}')"),
        ));
    }
    Ok(())
}
