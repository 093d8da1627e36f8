//! The threads that run expressions. A stack of their own, because jq recurses; threads at all,
//! because an expression that does not end can only be left behind.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use super::{JqError, JqErrorKind};

/// What one run of an expression may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The time from when it starts; past it the thread is left behind.
    pub time: Duration,
    /// How many rounds its loops may take together.
    pub steps_max: u32,
    /// How many values it may yield.
    pub outputs_max: usize,
    /// How many bytes of JSON the values may make together.
    pub output_bytes_max: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(1),
            steps_max: 100_000,
            outputs_max: 10_000,
            output_bytes_max: 32 * 1024 * 1024,
        }
    }
}

/// Virtual memory, touched only as deep as an expression goes.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// How many times its own time a run waits for a thread.
const WAITS: u32 = 10;

/// A few threads that run expressions, started as they are needed.
pub struct Evaluators {
    budget: Budget,
    threads_max: usize,
    abandoned_max: usize,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that will take another job.
    threads: usize,
    /// Of these, those that wait for one.
    idle: usize,
    /// Jobs that somebody waits for.
    running: HashSet<u64>,
    abandoned: usize,
    next: u64,
    closed: bool,
}

/// Told its number when it starts.
type Job = Box<dyn FnOnce(u64) + Send>;

enum Progress<T> {
    Started(u64),
    Done(T),
}

impl fmt::Debug for Evaluators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluators")
            .field("budget", &self.budget)
            .field("threads_max", &self.threads_max)
            .field("abandoned", &self.abandoned())
            .finish()
    }
}

impl Evaluators {
    /// Up to `threads_max` threads, and up to `abandoned_max` more that ran out of time and are
    /// still at it.
    #[must_use]
    pub fn new(budget: Budget, threads_max: usize, abandoned_max: usize) -> Arc<Self> {
        Arc::new(Self {
            budget,
            threads_max: threads_max.max(1),
            abandoned_max,
            state: Arc::default(),
        })
    }

    /// The ones of this process, with the default budget.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Evaluators>> = OnceLock::new();
        let threads = || std::thread::available_parallelism().map_or(2, usize::from);
        Arc::clone(SHARED.get_or_init(|| Self::new(Budget::default(), threads().clamp(2, 16), 16)))
    }

    /// The budget of each run.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// How many threads have been left behind and have not ended yet.
    #[must_use]
    pub fn abandoned(&self) -> usize {
        lock(&self.state.0).abandoned
    }

    /// Runs `work` on one of the threads and waits for it; it is told when to give up.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<T, JqError> {
        let (progress, heard) = sync_channel::<Progress<T>>(2);
        let cancelled = Arc::new(AtomicBool::new(false));
        let cancel = Arc::clone(&cancelled);
        self.submit(Box::new(move |number| {
            if cancel.load(Ordering::Relaxed) {
                return;
            }
            tell(&progress, Progress::Started(number));
            if let Ok(done) = catch_unwind(AssertUnwindSafe(|| work(&cancel))) {
                tell(&progress, Progress::Done(done));
            }
        }))?;
        let started = heard.recv_timeout(self.budget.time.saturating_mul(WAITS));
        let number = match started {
            Ok(Progress::Started(number)) => number,
            Ok(Progress::Done(done)) => return Ok(done),
            Err(_) => {
                cancelled.store(true, Ordering::Relaxed);
                return Err(busy("all threads for jq are busy"));
            }
        };
        match heard.recv_timeout(self.budget.time) {
            Ok(Progress::Done(done)) => Ok(done),
            Ok(Progress::Started(_)) | Err(RecvTimeoutError::Disconnected) => Err(JqError::panic()),
            Err(RecvTimeoutError::Timeout) => {
                cancelled.store(true, Ordering::Relaxed);
                self.abandon(number);
                Err(JqError::new(
                    JqErrorKind::Budget,
                    format!("took longer than {:?}", self.budget.time),
                ))
            }
        }
    }

    fn submit(&self, job: Job) -> Result<(), JqError> {
        let mut state = lock(&self.state.0);
        if state.abandoned > self.abandoned_max {
            return Err(busy(format!(
                "{} expressions ran out of time and still have not ended; correct them and restart",
                state.abandoned
            )));
        }
        state.jobs.push_back(job);
        if state.jobs.len() > state.idle && state.threads < self.threads_max {
            let number = state.next;
            state.next += 1;
            state.threads += 1;
            let shared = Arc::clone(&self.state);
            let spawned = std::thread::Builder::new()
                .name(format!("pabal-jq-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || work(&shared));
            if let Err(error) = spawned {
                state.threads -= 1;
                if state.threads == 0 {
                    state.jobs.pop_back();
                    return Err(busy(format!("no thread for jq: {error}")));
                }
            }
        }
        drop(state);
        self.state.1.notify_one();
        Ok(())
    }

    /// Leaves the thread behind: it ends once its job does, and another may take its place.
    fn abandon(&self, number: u64) {
        let mut state = lock(&self.state.0);
        if state.running.remove(&number) {
            state.abandoned += 1;
            state.threads -= 1;
        }
    }
}

impl Drop for Evaluators {
    fn drop(&mut self) {
        lock(&self.state.0).closed = true;
        self.state.1.notify_all();
    }
}

fn busy(message: impl Into<String>) -> JqError {
    JqError::new(JqErrorKind::Busy, message)
}

/// Nobody listens any more if the caller ran out of patience, which is fine.
fn tell<T>(progress: &SyncSender<Progress<T>>, news: Progress<T>) {
    let _ = progress.try_send(news);
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Jobs run outside the lock and their panics are caught, so the state is whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread: job after job until it is left behind or all is over.
fn work(shared: &(Mutex<State>, Condvar)) {
    let mut state = lock(&shared.0);
    loop {
        let Some(job) = state.jobs.pop_front() else {
            if state.closed {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            state = shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        };
        let number = state.next;
        state.next += 1;
        state.running.insert(number);
        drop(state);
        job(number);
        state = lock(&shared.0);
        if !state.running.remove(&number) {
            state.abandoned -= 1;
            return;
        }
    }
}
