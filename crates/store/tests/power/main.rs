//! Power losses: at every step of every operation on metadata, and at random in random lives.
//!
//! A life is a seed: `cargo xtask campaign run replica-store --seeds 1 --first-seed <seed>`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

mod each_step;
mod life;
mod model;

use tether_store::files::fake::{FakeDisk, FakeFiles};
use tether_store::volume::{Create, Open, OpenError, Opened};
use tether_store::{BLOCK, Volume};

/// Blocks of the volumes here: few, so that everything meets everything.
const BLOCKS: u64 = 24;

fn create(disk: &FakeDisk) -> Result<Volume<FakeFiles>, OpenError> {
    let options = Create {
        volume: "v".into(),
        replica: "r".into(),
        size: BLOCKS * BLOCK,
        boot_id: "boot-0".into(),
        created: "2026-01-01T00:00:00Z".into(),
    };
    Volume::create(disk.files(), &options).map(|(volume, _)| volume)
}

fn open(disk: &FakeDisk, boot: u64) -> Result<(Volume<FakeFiles>, Opened), OpenError> {
    Volume::open(disk.files(), &Open { volume: Some("v".into()), boot_id: format!("boot-{boot}") })
}
