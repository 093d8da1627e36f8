//! The throw-away MariaDB server.

use pabal_conformance::mariadb::Server;

#[test]
fn a_server_keeps_what_it_has_when_it_is_killed() {
    let server = Server::start(&[]);
    let database = server.database();
    database.ask("CREATE TABLE t (word varchar(20)); INSERT INTO t VALUES ('말')");
    server.stop_immediately();
    server.start_again();
    assert_eq!(database.ask("SELECT word, 1 FROM t"), "말\t1");
    assert_ne!(server.database().name(), database.name(), "another database");
}

#[test]
fn a_server_is_gone_with_its_folder_once_it_is_dropped() {
    let server = Server::start(&[]);
    let folder = std::env::temp_dir().join(format!("pabal-mariadb-{}", server.port()));
    assert!(folder.exists());
    drop(server);
    assert!(!folder.exists());
}
