//! The directory of one run: what is written there, and what it says.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tether_plan::kubelet::{End, Run, Runs};

/// Runs of a container that are kept: the pause before a restart follows from them, and is at its longest by then.
const KEPT_RUNS: usize = 8;

/// How often and how long apart a shim tries to get a lock that somebody may only be looking at.
const CLAIM_LOOKS: u32 = 10;
const CLAIM_PAUSE: Duration = Duration::from_millis(2);

/// The process of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    pub pid: u32,
    pub at: Timestamp,
    /// It acts on the node, and what leaves its session is the node's.
    pub on_node: bool,
}

/// How a run ended, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    pub at: Timestamp,
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: String,
    pub message: Option<String>,
}

/// What a run's directory says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was started, or it did not get far enough to start anything.
    Nothing,
    /// A shim is at work; the process, if it runs already.
    Alive {
        shim: u32,
        started: Option<Started>,
    },
    /// The shim was killed: what it had started may still be there.
    Lost {
        shim: u32,
        started: Option<Started>,
    },
    Ended {
        started: Option<Started>,
        ended: Ended,
    },
}

/// The directory of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunDir {
    pub path: PathBuf,
}

impl RunDir {
    pub fn new(container: &Path, attempt: u32) -> Self {
        Self { path: container.join(attempt.to_string()) }
    }

    /// Makes it, for this user alone.
    pub fn create(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Takes the lock for this process, which then is the run's shim; `None` if another has it.
    pub(super) fn claim(&self) -> io::Result<Option<File>> {
        let mut file = self.lock_file()?;
        for look in 0.. {
            match file.try_lock() {
                Ok(()) => break,
                // Somebody who only looks has it for a moment; a shim keeps it.
                Err(TryLockError::WouldBlock) if look < CLAIM_LOOKS => std::thread::sleep(CLAIM_PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        file.set_len(0)?;
        write!(file, "{}", std::process::id())?;
        Ok(Some(file))
    }

    /// Undoes [`RunDir::claim`]: nothing was started.
    pub(super) fn disclaim(&self, lock: File) -> io::Result<()> {
        let removed = fs::remove_file(self.path.join("lock"));
        drop(lock);
        removed
    }

    fn lock_file(&self) -> io::Result<File> {
        let path = self.path.join("lock");
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    pub(super) fn write_started(&self, started: &Started) -> io::Result<()> {
        self.write("started", started)
    }

    /// Says how it ended, unless somebody said so before.
    pub(super) fn write_ended(&self, ended: &Ended) -> io::Result<()> {
        if self.path.join("ended").exists() { Ok(()) } else { self.write("ended", ended) }
    }

    /// Notes that it was asked to end.
    pub fn write_stopping(&self) -> io::Result<()> {
        File::create(self.path.join("stopping")).map(drop)
    }

    pub fn is_stopping(&self) -> bool {
        self.path.join("stopping").exists()
    }

    /// Whoever reads finds nothing or all of it.
    fn write(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let staging = self.path.join(format!("{name}.new"));
        fs::write(&staging, serde_json::to_vec(value)?)?;
        fs::rename(&staging, self.path.join(name))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        match fs::read(self.path.join(name)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is the case.
    pub fn state(&self) -> io::Result<State> {
        // The end first: a shim writes it before it lets go of the lock.
        if let Some(ended) = self.read("ended")? {
            return Ok(State::Ended { started: self.read("started")?, ended });
        }
        let mut text = String::new();
        let held = match File::open(self.path.join("lock")) {
            Ok(mut file) => {
                file.read_to_string(&mut text)?;
                match file.try_lock_shared() {
                    Ok(()) => false,
                    Err(TryLockError::WouldBlock) => true,
                    Err(TryLockError::Error(error)) => return Err(error),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Nothing),
            Err(error) => return Err(error),
        };
        // Between the two looks it may have ended.
        if let Some(ended) = self.read("ended")? {
            return Ok(State::Ended { started: self.read("started")?, ended });
        }
        let started: Option<Started> = self.read("started")?;
        Ok(match (held, text.trim().parse()) {
            (true, Ok(shim)) => State::Alive { shim, started },
            // It has the lock and has yet to say who it is.
            (true, Err(_)) => State::Alive { shim: 0, started: None },
            (false, Ok(shim)) => State::Lost { shim, started },
            (false, Err(_)) => State::Nothing,
        })
    }
}

/// The directories of a pod's containers.
#[derive(Clone, Debug)]
pub struct PodDir {
    pub path: PathBuf,
}

impl PodDir {
    pub fn container(&self, name: &str) -> PathBuf {
        self.path.join("containers").join(name)
    }

    /// Every run of every container, oldest first.
    pub fn runs(&self) -> io::Result<Vec<(String, u32, RunDir)>> {
        let mut all = Vec::new();
        for container in names(&self.path.join("containers"))? {
            let folder = self.container(&container);
            let mut attempts: Vec<u32> = names(&folder)?.iter().filter_map(|name| name.parse().ok()).collect();
            attempts.sort_unstable();
            for attempt in attempts {
                all.push((container.clone(), attempt, RunDir::new(&folder, attempt)));
            }
        }
        Ok(all)
    }

    /// The runs of one container, oldest first; none if they cannot be read.
    pub fn runs_of(&self, container: &str) -> Vec<RunDir> {
        let runs = self.runs().unwrap_or_default().into_iter();
        runs.filter(|(name, ..)| name == container).map(|(.., run)| run).collect()
    }

    /// What the decision wants to know of them. A run whose start came to nothing does not count.
    pub fn observe(&self) -> io::Result<Runs> {
        let mut runs = Runs::new();
        for (container, attempt, dir) in self.runs()? {
            let run = |started: Option<Started>, end| Run {
                attempt,
                started_at: started.map(|started| started.at),
                stopping: dir.is_stopping(),
                end,
            };
            let run = match dir.state()? {
                State::Nothing => continue,
                State::Alive { started, .. } | State::Lost { started, .. } => run(started, None),
                State::Ended { started, ended } => run(started, Some(end(ended))),
            };
            runs.entry(container).or_default().push(run);
        }
        Ok(runs)
    }

    /// Forgets runs that nobody needs to know of any more.
    pub fn forget_old_runs(&self, container: &str) -> io::Result<()> {
        let runs: Vec<_> = self.runs()?.into_iter().filter(|(name, ..)| name == container).collect();
        let old = runs.len().saturating_sub(KEPT_RUNS);
        runs.into_iter().take(old).try_for_each(|(_, _, dir)| fs::remove_dir_all(&dir.path))
    }
}

fn end(ended: Ended) -> End {
    End {
        finished_at: ended.at,
        exit_code: ended.exit_code,
        signal: ended.signal,
        reason: ended.reason,
        message: ended.message,
    }
}

/// Names of the directories in `dir`; none if there is no such directory.
pub fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Started {
        Started { pid: 7, at: Timestamp::UNIX_EPOCH, on_node: false }
    }

    fn ended() -> Ended {
        Ended { at: Timestamp::UNIX_EPOCH, exit_code: 3, signal: None, reason: "Error".into(), message: None }
    }

    #[test]
    fn a_directory_tells_how_far_a_run_got() {
        let home = tempfile::tempdir().unwrap();
        let dir = RunDir::new(home.path(), 0);
        assert_eq!(dir.state().unwrap(), State::Nothing);
        dir.create().unwrap();
        assert_eq!(dir.state().unwrap(), State::Nothing);
        let shim = std::process::id();
        let lock = dir.claim().unwrap().expect("free");
        assert!(dir.claim().unwrap().is_none(), "one shim for each run");
        dir.disclaim(lock).unwrap();
        assert_eq!(dir.state().unwrap(), State::Nothing);
        let lock = dir.claim().unwrap().expect("free again");
        assert_eq!(dir.state().unwrap(), State::Alive { shim, started: None });
        dir.write_started(&started()).unwrap();
        assert_eq!(dir.state().unwrap(), State::Alive { shim, started: Some(started()) });
        drop(lock);
        assert_eq!(dir.state().unwrap(), State::Lost { shim, started: Some(started()) });
        dir.write_ended(&ended()).unwrap();
        dir.write_ended(&Ended { exit_code: 0, ..ended() }).unwrap();
        assert_eq!(dir.state().unwrap(), State::Ended { started: Some(started()), ended: ended() }, "the first counts");
    }

    #[test]
    fn runs_are_seen_in_order_and_old_ones_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let pod = PodDir { path: home.path().to_owned() };
        assert_eq!(pod.observe().unwrap(), Runs::new());
        for attempt in 0..12 {
            let dir = RunDir::new(&pod.container("app"), attempt);
            dir.create().unwrap();
            dir.write_started(&started()).unwrap();
            dir.write_ended(&ended()).unwrap();
        }
        RunDir::new(&pod.container("app"), 12).create().unwrap();
        let attempts = |runs: Runs| runs["app"].iter().map(|run| run.attempt).collect::<Vec<_>>();
        assert_eq!(attempts(pod.observe().unwrap()), (0..12).collect::<Vec<_>>());
        pod.forget_old_runs("app").unwrap();
        assert_eq!(attempts(pod.observe().unwrap()), (5..12).collect::<Vec<_>>());
    }
}
