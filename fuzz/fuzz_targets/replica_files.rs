//! What lies in a replica directory: Longhorn's metadata, Tether's state file, a chain from another replica.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tether_store::files::fake::FakeDisk;
use tether_store::meta::{DiskMeta, VolumeMeta, render};
use tether_store::state::State;
use tether_store::volume::{Adopt, Chain, Open};
use tether_store::{BLOCK, Files, Volume};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => {
            if let Ok(meta) = VolumeMeta::parse("volume.meta", data)
                && !has_fraction(&render(&meta))
            {
                assert_eq!(VolumeMeta::parse("volume.meta", &render(&meta)), Ok(meta), "what is written is read");
            }
        }
        1 => {
            if let Ok(meta) = DiskMeta::parse("x.meta", data)
                && !has_fraction(&render(&meta))
            {
                assert_eq!(DiskMeta::parse("x.meta", &render(&meta)), Ok(meta), "what is written is read");
            }
        }
        2 => {
            if let Ok(chain) = Chain::parse(data) {
                assert_eq!(Chain::parse(&chain.render()), Ok(chain), "what is written is read");
            }
        }
        3 => state_file(data),
        _ => directory(data),
    }
});

/// Numbers that are not whole may change in their last digit; neither Longhorn nor Tether writes one.
fn has_fraction(text: &[u8]) -> bool {
    fn within(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::Number(number) => number.is_f64(),
            serde_json::Value::Array(items) => items.iter().any(within),
            serde_json::Value::Object(fields) => fields.values().any(within),
            _ => false,
        }
    }
    serde_json::from_slice(text).is_ok_and(|value| within(&value))
}

/// A header without its magic, length and checksum, which no mutation would find, and whatever follows.
fn state_file(data: &[u8]) {
    const PREFIX: usize = 32;
    let mut file = vec![0; 2 * BLOCK as usize];
    let text = &data[..data.len().min(BLOCK as usize - PREFIX)];
    for slot in file.chunks_exact_mut(BLOCK as usize) {
        slot[..8].copy_from_slice(b"TETHERRS");
        slot[8] = 1;
        slot[12..16].copy_from_slice(&(text.len() as u32).to_le_bytes());
        slot[PREFIX..PREFIX + text.len()].copy_from_slice(text);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&slot[..24]);
        crc.update(&slot[28..]);
        slot[24..28].copy_from_slice(&crc.finalize().to_le_bytes());
    }
    let _ = State::parse(data);
    if let Ok((state, _)) = State::parse(&file) {
        let _ = state.render_header();
    }
}

/// Files separated by zero bytes, name and contents in turn: opened, adopted or refused, never a panic.
fn directory(data: &[u8]) {
    const NAMES: &[&str] = &[
        "volume.meta",
        "volume-head-000.img.meta",
        "volume-snap-a.img.meta",
        "volume-snap-b.img.meta",
        "tether.state",
    ];
    let disk = FakeDisk::new(0);
    for image in ["volume-head-000.img", "volume-snap-a.img", "volume-snap-b.img"] {
        disk.files().create_sparse(image, 4 * BLOCK).expect("an empty disk takes files");
    }
    for (name, contents) in NAMES.iter().zip(data.split(|byte| *byte == 0)) {
        disk.put(name, contents);
    }
    let _ = Volume::open(disk.files(), &Open::default());
    disk.kill();
    if let Ok((volume, _)) = Volume::adopt(disk.files(), &Adopt::default()) {
        volume.close().expect("an adopted replica can be closed");
        disk.kill();
        Volume::open(disk.files(), &Open::default()).expect("a closed replica can be opened");
    }
}
