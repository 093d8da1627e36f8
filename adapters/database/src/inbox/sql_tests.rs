//! What is a parameter and what only looks like one.

use super::*;
use Dialect::{MySql, Postgres, Sqlite};

const ALL: [Dialect; 3] = [Postgres, MySql, Sqlite];

/// The statement with every parameter as `<name>`.
fn shown(text: &str, dialect: Dialect) -> String {
    let sql = match Sql::parse(text, dialect) {
        Ok(sql) => sql,
        Err(why) => return format!("! {why}"),
    };
    let names: Vec<_> = sql.parameters().map(str::to_owned).collect();
    sql.with(|index| format!("<{}>", names[index]))
}

#[test]
fn a_name_behind_a_colon_is_a_parameter_wherever_it_is_no_part_of_something_else() {
    for dialect in ALL {
        for (text, expected) in [
            ("SELECT :id", "SELECT <id>"),
            ("SELECT :id,:key ,(:id)", "SELECT <id>,<key> ,(<id>)"),
            ("SELECT :body.a.b", "SELECT <body.a.b>"),
            ("SELECT :body.items.0.name, :body", "SELECT <body.items.0.name>, <body>"),
            ("SELECT :body.신청.금액", "SELECT <body.신청.금액>"),
            ("SELECT :이름", "SELECT <이름>"),
            ("SELECT :body.", "SELECT <body>."),
            ("SELECT :key.x", "SELECT <key>.x"),
            ("SELECT :bodyguard.x", "SELECT <bodyguard.x>"),
            ("SELECT ': :id'", "SELECT ': :id'"),
            ("SELECT 'it''s :id', :id", "SELECT 'it''s :id', <id>"),
            ("SELECT \":id\"\".\", :id", "SELECT \":id\"\".\", <id>"),
            ("SELECT 1 -- :id\n, :id", "SELECT 1 -- :id\n, <id>"),
            ("SELECT 1 -- :id", "SELECT 1 -- :id"),
            ("SELECT /* :id ' */ :id", "SELECT /* :id ' */ <id>"),
            ("SELECT /* 가 :id", "SELECT /* 가 :id"),
            ("SELECT :id;", "SELECT <id>"),
            ("SELECT :id ; -- done\n", "SELECT <id> "),
            ("SELECT '12:30', :id", "SELECT '12:30', <id>"),
            ("SELECT 1 : 2", "SELECT 1 : 2"),
            ("SELECT :1", "SELECT :1"),
            (" \n(SELECT :id)", " \n(SELECT <id>)"),
            ("-- what\n/* it */ update t SET a = :id", "-- what\n/* it */ update t SET a = <id>"),
            ("SELECT ''", "SELECT ''"),
            ("SELECT '':id", "SELECT ''<id>"),
            ("SELECT '가나', :id", "SELECT '가나', <id>"),
        ] {
            // `bodyguard` is no body, and its dot is the statement's own.
            let expected = expected.replace("<bodyguard.x>", "<bodyguard>.x");
            assert_eq!(shown(text, dialect), expected, "{dialect:?}");
        }
    }
}

#[test]
fn every_database_has_its_own_quotes_comments_and_casts() {
    for (dialect, text, expected) in [
        (Postgres, "SELECT :id::uuid, 'a'::text", "SELECT <id>::uuid, 'a'::text"),
        (Postgres, "SELECT a::text:id", "SELECT a::text<id>"),
        (Postgres, "SELECT E'\\':id', :id", "SELECT E'\\':id', <id>"),
        (Postgres, "SELECT e'\\\\', :id", "SELECT e'\\\\', <id>"),
        (Postgres, "SELECT '\\', :id", "SELECT '\\', <id>"),
        (Postgres, "SELECT date'\\', :id", "SELECT date'\\', <id>"),
        (Postgres, "SELECT $$:id '$$, :id", "SELECT $$:id '$$, <id>"),
        (Postgres, "SELECT $a$ $b$ :id $a$, :id", "SELECT $a$ $b$ :id $a$, <id>"),
        (Postgres, "SELECT x$a$, :id", "SELECT x$a$, <id>"),
        (Postgres, "SELECT /* /* :id */ :id */ :id", "SELECT /* /* :id */ :id */ <id>"),
        (Postgres, "SELECT a ? :key", "SELECT a ? <key>"),
        (Postgres, "SELECT a[1:2], :id", "SELECT a[1:2], <id>"),
        (Postgres, "SELECT a#>:id", "SELECT a#><id>"),
        (Postgres, "SELECT a--1 :id", "SELECT a--1 :id"),
        (Postgres, "SELECT f(a => :id)", "SELECT f(a => <id>)"),
        (MySql, "SELECT '\\':id', :id", "SELECT '\\':id', <id>"),
        (MySql, "SELECT \"\\\":id\", :id", "SELECT \"\\\":id\", <id>"),
        (MySql, "SELECT `:id`, :id", "SELECT `:id`, <id>"),
        (MySql, "SELECT 1 # :id\n, :id", "SELECT 1 # :id\n, <id>"),
        (MySql, "SELECT 2--1, :id", "SELECT 2--1, <id>"),
        (MySql, "SELECT /* /* */ :id", "SELECT /* /* */ <id>"),
        (MySql, "SELECT @a := :id", "SELECT @a := <id>"),
        (Sqlite, "SELECT [:id], `:id`, :id", "SELECT [:id], `:id`, <id>"),
        (Sqlite, "SELECT '\\', :id", "SELECT '\\', <id>"),
        (Sqlite, "SELECT a--1 :id", "SELECT a--1 :id"),
        (Sqlite, "REPLACE INTO t VALUES (:id)", "REPLACE INTO t VALUES (<id>)"),
    ] {
        assert_eq!(shown(text, dialect), expected, "{dialect:?}");
    }
}

#[test]
fn what_is_no_single_statement_of_the_transaction_is_refused() {
    for (dialect, text, why) in [
        (Postgres, "", "is empty"),
        (Postgres, "SELECT 1; SELECT 2", "more than one"),
        (Postgres, "COMMIT", "begins with `COMMIT`"),
        (Postgres, "begin", "begins with `begin`"),
        (MySql, "CREATE TABLE t (a int)", "begins with `CREATE`"),
        (Sqlite, "/* x */ PRAGMA foreign_keys = 0", "begins with `PRAGMA`"),
        (Postgres, ":id", "begins with ``"),
        (Postgres, "SELECT $1", "holds `$1`"),
        (MySql, "SELECT ?", "holds `?`"),
        (Sqlite, "SELECT ?1", "holds `?`"),
        (Sqlite, "SELECT @id", "holds `@`"),
        (Sqlite, "SELECT $id", "holds `$`"),
        (Postgres, "SELECT 'a", "begins with ' has no end"),
        (Postgres, "SELECT $a$ b", "begins with $a$ has no end"),
        (MySql, "SELECT 'a\\'", "has no end"),
        (Sqlite, "SELECT [a", "has no end"),
    ] {
        let told = shown(text, dialect);
        assert!(told.starts_with("! ") && told.contains(why), "{dialect:?} {text}: {told}");
    }
}
