//! What holds on every kind of database.

/// The cases of one kind. Its module has `open()`, a database with the documented table, whose
/// `pool()` connects to it; and `ROW`, which reads all columns that are written, as text but for the
/// payload and the version, and the status, in the order of the rows.
macro_rules! cases {
    ($kind:ident) => {
        use pabal_outbox::{Error, Message, Table, $kind as outbox};
        use sqlx::{AssertSqlSafe, Row};

        use crate::{about, complete};

        const COLUMNS: [&str; 11] = [
            "id",
            "aggregate_type",
            "aggregate_id",
            "event_type",
            "content_type",
            "schema_version",
            "correlation_id",
            "causation_id",
            "traceparent",
            "destination",
            "status",
        ];

        async fn ids(pool: &Pool) -> Vec<String> {
            let rows = sqlx::query(ROW).fetch_all(pool).await.unwrap();
            rows.iter().map(|row| row.get("id")).collect()
        }

        #[tokio::test]
        async fn the_row_is_exactly_what_was_given_and_new() {
            let database = open().await;
            let pool = database.pool().await;
            let (full, bare) = (complete().build().unwrap(), about("A-1").build().unwrap());
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue(&mut transaction, &full).await.unwrap();
            outbox::enqueue(&mut transaction, &bare).await.unwrap();
            transaction.commit().await.unwrap();

            let rows = sqlx::query(ROW).fetch_all(&pool).await.unwrap();
            let texts = |row| {
                COLUMNS.map(|column| Row::get::<Option<String>, _>(row, column).unwrap_or_default())
            };
            assert_eq!(
                texts(&rows[0]),
                [
                    &full.id().to_string(),
                    "application",
                    "가'나\\1",
                    "scan.added",
                    "image/tiff",
                    "scan@2.1",
                    "case \"7\"",
                    "cause",
                    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                    "welfare/scans",
                    "NEW",
                ]
            );
            assert_eq!(rows[0].get::<Vec<u8>, _>("payload"), [0, b'\\', 0xff, b'\'']);
            assert_eq!(rows[0].get::<Option<i64>, _>("version"), Some(i64::MAX));
            let headers: String = rows[0].get("headers");
            let headers: serde_json::Value = serde_json::from_str(&headers).unwrap();
            assert_eq!(headers, serde_json::json!({ "region": "서울" }));

            assert_eq!(
                texts(&rows[1]),
                [
                    &bare.id().to_string(),
                    "application",
                    "A-1",
                    "application.submitted",
                    "application/json",
                    "application@1.0",
                    "",
                    "",
                    "",
                    "",
                    "NEW",
                ]
            );
            let payload: Vec<u8> = rows[1].get("payload");
            assert_eq!(
                String::from_utf8(payload).unwrap(),
                r#"{"number":"A-1","applicant":"김파발"}"#
            );
            assert_eq!(rows[1].get::<Option<i64>, _>("version"), None);
            assert_eq!(rows[1].get::<Option<String>, _>("headers"), None);
        }

        #[tokio::test]
        async fn what_is_rolled_back_dropped_or_cut_off_leaves_nothing() {
            let database = open().await;
            let pool = database.pool().await;
            let message = about("A-1").build().unwrap();
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue(&mut transaction, &message).await.unwrap();
            transaction.rollback().await.unwrap();
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue(&mut transaction, &message).await.unwrap();
            drop(transaction);
            assert_eq!(ids(&pool).await, Vec::<String>::new());

            // Of a savepoint only what is in it goes.
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue(&mut transaction, &message).await.unwrap();
            let mut savepoint = sqlx::Connection::begin(&mut *transaction).await.unwrap();
            let other = about("A-2").build().unwrap();
            outbox::enqueue(&mut savepoint, &other).await.unwrap();
            savepoint.rollback().await.unwrap();
            transaction.commit().await.unwrap();
            assert_eq!(ids(&pool).await, [message.id().to_string()]);
        }

        #[tokio::test]
        async fn outside_of_a_transaction_nothing_is_written() {
            let database = open().await;
            let pool = database.pool().await;
            let message = about("A-1").build().unwrap();
            let mut connection = pool.acquire().await.unwrap();
            let error = outbox::enqueue(&mut connection, &message).await.unwrap_err();
            assert!(matches!(error, Error::NoTransaction), "{error}");
            drop(connection);
            assert_eq!(ids(&pool).await, Vec::<String>::new());
        }

        #[tokio::test]
        async fn many_at_once_keep_their_order() {
            let database = open().await;
            let pool = database.pool().await;
            let mut messages: Vec<Message> =
                (0..1203).map(|number| about(&number.to_string()).build().unwrap()).collect();
            // Not the order of the ids.
            messages.reverse();
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue_all(&mut transaction, &messages).await.unwrap();
            outbox::enqueue_all(&mut transaction, &[]).await.unwrap();
            transaction.commit().await.unwrap();
            let given: Vec<String> =
                messages.iter().map(|message| message.id().to_string()).collect();
            assert_eq!(ids(&pool).await, given);
        }

        #[tokio::test]
        async fn a_message_is_written_once_however_often_it_is_tried() {
            let database = open().await;
            let pool = database.pool().await;
            let message = about("A-1").build().unwrap();
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue(&mut transaction, &message).await.unwrap();
            transaction.commit().await.unwrap();
            let mut transaction = pool.begin().await.unwrap();
            let error = outbox::enqueue(&mut transaction, &message).await.unwrap_err();
            let Error::Database(error) = error else { panic!("{error}") };
            assert!(error.as_database_error().unwrap().is_unique_violation(), "{error}");
            transaction.rollback().await.unwrap();
            assert_eq!(ids(&pool).await, [message.id().to_string()]);
        }

        #[tokio::test]
        async fn another_table_is_reached_whatever_its_name() {
            let database = open().await;
            let pool = database.pool().await;
            let name = "민원 \"발신함\"; `Q`";
            sqlx::raw_sql(AssertSqlSafe(renamed(name))).execute(&pool).await.unwrap();
            let table = Table::new(name).unwrap();
            let messages = [about("A-1").build().unwrap()];
            let mut transaction = pool.begin().await.unwrap();
            outbox::enqueue_into(&mut transaction, &table, &messages).await.unwrap();
            transaction.commit().await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(renamed_back(name))).execute(&pool).await.unwrap();
            assert_eq!(ids(&pool).await, [messages[0].id().to_string()]);
        }
    };
}

/// `ALTER TABLE … RENAME`, between these quotation marks.
macro_rules! renaming {
    ($mark:literal) => {
        fn quoted(name: &str) -> String {
            format!("{0}{1}{0}", $mark, name.replace($mark, concat!($mark, $mark)))
        }

        fn renamed(name: &str) -> String {
            format!("ALTER TABLE outbox RENAME TO {}", quoted(name))
        }

        fn renamed_back(name: &str) -> String {
            format!("ALTER TABLE {} RENAME TO outbox", quoted(name))
        }
    };
}
