//! The index against an array of one byte per block, and its size.

use proptest::prelude::*;

use super::*;

/// Small enough to hit every boundary, large enough for three chunks.
const BLOCKS: u64 = 2 * CHUNK + 100;

fn check(index: &Index, oracle: &[Layer]) {
    let mut at = 0;
    for run in index.runs(0, index.blocks()) {
        assert_eq!(run.start, at);
        assert!(oracle[run.start as usize..run.end as usize].iter().all(|layer| *layer == run.layer), "{run:?}");
        assert!(oracle.get(run.end as usize).is_none_or(|next| *next != run.layer), "{run:?} could be longer");
        at = run.end;
    }
    assert_eq!(at, index.blocks());
}

#[derive(Debug, Clone)]
enum Step {
    Set(u64, u64, Layer),
    Relabel(Layer, Layer),
    Scatter(u64, u64, Layer),
}

fn step() -> impl Strategy<Value = Step> {
    let place = prop_oneof![0..BLOCKS, CHUNK - 3..CHUNK + 3, Just(0), Just(BLOCKS - 1)];
    prop_oneof![
        6 => (place.clone(), 1..300u64, 0..6u8).prop_map(|(at, len, layer)| Step::Set(at, len, layer)),
        1 => (0..BLOCKS, 1..BLOCKS, 0..40u8).prop_map(|(at, len, layer)| Step::Set(at, len, layer)),
        1 => (0..6u8, 0..6u8).prop_map(|(old, new)| Step::Relabel(old, new)),
        1 => (place, 1..4u64, 1..40u8).prop_map(|(at, gap, layer)| Step::Scatter(at, gap, layer)),
    ]
}

proptest! {
    #[test]
    fn the_index_agrees_with_a_byte_per_block(steps in prop::collection::vec(step(), 1..60)) {
        let mut index = Index::new(BLOCKS);
        let mut oracle = vec![NOTHING; BLOCKS as usize];
        for step in steps {
            match step {
                Step::Set(at, len, layer) => {
                    let end = (at + len).min(BLOCKS);
                    index.set(at, end, layer);
                    oracle[at as usize..end as usize].fill(layer);
                }
                Step::Relabel(old, new) => {
                    index.relabel(0..index.chunks(), old, new);
                    for layer in &mut oracle {
                        if *layer == old {
                            *layer = new;
                        }
                    }
                }
                Step::Scatter(from, gap, layer) => {
                    for at in (from..(from + 3000).min(BLOCKS)).step_by(gap as usize + 1) {
                        index.set(at, at + 1, layer);
                        oracle[at as usize] = layer;
                    }
                }
            }
            check(&index, &oracle);
        }
    }
}

#[test]
fn a_grown_index_owns_nothing_new() {
    let mut index = Index::new(10);
    index.set(0, 10, 3);
    index.grow(CHUNK + 10);
    assert_eq!(
        index.runs(0, CHUNK + 10).collect::<Vec<_>>(),
        [Run { start: 0, end: 10, layer: 3 }, Run { start: 10, end: CHUNK + 10, layer: NOTHING }]
    );
}

/// The budget: 1 TiB, a million scattered extents in three layers, well below the 40 MiB of a process.
#[test]
fn a_million_extents_fit() {
    const TIB_BLOCKS: u64 = 1 << 28;
    let mut index = Index::new(TIB_BLOCKS);
    let mut random = 1u64;
    for extent in 0..1_000_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 20) % (TIB_BLOCKS - 8);
        index.set(at, at + 1 + random % 7, (1 + extent % 3) as u8);
    }
    assert!(index.bytes() < 16 << 20, "{} bytes", index.bytes());
}

/// Every second block owned by another layer: bounded by the packed shape.
#[test]
fn the_worst_case_is_bounded() {
    let mut index = Index::new(CHUNK);
    for at in (0..CHUNK).step_by(2) {
        index.set(at, at + 1, 1);
    }
    assert!(index.bytes() < 700, "{} bytes", index.bytes());
}

/// A volume that was filled in random order costs as little as one that was filled in order, or nearly.
#[test]
fn a_full_chunk_becomes_small_again() {
    let mut index = Index::new(CHUNK);
    // 1597 is coprime to 4096: every block once, scattered.
    (0..CHUNK).map(|at| at * 1597 % CHUNK).for_each(|at| index.set(at, at + 1, 1));
    assert_eq!(index.run(0, CHUNK), Run { start: 0, end: CHUNK, layer: 1 });
    assert!(index.bytes() < 64, "{} bytes", index.bytes());
}
