//! The state file: what is written is read, and damage is noticed.

use super::*;

fn state() -> State {
    let header = Header {
        volume: "v".to_owned(),
        promise: Promise { epoch: 3, holder: "engine".to_owned(), session: 9 },
        region_bytes: REGION_BYTES,
        regions: 100_000,
        maps: vec![MapOwner { slot: 2, owner: "r2".to_owned() }],
        ..Header::default()
    };
    let mut state = State::new(header);
    state.maps[2] = Some(RegionMap::new(100_000));
    for region in [0, 5, 3967, 3968, 31_743, 31_744, 99_999] {
        state.maps[ACTIVITY].as_mut().unwrap().insert(region);
        state.maps[2].as_mut().unwrap().insert(region / 2);
    }
    state
}

#[test]
fn what_is_written_is_read() {
    let state = state();
    let file = state.render_file().unwrap();
    assert_eq!(file.len() as u64, file_bytes(100_000));
    let (read, repair) = State::parse(&file).unwrap();
    assert_eq!((&read.header, &read.maps, repair), (&state.header, &state.maps, false));
}

/// Flips each bit of both headers, one at a time: the other copy counts.
#[test]
fn a_flipped_bit_in_a_header_is_repaired_from_the_other_copy() {
    let state = state();
    let file = state.render_file().unwrap();
    for bit in (0..2 * BLOCK as usize * 8).step_by(97) {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (read, repair) = State::parse(&damaged).unwrap();
        assert_eq!((&read.header, repair), (&state.header, true), "bit {bit}");
    }
}

#[test]
fn a_flipped_bit_in_a_map_adds_regions_and_never_loses_one() {
    let state = state();
    let file = state.render_file().unwrap();
    for bit in (2 * BLOCK as usize * 8..file.len() * 8).step_by(40_009) {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (read, _) = State::parse(&damaged).unwrap();
        for (before, after) in state.maps.iter().zip(&read.maps) {
            let (Some(before), Some(after)) = (before, after) else { continue };
            assert!(before.iter().all(|region| after.contains(region)), "bit {bit}");
        }
    }
}

#[test]
fn the_newer_header_counts_whichever_slot_it_is_in() {
    let (old, mut new) = (state(), state());
    new.sequence = 1;
    new.header.promise.epoch = 4;
    for newer_slot in [0, 1] {
        let mut file = old.render_file().unwrap();
        let at = newer_slot * BLOCK as usize;
        file[at..at + BLOCK as usize].copy_from_slice(&new.render_header().unwrap());
        let (read, repair) = State::parse(&file).unwrap();
        assert_eq!((read.header.promise.epoch, repair), (4, true));
    }
}

#[test]
fn what_cannot_be_used_says_why() {
    let state = state();
    let good = state.render_file().unwrap();
    let block = BLOCK as usize;
    let both = |change: &dyn Fn(&mut [u8])| {
        let mut file = good.clone();
        file[..2 * block].chunks_exact_mut(block).for_each(change);
        State::parse(&file).unwrap_err().to_string()
    };
    assert!(both(&|slot| slot.fill(0)).contains("damaged in both copies"));
    assert!(both(&|slot| slot[100] ^= 1).contains("checksum does not match"));
    assert!(State::parse(&[]).unwrap_err().to_string().contains("too short"));
    let mut odd = state.clone_header();
    odd.header.region_bytes = 5;
    let odd = [&odd.render_header().unwrap()[..], &odd.render_header().unwrap()[..]].concat();
    assert!(State::parse(&odd).unwrap_err().to_string().contains("field regionBytes is 5"));
    let mut long = state.clone_header();
    long.header.volume = "v".repeat(5000);
    assert!(matches!(long.render_header(), Err(StateError::TooLarge(_))));
}

#[test]
fn a_newer_version_is_refused_even_if_only_one_slot_has_it() {
    let state = state();
    let mut file = state.render_file().unwrap();
    let newer = header::encode_as(&state.header, 5, VERSION + 1).unwrap();
    file[BLOCK as usize..2 * BLOCK as usize].copy_from_slice(&newer);
    assert_eq!(State::parse(&file).unwrap_err(), StateError::Newer { found: VERSION + 1 });
}
