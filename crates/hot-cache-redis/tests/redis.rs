//! The cache against a Redis server of the test's own.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use pabal_core::{Clock, HotCache, ManualClock, MessageId, Secret, SystemClock};
use pabal_hot_cache_redis::RedisCache;
use uuid::Uuid;

/// Nothing here takes this long; it bounds a test that would hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ends with the test.
struct Server {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self::start_at(free.local_addr().unwrap().port())
    }

    fn start_at(port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--requirepass", "hunter2", "--dir"]).arg(folder.path());
        let process = command.stdout(Stdio::null()).spawn();
        let process = process.expect("redis-server is installed by `cargo xtask test`");
        let begun = SystemClock.elapsed();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(SystemClock.elapsed() - begun < PATIENCE, "the server does not start");
            std::thread::yield_now();
        }
        Self { process, port, _folder: folder }
    }

    fn url(&self) -> Secret {
        Secret::new(format!("redis://:hunter2@127.0.0.1:{}/", self.port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn cache(url: &Secret, hub: &str, clock: &ManualClock) -> RedisCache {
    RedisCache::new(url, hub, Duration::from_secs(60), Arc::new(clock.clone())).unwrap()
}

fn ids<const N: usize>() -> [MessageId; N] {
    std::array::from_fn(|_| MessageId(Uuid::new_v4()))
}

/// Notes these and asks until all are seen; on a busy machine an answer may come too late to count.
async fn note(cache: &RedisCache, clock: &ManualClock, ids: &[MessageId]) {
    let noted = async {
        while cache.seen(ids).await.contains(&false) {
            clock.advance(Duration::from_secs(10));
            cache.note(ids).await;
        }
    };
    tokio::time::timeout(PATIENCE, noted).await.expect("what was noted is seen");
}

#[tokio::test]
async fn what_was_noted_is_seen_by_every_node_of_the_hub_and_by_no_other_hub() {
    let server = Server::start();
    let clock = ManualClock::default();
    let [one, another] = [(); 2].map(|()| cache(&server.url(), "central", &clock));
    let stranger = cache(&server.url(), "other", &clock);
    let [first, second, never] = ids();
    assert_eq!(one.seen(&[]).await, [false; 0]);
    note(&one, &clock, &[first, second]).await;
    let asked = async {
        while another.seen(&[second, never, first]).await != [true, false, true] {
            clock.advance(Duration::from_secs(10));
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("what another node noted is seen");
    assert_eq!(stranger.seen(&[first, second]).await, [false, false]);
}

#[tokio::test]
async fn a_server_that_is_away_has_seen_nothing_and_is_asked_again_later() {
    let server = Server::start();
    let clock = ManualClock::default();
    let cache = cache(&server.url(), "central", &clock);
    let [first] = ids();
    note(&cache, &clock, &[first]).await;
    let port = server.port;
    drop(server);
    assert_eq!(cache.seen(&[first]).await, [false]);
    let _server = Server::start_at(port);
    // Until its time is over it is not asked, even to note something.
    cache.note(&[first]).await;
    assert_eq!(cache.seen(&[first]).await, [false]);
    clock.advance(Duration::from_secs(10));
    note(&cache, &clock, &[first]).await;
}

#[tokio::test]
async fn a_server_that_is_silent_holds_nobody_up() {
    // It takes connections, and says nothing.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = Secret::new(format!("redis://127.0.0.1:{}/", silent.local_addr().unwrap().port()));
    let clock = ManualClock::default();
    let cache = cache(&url, "central", &clock);
    let [first] = ids();
    let asked = tokio::time::timeout(PATIENCE, cache.seen(&[first])).await.unwrap();
    assert_eq!(asked, [false]);
}

#[tokio::test]
async fn the_password_is_in_no_output() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let url = Secret::new("redis://:hunter2@127.0.0.1:9/");
    let cache =
        RedisCache::new(&url, "central", Duration::from_secs(1), Arc::clone(&clock)).unwrap();
    assert!(!format!("{cache:?}").contains("hunter2"));
    let wrong = Secret::new("http://hunter2@127.0.0.1/");
    let error = RedisCache::new(&wrong, "central", Duration::from_secs(1), clock).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}
