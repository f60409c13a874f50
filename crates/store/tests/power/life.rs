//! Random lives of a replica: work, kills, power losses, lack of space, failing operations.

use std::collections::BTreeMap;

use bytes::Bytes;
use tether_store::files::fake::{FakeDisk, FakeFiles, Random};
use tether_store::host::run;
use tether_store::{BLOCK, Change, Reply, Request, RequestError, Volume};

use super::model::Model;
use super::{BLOCKS, create, open};

/// Operations between two checks of everything.
const STEPS: u64 = 40;
/// Times that the power fails in one life.
const LOSSES: u64 = 6;
/// Seeds of the short version.
const SHORT: u64 = 15;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn lives(first: u64, seeds: u64) {
    for seed in first..first + seeds {
        let lived = std::panic::catch_unwind(|| Life::new(seed).live());
        if lived.is_err() {
            println!("failed with seed {seed}: cargo xtask campaign run replica-store --seeds 1 --first-seed {seed}");
            panic!("seed {seed}");
        }
    }
}

#[test]
fn random_lives() {
    lives(0, SHORT);
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run replica-store"]
fn random_lives_in_a_long_campaign() {
    lives(variable("TETHER_FIRST_SEED", 0), variable("TETHER_SEEDS", 1000));
}

/// The same seed gives the same life.
#[test]
fn a_seed_decides_everything() {
    for seed in [1, 2, 3] {
        let (mut one, mut two) = (Life::new(seed), Life::new(seed));
        one.live();
        two.live();
        assert_eq!(one.model.live(), two.model.live());
        assert_eq!(one.disk.steps(), two.disk.steps());
        assert_eq!(one.disk.names(), two.disk.names());
    }
}

struct Life {
    random: Random,
    disk: FakeDisk,
    model: Model,
    boot: u64,
    names: u64,
    /// Regions that were acknowledged to be in the log; there is one region, so it is 0 or nothing.
    logged: bool,
    epoch: u64,
}

/// What an operation made of the model, if it happened.
type Effect = Box<dyn FnOnce(&mut Model)>;

fn request(volume: &mut Volume<FakeFiles>, request: Request) -> Result<(), String> {
    run(volume, request).map(drop).map_err(|error| error.to_string())
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0x5eed),
            disk: FakeDisk::new(seed),
            model: Model::new(BLOCKS * BLOCK),
            boot: 0,
            names: 0,
            logged: false,
            epoch: 0,
        }
    }

    fn live(&mut self) {
        let mut volume = create(&self.disk).unwrap();
        for _ in 0..LOSSES {
            let fuse = self.random.below(STEPS * 12);
            self.disk.fail_power_after(fuse);
            let mut left = Some(volume);
            for _ in 0..STEPS {
                left = left.and_then(|volume| self.step(volume));
            }
            if left.is_some() {
                // Nothing is on its way, or only the cleaning up of something that was answered.
                self.recover(Vec::new());
            }
            volume = open(&self.disk, self.boot).unwrap().0;
        }
        self.model.check(&mut volume);
        volume.close().unwrap();
    }

    /// One operation; none if the power failed (and was restored).
    fn step(&mut self, mut volume: Volume<FakeFiles>) -> Option<Volume<FakeFiles>> {
        let size = self.model.size();
        let (offset, len) = self.range(size);
        let value = self.random.next_u64() as u8;
        let (from, to) = (offset as usize, (offset + len) as usize);
        let (outcome, effect): (Result<(), String>, Effect) = match self.random.below(24) {
            0..9 => {
                let fua = self.random.below(4) == 0;
                let data = Bytes::from(vec![value; len as usize]);
                let done = request(&mut volume, Request::Write { offset, data, fua });
                (done, Box::new(move |model| model.change(|bytes| bytes[from..to].fill(value))))
            }
            9..11 => {
                let zero = Request::WriteZeroes { offset, len, fua: self.random.coin(), unmap: self.random.coin() };
                let done = request(&mut volume, zero);
                (done, Box::new(move |model| model.change(|bytes| bytes[from..to].fill(0))))
            }
            11..13 => {
                let done = request(&mut volume, Request::Discard { offset, len });
                (done, Box::new(move |model| model.discard(offset, len)))
            }
            13..15 => (request(&mut volume, Request::Flush), Box::new(Model::flushed)),
            15..17 => {
                self.names += 1;
                let name = format!("s{}", self.names);
                let done = volume.create_snapshot(&name, true, "now", BTreeMap::new()).map_err(|e| e.to_string());
                (done, Box::new(move |model| model.snapshot(&name)))
            }
            17 => match self.kept() {
                None => return Some(volume),
                Some(name) => {
                    let done = volume.remove_snapshot(&name).map_err(|error| error.to_string());
                    (done, Box::new(move |model| model.snapshots.get_mut(&name).unwrap().removed = true))
                }
            },
            18..20 => {
                let budget = BLOCK * (1 + self.random.below(6));
                let done = request(&mut volume, Request::Reclaim { budget });
                if done.is_ok() && !self.disk.is_dead() {
                    self.model.check_snapshots(&mut volume);
                }
                (done, Box::new(|_| ()))
            }
            20 => match self.kept() {
                None => return Some(volume),
                Some(name) => {
                    let done = volume.revert(&name, "now").map_err(|error| error.to_string());
                    (done, Box::new(move |model| model.revert(&name)))
                }
            },
            21 if size < 2 * BLOCKS * BLOCK => {
                let size = size + BLOCK * (1 + self.random.below(4));
                let done = volume.expand(size).map_err(|error| error.to_string());
                (done, Box::new(move |model| model.expand(size)))
            }
            22 => {
                if self.save(&mut volume) {
                    return Some(volume);
                }
                (Err("saving".into()), Box::new(|_| ()))
            }
            _ => return self.reopen(volume),
        };
        if let Err(error) = outcome {
            assert!(self.disk.is_dead(), "{error}");
            drop(volume);
            let mut happened = self.model.clone();
            effect(&mut happened);
            self.recover(vec![happened]);
            return None;
        }
        effect(&mut self.model);
        if self.random.below(8) == 0 && !self.disk.is_dead() {
            self.model.check(&mut volume);
        }
        Some(volume)
    }

    fn range(&mut self, size: u64) -> (u64, u64) {
        if self.random.coin() {
            let first = self.random.below(size / BLOCK);
            let blocks = 1 + self.random.below((size / BLOCK - first).min(5));
            return (first * BLOCK, blocks * BLOCK);
        }
        // Whole sectors, so that the model's sectors are of one version.
        let first = self.random.below(size / 512);
        (first * 512, 512 * (1 + self.random.below((size / 512 - first).min(30))))
    }

    fn kept(&mut self) -> Option<String> {
        let kept: Vec<_> =
            self.model.snapshots.iter().filter(|(_, s)| !s.removed).map(|(name, _)| name.clone()).collect();
        (!kept.is_empty()).then(|| kept[self.random.below(kept.len() as u64) as usize].clone())
    }

    /// Promises and log entries. False if the power failed.
    fn save(&mut self, volume: &mut Volume<FakeFiles>) -> bool {
        let promise = tether_store::state::Promise { epoch: self.epoch + 1, ..Default::default() };
        let log = if self.random.coin() { Change::LogAdd(vec![0]) } else { Change::LogClear(vec![0]) };
        let adds = matches!(log, Change::LogAdd(_));
        if !adds {
            // While it is on its way the entry may be there or not.
            self.logged = false;
        }
        let saved = run(volume, Request::Save(vec![Change::Promise(promise), log]));
        match saved {
            Ok(reply) => {
                assert_eq!(reply, Reply::Done);
                self.epoch += 1;
                self.logged = adds;
                true
            }
            Err(error) => {
                assert!(matches!(error, RequestError::SyncFailed(_)) && self.disk.is_dead(), "{error}");
                false
            }
        }
    }

    /// Closes or kills the process, and opens the replica again.
    fn reopen(&mut self, volume: Volume<FakeFiles>) -> Option<Volume<FakeFiles>> {
        if self.random.coin() {
            if volume.close().is_ok() {
                self.model.flushed();
            }
        } else {
            drop(volume);
            if !self.disk.is_dead() {
                // The fuse burns on in the next process.
                let fuse = self.random.below(STEPS * 6);
                self.disk.kill();
                self.disk.fail_power_after(fuse);
            }
        }
        if !self.disk.is_dead()
            && let Ok((volume, opened)) = open(&self.disk, self.boot)
        {
            assert_eq!(opened.foreign, None);
            return Some(volume);
        }
        assert!(self.disk.is_dead());
        self.recover(Vec::new());
        None
    }

    /// The power failed; what is there must be what was there before the operation under way, or after.
    fn recover(&mut self, happened: Vec<Model>) {
        self.disk.lose_power();
        self.boot += 1;
        let (mut volume, opened) = open(&self.disk, self.boot).unwrap();
        assert_eq!(opened.foreign, None);
        let mut candidates = happened;
        candidates.push(self.model.clone());
        self.model = Model::settle(candidates, &mut volume);
        let state = volume.state();
        assert!(state.header.promise.epoch >= self.epoch, "a promise was forgotten");
        self.epoch = state.header.promise.epoch;
        assert!(!self.logged || state.active_regions().count() == 1, "a log entry was forgotten");
        if opened.previous == tether_store::volume::Previous::Rebooted {
            assert_eq!(state.header.doubt, state.active_regions().count() > 0 || state.header.doubt);
        }
        drop(volume);
        self.disk.kill();
    }
}
