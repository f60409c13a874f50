//! A record in a file: compare and replace under a lock, durable before it counts.
//!
//! The lock is on a file beside it (`FILE.lock`), since the record itself is replaced by a rename. Two engines
//! that race for the record take turns, each of them judged against what the other left.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tether_replication::engine::CasOutcome;
use tether_replication::record::{Change, Record};

use super::{Before, RecordStore, json};

/// Largest record that is read: sixteen members with long names are below 8 KiB.
const MAX_BYTES: u64 = 64 * 1024;

/// Why the record could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum RecordFileError {
    #[error("cannot lock {path}: {source}", path = path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("cannot read the record {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the record {path} makes no sense: {source}", path = path.display())]
    Parse { path: PathBuf, source: json::ParseError },
    #[error("cannot write the record {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// A replacement that failed: whether it may have happened all the same.
enum Replaced {
    Certainly,
    Never(io::Error),
    Perhaps(io::Error),
}

/// The record of one volume in a file.
#[derive(Clone, Debug)]
pub struct RecordFile {
    path: PathBuf,
    volume: String,
}

impl RecordFile {
    pub fn new(path: PathBuf, volume: String) -> Self {
        Self { path, volume }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record, if there is one. Waits for the lock.
    pub fn load(&self) -> Result<Option<Record>, RecordFileError> {
        let _lock = self.lock()?;
        self.read()
    }

    /// Makes the record of a new volume, unless there is one already; what there is then.
    pub fn create(&self, record: &Record) -> Result<Record, RecordFileError> {
        let _lock = self.lock()?;
        if let Some(existing) = self.read()? {
            return Ok(existing);
        }
        match self.replace(record) {
            Replaced::Certainly => Ok(record.clone()),
            Replaced::Never(source) | Replaced::Perhaps(source) => {
                Err(RecordFileError::Write { path: self.path.clone(), source })
            }
        }
    }

    /// Changes the record if the change is legal on it. Waits for the lock, however long.
    pub fn change(&self, change: &Change) -> CasOutcome {
        self.change_after(change, |_| Ok(()))
    }

    /// As [`RecordFile::change`], after something that must be done on exactly the record that is replaced.
    pub fn change_after(&self, change: &Change, before: impl FnOnce(&Record) -> Result<(), String>) -> CasOutcome {
        let current = self.lock().and_then(|lock| Ok((lock, self.read()?)));
        let (_lock, current) = match current {
            Ok((lock, Some(current))) => (lock, current),
            Ok((_, None)) => {
                tracing::error!(path = %self.path.display(), "the record is gone; put it back, or start anew");
                return CasOutcome::NotSent;
            }
            Err(error) => {
                tracing::warn!(%error, "the record cannot be reached");
                return CasOutcome::NotSent;
            }
        };
        let next = match current.apply(change) {
            Ok(next) => next,
            Err(refusal) => return CasOutcome::Refused { refusal, current },
        };
        if let Err(why) = before(&current) {
            tracing::warn!(why, "the record is not changed");
            return CasOutcome::NotSent;
        }
        match self.replace(&next) {
            Replaced::Certainly => CasOutcome::Applied(next),
            Replaced::Never(error) => {
                tracing::warn!(%error, path = %self.path.display(), "the record cannot be written");
                CasOutcome::NotSent
            }
            Replaced::Perhaps(error) => {
                tracing::warn!(%error, path = %self.path.display(), "the record may or may not have been written");
                CasOutcome::Unknown
            }
        }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    fn lock(&self) -> Result<File, RecordFileError> {
        let path = self.beside(".lock");
        let open = || {
            let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            loop {
                match flock(&file, FlockOperation::LockExclusive) {
                    Ok(()) => return Ok(file),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        };
        open().map_err(|source| RecordFileError::Lock { path: path.clone(), source })
    }

    fn read(&self) -> Result<Option<Record>, RecordFileError> {
        let failed = |source| RecordFileError::Read { path: self.path.clone(), source };
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
            Ok(metadata) if metadata.len() > MAX_BYTES => {
                return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "this is no record")));
            }
            Ok(_) => {}
        }
        let text = fs::read(&self.path).map_err(failed)?;
        let parsed = json::read(&self.volume, &text);
        parsed.map(Some).map_err(|source| RecordFileError::Parse { path: self.path.clone(), source })
    }

    /// Write beside, sync, rename, sync the directory.
    fn replace(&self, record: &Record) -> Replaced {
        let temporary = self.beside(".new");
        let write = || {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(json::write(&self.volume, record).as_bytes())?;
            file.sync_all()
        };
        if let Err(error) = write() {
            return Replaced::Never(error);
        }
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let renamed =
            fs::rename(&temporary, &self.path).and_then(|()| File::open(parent.unwrap_or(Path::new(".")))?.sync_all());
        match renamed {
            Ok(()) => Replaced::Certainly,
            Err(error) => Replaced::Perhaps(error),
        }
    }
}

impl RecordStore for RecordFile {
    fn load(&self) -> Result<Option<Record>, String> {
        Self::load(self).map_err(|error| error.to_string())
    }

    fn create(&self, record: &Record) -> Result<Record, String> {
        Self::create(self, record).map_err(|error| error.to_string())
    }

    fn change(&self, change: &Change, before: Before<'_>) -> CasOutcome {
        self.change_after(change, before)
    }
}

#[cfg(test)]
mod tests {
    use tether_replication::ids::{Epoch, Holder, MemberId};
    use tether_replication::record::Refusal;

    use super::*;

    fn file(dir: &Path) -> RecordFile {
        RecordFile::new(dir.join("v1.record"), "v1".to_owned())
    }

    fn fresh() -> Record {
        Record::new([MemberId::new("r1").expect("a name")])
    }

    #[test]
    fn a_record_is_made_once_and_then_only_changed() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = file(dir.path());
        assert_eq!(file.load().expect("readable"), None);
        assert_eq!(file.change(&Change::Start { holder: Holder(1) }), CasOutcome::NotSent);
        file.create(&fresh()).expect("made");
        let CasOutcome::Applied(started) = file.change(&Change::Start { holder: Holder(1) }) else {
            panic!("a first start is legal")
        };
        assert_eq!(file.create(&fresh()).expect("there already"), started);
        let refusal = Refusal::SameHolder { holder: Holder(1) };
        let refused = CasOutcome::Refused { refusal, current: started };
        assert_eq!(file.change(&Change::Start { holder: Holder(1) }), refused);
    }

    #[test]
    fn engines_that_race_get_an_epoch_each() {
        let dir = tempfile::tempdir().expect("a directory");
        file(dir.path()).create(&fresh()).expect("made");
        let start = |n: u128| {
            let file = file(dir.path());
            std::thread::spawn(move || match file.change(&Change::Start { holder: Holder(n) }) {
                CasOutcome::Applied(record) => record.epoch,
                other => panic!("{other:?}"),
            })
        };
        let threads: Vec<_> = (1..=20).map(start).collect();
        let mut epochs: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        epochs.sort_unstable();
        assert_eq!(epochs, (1..=20).map(Epoch).collect::<Vec<_>>());
    }

    #[test]
    fn a_record_that_cannot_be_written_did_not_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = file(dir.path());
        file.create(&fresh()).expect("made");
        fs::create_dir(dir.path().join("v1.record.new")).expect("something in the way");
        assert_eq!(file.change(&Change::Start { holder: Holder(1) }), CasOutcome::NotSent);
        assert_eq!(file.load().expect("readable"), Some(fresh()));
    }
}
