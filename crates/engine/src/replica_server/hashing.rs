//! Sums of snapshots' images, one at a time, piece by piece between everything else.
//!
//! ```text
//!   asked ─► noted and unchanged? ─► answered
//!              │ no
//!              ▼
//!            piece, piece, … ─► unchanged meanwhile? ─► noted in `<image>.checksum`, answered
//! ```

use std::collections::VecDeque;

use tether_store::crc64::Crc64;
use tether_store::volume::{HASH_METHOD, ImageHash};
use tether_store::{Files, ImagePiece, Reply, Request, RequestError};

use super::glue::{Located, Store};
use crate::host::CommandId;

/// The store's requests for pieces.
pub(super) const HASH_ID: u64 = u64::MAX - 2;
/// Sums that may wait; whoever asks for more is told to come back.
const MAX_WAITING: usize = 256;

/// A sum that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashSnapshot {
    pub snapshot: String,
    /// Also if there is one that still counts: to find out whether the image changed under it.
    pub rehash: bool,
    /// RFC 3339, to be noted with the sum.
    pub now: String,
}

/// What came of it.
pub type Hashed = Result<ImageHash, String>;

struct Job {
    command: CommandId,
    asked: HashSnapshot,
    crc: Crc64,
    at: u64,
    /// When the image was last changed.
    changed: String,
    noted: Option<ImageHash>,
}

/// The sums under way.
#[derive(Default)]
pub(super) struct Hashing {
    waiting: VecDeque<(CommandId, HashSnapshot)>,
    job: Option<Job>,
    /// A piece is being read.
    reading: bool,
    done: Vec<(CommandId, Hashed)>,
}

impl<F: Files + Located> Store<F> {
    pub fn hash(&mut self, command: CommandId, asked: HashSnapshot) {
        if self.hashing.waiting.len() == MAX_WAITING {
            return self.hashing.done.push((command, Err(format!("{MAX_WAITING} sums are waited for already"))));
        }
        self.hashing.waiting.push_back((command, asked));
    }

    /// Sums since the last time.
    pub fn hashed(&mut self) -> Vec<(CommandId, Hashed)> {
        std::mem::take(&mut self.hashing.done)
    }

    /// Forgets what is not finished.
    pub fn stop_hashing(&mut self) {
        let waiting = std::mem::take(&mut self.hashing.waiting).into_iter().map(|(command, _)| command);
        let all: Vec<_> = self.hashing.job.take().map(|job| job.command).into_iter().chain(waiting).collect();
        for command in all {
            self.hashing.done.push((command, Err("the replica is stopping".to_owned())));
        }
    }

    /// Goes on with the next piece, or with the next sum.
    pub(super) fn hash_on(&mut self) {
        while !self.hashing.reading {
            if let Some(job) = &self.hashing.job {
                self.hashing.reading = true;
                let request = Request::ImagePiece { snapshot: job.asked.snapshot.clone(), at: job.at };
                return self.volume.submit(HASH_ID, request, &mut self.out);
            }
            let Some((command, asked)) = self.hashing.waiting.pop_front() else { return };
            match self.begin_hash(command, asked) {
                Ok(job) => self.hashing.job = Some(job),
                Err(answer) => self.hashing.done.push((command, answer)),
            }
        }
    }

    /// A job, or the answer if none is needed.
    fn begin_hash(&mut self, command: CommandId, asked: HashSnapshot) -> Result<Job, Hashed> {
        let changed = self.volume.change_time(&asked.snapshot).map_err(|error| Err(error.to_string()))?;
        let noted = self.volume.image_hash(&asked.snapshot).map_err(|error| Err(error.to_string()))?;
        let noted = noted.filter(|noted| noted.change_time == changed && !noted.checksum.is_empty());
        match noted {
            Some(noted) if noted.silently_corrupted || !asked.rehash => Err(Ok(noted)),
            noted => Ok(Job { command, asked, crc: Crc64::default(), at: 0, changed, noted }),
        }
    }

    /// A piece is read.
    pub(super) fn piece_read(&mut self, result: Result<Reply, RequestError>) {
        self.hashing.reading = false;
        let Some(mut job) = self.hashing.job.take() else { return };
        match result {
            Ok(Reply::ImagePiece(ImagePiece { zeroes, data })) => {
                job.crc.zeroes(zeroes);
                job.crc.update(&data);
                job.at += zeroes + data.len() as u64;
                if data.is_empty() {
                    let (command, answer) = (job.command, self.finish_hash(&job));
                    self.hashing.done.push((command, answer));
                } else {
                    self.hashing.job = Some(job);
                }
            }
            Ok(other) => unreachable!("a piece must be answered by a piece, not {other:?}"),
            Err(error) => self.hashing.done.push((job.command, Err(error.to_string()))),
        }
    }

    fn finish_hash(&mut self, job: &Job) -> Hashed {
        let name = &job.asked.snapshot;
        let changed = self.volume.change_time(name).map_err(|error| error.to_string())?;
        if changed != job.changed {
            return Err(format!("snapshot {name:?} changed while its sum was computed; ask again"));
        }
        let checksum = format!("{:016x}", job.crc.finish());
        let hash = match &job.noted {
            Some(noted) if noted.checksum != checksum => {
                tracing::error!(
                    snapshot = name,
                    noted = noted.checksum,
                    found = checksum,
                    "an image changed by itself"
                );
                ImageHash { silently_corrupted: true, ..noted.clone() }
            }
            _ => ImageHash {
                method: HASH_METHOD.to_owned(),
                checksum,
                change_time: changed,
                last_hashed_at: job.asked.now.clone(),
                silently_corrupted: false,
            },
        };
        self.volume.note_image_hash(name, &hash).map_err(|error| error.to_string())?;
        Ok(hash)
    }
}
