//! A service that takes application forms. The form and the message that tells others of it are
//! written in one transaction; decisions come back into its inbox table.
//!
//! ```sh
//! DATABASE_URL=postgres://… cargo run -p pabal-example-rust-axum
//! curl -d '{"number": "A-1", "applicant": "Kim", "region": "11"}' -H content-type:application/json \
//!     http://127.0.0.1:8090/applications
//! ```

use std::net::SocketAddr;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use clap::Parser;
use pabal_outbox::{Event, Message, Schema, postgres};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;

#[derive(Parser)]
struct Settings {
    #[arg(long, env, hide_env_values = true)]
    database_url: String,
    #[arg(long, env, default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    let pool = PgPool::connect(&settings.database_url).await?;
    let service = Router::new()
        .route("/applications", post(submit))
        .route("/applications/{number}", get(show).put(amend))
        .with_state(pool);
    axum::serve(TcpListener::bind(settings.listen).await?, service).await?;
    Ok(())
}

#[derive(Deserialize)]
struct Form {
    number: String,
    applicant: String,
    region: String,
}

/// What others are told. It is a promise to them: the form may change, this only by a new version.
#[derive(Serialize)]
struct Submitted<'a> {
    number: &'a str,
    applicant: &'a str,
    region: &'a str,
}

impl Event for Submitted<'_> {
    const TYPE: &'static str = "application.submitted";
    const SCHEMA: Schema = Schema::new("application", 1, 0);
}

/// `POST /applications`: 201 if the form was taken, 200 if it was before.
async fn submit(State(pool): State<PgPool>, Json(form): Json<Form>) -> Result<StatusCode, Failure> {
    let Form { number, applicant, region } = &form;
    let message = Message::of(&Submitted { number, applicant, region })
        .aggregate("application", number)
        .version(1)
        .correlation(number)
        .build()?;

    let mut transaction = pool.begin().await?;
    let insert = "INSERT INTO application (number, applicant, region) VALUES ($1, $2, $3) \
                  ON CONFLICT (number) DO NOTHING";
    let insert = sqlx::query(insert).bind(number).bind(applicant).bind(region);
    let is_new = insert.execute(&mut *transaction).await?.rows_affected() == 1;
    if is_new {
        postgres::enqueue(&mut transaction, &message).await?;
    }
    transaction.commit().await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::OK })
}

#[derive(Deserialize)]
struct Amendment {
    region: String,
}

#[derive(Serialize)]
struct Amended<'a> {
    number: &'a str,
    region: &'a str,
}

impl Event for Amended<'_> {
    const TYPE: &'static str = "application.amended";
    const SCHEMA: Schema = Schema::new("amendment", 1, 0);
}

/// `PUT /applications/{number}`: the applicant has moved.
async fn amend(
    State(pool): State<PgPool>,
    Path(number): Path<String>,
    Json(Amendment { region }): Json<Amendment>,
) -> Result<StatusCode, Failure> {
    let mut transaction = pool.begin().await?;
    // The row first: whoever changes the same application at the same time waits here, so that its
    // messages are written in the order of its versions.
    let update = "UPDATE application SET region = $2, version = version + 1 WHERE number = $1 \
                  RETURNING version";
    let update = sqlx::query_scalar(update).bind(&number).bind(&region);
    let Some(version) = update.fetch_optional(&mut *transaction).await? else {
        return Ok(StatusCode::NOT_FOUND);
    };
    let message = Message::of(&Amended { number: &number, region: &region })
        .aggregate("application", &number)
        .version(version)
        .correlation(&number)
        .build()?;
    postgres::enqueue(&mut transaction, &message).await?;
    transaction.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /applications/{number}`: the application, and the last decision on it.
async fn show(State(pool): State<PgPool>, Path(number): Path<String>) -> Result<Response, Failure> {
    let select = "SELECT applicant, region, version FROM application WHERE number = $1";
    let row: Option<(String, String, i64)> =
        sqlx::query_as(select).bind(&number).fetch_optional(&pool).await?;
    let Some((applicant, region, version)) = row else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    // The hub put each decision there once, however often it came, and in order: the last counts.
    let decision = "SELECT payload FROM inbox WHERE aggregate_id = $1 ORDER BY seq DESC LIMIT 1";
    let decision: Option<Vec<u8>> =
        sqlx::query_scalar(decision).bind(&number).fetch_optional(&pool).await?;
    let decision: Option<serde_json::Value> =
        decision.map(|payload| serde_json::from_slice(&payload)).transpose()?;
    Ok(Json(serde_json::json!({
        "number": number,
        "applicant": applicant,
        "region": region,
        "version": version,
        "decision": decision,
    }))
    .into_response())
}

/// Whatever goes wrong: the log has it, the caller tries again.
struct Failure(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        eprintln!("{:#}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
