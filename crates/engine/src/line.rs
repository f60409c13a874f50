//! The line of a volume's engines at one place: who was here last, and whether nobody else came in between.
//!
//! Two things depend on it, and nothing that is about writes:
//!
//! - A client that sends its unanswered requests again after a reconnect may do so only if no other engine held the
//!   volume since. It asks for the export `VOLUME@NAME`, where NAME is the line's; a broken line gets another name.
//! - A successor waits out the lease of older engines, unless all of them are known to be stopped. An engine that
//!   *served* had waited for everybody before it; so if it is dead, everybody is.
//!
//! That the last engine here is dead is known by a lock: every engine holds the line's lock from before it takes the volume
//! until its end, and the kernel gives it up with the process. So whoever has the lock is the only one of this line that
//! lives. That holds on one machine; on file systems that machines share there is no line.
//!
//! ```text
//!   lock ─► intend B from A ─► CAS in the record: A → B ─► follow: last was A, the line goes on ─► served
//! ```
//!
//! An engine may die between its change of the record and `follow`. Therefore it says before from whom it means to take the
//! volume; the change succeeds only on exactly that record. What is written here is not synced: a reboot ends every line.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// Version of the file.
const VERSION: u32 = 1;
/// Engines that announced themselves and never came; enough for any series of crashes before somebody looks.
const MAX_INTENTS: usize = 256;

/// Who took, or meant to take, the volume from whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Intents {
    /// Oldest first.
    list: VecDeque<(String, String)>,
}

impl Intents {
    /// `uid` is about to take the volume from `previous`. What was meant last counts.
    pub(crate) fn intend(&mut self, uid: &str, previous: &str) {
        self.list.retain(|(known, _)| known != uid);
        if self.list.len() == MAX_INTENTS {
            self.list.pop_front();
        }
        self.list.push_back((uid.to_owned(), previous.to_owned()));
    }

    /// Whether the engine before `previous`, or the one before that, and so on, is `last`.
    pub(crate) fn lead_to(&self, previous: &str, last: &str) -> bool {
        let mut at = previous;
        // Each step uses another intent, so there are no more steps than intents.
        for _ in 0..=self.list.len() {
            if at == last {
                return true;
            }
            match self.list.iter().find(|(uid, _)| uid == at) {
                Some((_, before)) => at = before,
                None => return false,
            }
        }
        false
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

/// The engine that had the line last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    uid: String,
    /// Every engine before it is out: it served, or it knew when it took the volume.
    clear: bool,
}

/// What is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    version: u32,
    boot: String,
    /// What clients call this line.
    name: String,
    last: Option<Last>,
    intents: Intents,
}

/// How an engine that took the volume stands in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The line's name: another one if it was broken.
    pub name: String,
    /// Every older engine is known to be stopped.
    pub older_stopped: bool,
}

impl State {
    /// What a file of an earlier boot still says: who was last. Nobody lives who could ask for the line.
    fn in_boot(self, boot: &str, fresh: &str) -> Self {
        if self.version == VERSION && self.boot == boot {
            return self;
        }
        let last = if self.version == VERSION { self.last } else { None };
        Self { version: VERSION, boot: boot.to_owned(), name: fresh.to_owned(), last, intents: Intents::default() }
    }

    fn follow(&mut self, uid: &str, previous: &str, fresh: &str) -> Followed {
        let unbroken = |last: &&Last| last.uid == uid || self.intents.lead_to(previous, &last.uid);
        let before = self.last.as_ref().filter(unbroken);
        // One that was standby here and is promoted follows itself: that says nothing about its source.
        let older_stopped = before.is_some_and(|last| last.clear && last.uid != uid);
        if before.is_none() {
            fresh.clone_into(&mut self.name);
        }
        self.last = Some(Last { uid: uid.to_owned(), clear: older_stopped });
        self.intents.clear();
        Followed { name: self.name.clone(), older_stopped }
    }
}

/// The line, while an engine of it lives here.
#[derive(Debug)]
pub struct Line {
    path: PathBuf,
    state: State,
    /// Held until this is dropped, or the process dies.
    _lock: File,
}

impl Line {
    /// Takes the line that is kept at `path`; None if another engine of it lives, or if nobody could tell.
    pub fn take(path: &Path, boot: &str) -> io::Result<Option<Self>> {
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(with_suffix(path, ".lock"))?;
        if !is_local(&lock)? || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let state: State = match std::fs::read(path) {
            Ok(contents) => serde_json::from_slice(&contents).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Some(Self { path: path.to_owned(), state: state.in_boot(boot, &fresh_name()), _lock: lock }))
    }

    /// `uid` is about to take the volume from `previous`.
    pub fn intend(&mut self, uid: &str, previous: &str) -> io::Result<()> {
        self.state.intents.intend(uid, previous);
        self.save()
    }

    /// `uid` has taken the volume from `previous`.
    pub fn follow(&mut self, uid: &str, previous: &str) -> io::Result<Followed> {
        let followed = self.state.follow(uid, previous, &fresh_name());
        self.save()?;
        Ok(followed)
    }

    /// `uid` is standby here: clients that wait for it are a line of their own.
    pub fn stood_by(&mut self, uid: &str) -> io::Result<String> {
        self.state.name = fresh_name();
        self.state.last = Some(Last { uid: uid.to_owned(), clear: false });
        self.state.intents.clear();
        self.save()?;
        Ok(self.state.name.clone())
    }

    /// The engine serves: everybody before it is out.
    pub fn served(&mut self) -> io::Result<()> {
        if let Some(last) = &mut self.state.last {
            last.clear = true;
        }
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let contents = serde_json::to_vec(&self.state).expect("a line must be representable as JSON");
        let temporary = with_suffix(&self.path, ".tmp");
        std::fs::write(&temporary, contents)?;
        std::fs::rename(&temporary, &self.path)
    }
}

fn fresh_name() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Whether a lock on this file system is this kernel's: known for those that live on a disk or in memory.
fn is_local(file: &File) -> io::Result<bool> {
    const LOCAL: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010];
    let kind = rustix::fs::fstatfs(file)?.f_type;
    // Ext2 to ext4, XFS, btrfs, tmpfs, overlayfs, F2FS.
    Ok(LOCAL.contains(&(kind as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(dir: &Path, boot: &str) -> Line {
        Line::take(&dir.join("v.line"), boot).unwrap().expect("nobody has it")
    }

    /// An engine of the line's whole life, up to its death.
    fn lives(dir: &Path, uid: &str, previous: &str, serves: bool) -> Followed {
        let mut line = take(dir, "boot");
        line.intend(uid, previous).unwrap();
        let followed = line.follow(uid, previous).unwrap();
        if serves {
            line.served().unwrap();
        }
        followed
    }

    #[test]
    fn a_line_keeps_its_name_until_somebody_else_had_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let first = lives(dir.path(), "a", "x", true);
        assert!(!first.older_stopped, "nobody knows about x");
        let second = lives(dir.path(), "b", "a", true);
        assert_eq!((&second.name, second.older_stopped), (&first.name, true));
        let third = lives(dir.path(), "c", "y", true);
        assert_ne!(third.name, first.name);
        assert!(!third.older_stopped, "y may live");
    }

    #[test]
    fn an_engine_that_never_served_vouches_only_for_what_it_knew() {
        let dir = tempfile::tempdir().unwrap();
        lives(dir.path(), "a", "x", false);
        assert!(!lives(dir.path(), "b", "a", false).older_stopped, "a had not waited for x");
        lives(dir.path(), "c", "b", true);
        assert!(lives(dir.path(), "d", "c", false).older_stopped);
        assert!(lives(dir.path(), "e", "d", false).older_stopped, "d knew that all before it were out");
    }

    #[test]
    fn engines_that_died_before_they_followed_do_not_break_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let first = lives(dir.path(), "a", "x", true);
        take(dir.path(), "boot").intend("b", "a").unwrap();
        let next = lives(dir.path(), "c", "b", false);
        assert_eq!((&next.name, next.older_stopped), (&first.name, true));
        take(dir.path(), "boot").intend("d", "y").unwrap();
        let broken = lives(dir.path(), "e", "d", false);
        assert!(broken.name != first.name && !broken.older_stopped, "d took it from y");
    }

    #[test]
    fn one_lives_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let line = take(dir.path(), "boot");
        assert!(Line::take(&dir.path().join("v.line"), "boot").unwrap().is_none());
        drop(line);
        take(dir.path(), "boot");
    }

    #[test]
    fn a_reboot_ends_the_name_and_kills_everybody() {
        let dir = tempfile::tempdir().unwrap();
        let first = lives(dir.path(), "a", "x", true);
        take(dir.path(), "boot").intend("b", "a").unwrap();
        let mut line = take(dir.path(), "another");
        line.intend("c", "a").unwrap();
        let followed = line.follow("c", "a").unwrap();
        assert!(followed.name != first.name && followed.older_stopped, "a served, and is dead");
        drop(line);
        assert!(!take(dir.path(), "third").follow("d", "b").unwrap().older_stopped, "what was meant may be lost");
    }

    #[test]
    fn a_standby_begins_a_line_and_keeps_it_when_promoted() {
        let dir = tempfile::tempdir().unwrap();
        let first = lives(dir.path(), "a", "x", true);
        let mut line = take(dir.path(), "boot");
        let name = line.stood_by("s").unwrap();
        assert_ne!(name, first.name);
        line.intend("s", "y").unwrap();
        let promoted = line.follow("s", "y").unwrap();
        assert_eq!((promoted.name, promoted.older_stopped), (name, false), "y may live");
    }

    #[test]
    fn circles_and_floods_of_intents_end() {
        let mut intents = Intents::default();
        intents.intend("b", "c");
        intents.intend("c", "b");
        assert!(!intents.lead_to("c", "a"));
        for i in 0..10 * MAX_INTENTS {
            intents.intend(&i.to_string(), "a");
        }
        assert_eq!(intents.len(), MAX_INTENTS);
    }
}
