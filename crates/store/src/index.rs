//! Which layer of the chain owns each block of the volume, in memory.
//!
//! The volume is cut into chunks of 4096 blocks (16 MiB). A chunk is the cheapest of three shapes: one layer
//! throughout, a sorted list of runs (4 bytes each), or packed small numbers (1, 2, 4 or 8 bits a block). A
//! 1 TiB volume with a million scattered extents takes about 10 MiB; the worst case, every block owned by
//! another layer than its neighbour, is bounded by 1 to 8 bits a block.

use std::ops::Range;

/// A layer of the live chain; [`NOTHING`] means that no layer has the block, so it reads as zeroes.
pub type Layer = u8;

/// No layer has the block.
pub const NOTHING: Layer = 0;

/// Blocks per chunk.
const CHUNK: u64 = 4096;

/// A range of blocks that one layer owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: u64,
    pub end: u64,
    pub layer: Layer,
}

/// Owner of every block.
#[derive(Debug, Clone)]
pub struct Index {
    chunks: Vec<Chunk>,
    blocks: u64,
}

/// A run begins here and lasts until the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    at: u16,
    layer: Layer,
}

#[derive(Debug, Clone)]
enum Chunk {
    One(Layer),
    /// At least two marks, the first at 0, neighbours differ.
    Runs(Vec<Mark>),
    Packed(Box<Packed>),
}

/// Small numbers, `1 << shift` bits each, that stand for the layers in `palette`.
#[derive(Debug, Clone)]
struct Packed {
    shift: u8,
    palette: Vec<Layer>,
    words: Box<[u64]>,
    /// Counts changes; every 256th asks whether runs have become cheaper.
    changes: u8,
}

/// Runs at which a packed chunk becomes a list again: far below where it became packed, so that it does not
/// go back and forth.
const UNPACK_RUNS: usize = 64;

impl Packed {
    /// Bits that `palette` entries need, as a power of two.
    fn shift_for(layers: usize) -> u8 {
        match layers {
            0..=2 => 0,
            3..=4 => 1,
            5..=16 => 2,
            _ => 3,
        }
    }

    fn bytes(shift: u8) -> usize {
        (CHUNK as usize) << shift >> 3
    }

    fn get(&self, at: u64) -> Layer {
        let bit = at << self.shift;
        let mask = (1u64 << (1u32 << self.shift)) - 1;
        self.palette[(self.words[(bit / 64) as usize] >> (bit % 64) & mask) as usize]
    }

    /// Whether one layer owns all; ends at the first word that differs.
    fn is_uniform(&self) -> bool {
        let width = 1u32 << self.shift;
        let first = self.words[0];
        first.rotate_right(width) == first && self.words.iter().all(|word| *word == first)
    }

    fn fill(&mut self, range: Range<u64>, layer: Layer) {
        let number = self.number(layer);
        let width = 1u64 << self.shift;
        let mask = (1u64 << width) - 1;
        for at in range {
            let bit = at * width;
            let word = &mut self.words[(bit / 64) as usize];
            *word = *word & !(mask << (bit % 64)) | number << (bit % 64);
        }
    }

    /// The number of `layer`, widening the table if it has no room.
    fn number(&mut self, layer: Layer) -> u64 {
        if let Some(found) = self.palette.iter().position(|known| *known == layer) {
            return found as u64;
        }
        let shift = Self::shift_for(self.palette.len() + 1);
        if shift != self.shift {
            let mut wider = Self {
                shift,
                palette: self.palette.clone(),
                words: vec![0; Self::bytes(shift) / 8].into_boxed_slice(),
                changes: 0,
            };
            for run in self.marks() {
                wider.fill(run.0, run.1);
            }
            *self = wider;
        }
        self.palette.push(layer);
        self.palette.len() as u64 - 1
    }

    /// Runs in order.
    fn marks(&self) -> Vec<(Range<u64>, Layer)> {
        let mut marks = Vec::new();
        let mut start = 0;
        for at in 1..=CHUNK {
            if at == CHUNK || self.get(at) != self.get(start) {
                marks.push((start..at, self.get(start)));
                start = at;
            }
        }
        marks
    }

    fn from_marks(marks: &[Mark]) -> Self {
        let mut palette: Vec<Layer> = marks.iter().map(|mark| mark.layer).collect();
        palette.sort_unstable();
        palette.dedup();
        palette.shrink_to_fit();
        let shift = Self::shift_for(palette.len());
        let mut packed = Self { shift, palette, words: vec![0; Self::bytes(shift) / 8].into_boxed_slice(), changes: 0 };
        for (index, mark) in marks.iter().enumerate() {
            let end = marks.get(index + 1).map_or(CHUNK, |next| u64::from(next.at));
            packed.fill(u64::from(mark.at)..end, mark.layer);
        }
        packed
    }
}

impl Chunk {
    /// Owner of `at` and where its run ends, at most [`CHUNK`].
    fn run_at(&self, at: u64) -> (Layer, u64) {
        match self {
            Self::One(layer) => (*layer, CHUNK),
            Self::Runs(marks) => {
                let next = marks.partition_point(|mark| u64::from(mark.at) <= at);
                (marks[next - 1].layer, marks.get(next).map_or(CHUNK, |mark| u64::from(mark.at)))
            }
            Self::Packed(packed) => {
                let layer = packed.get(at);
                let end = (at + 1..CHUNK).find(|next| packed.get(*next) != layer).unwrap_or(CHUNK);
                (layer, end)
            }
        }
    }

    fn set(&mut self, range: Range<u64>, layer: Layer) {
        if range.start == 0 && range.end == CHUNK {
            *self = Self::One(layer);
            return;
        }
        match self {
            Self::One(old) if *old == layer => {}
            Self::One(old) => {
                let mut marks = Vec::with_capacity(3);
                if range.start > 0 {
                    marks.push(Mark { at: 0, layer: *old });
                }
                marks.push(Mark { at: range.start as u16, layer });
                if range.end < CHUNK {
                    marks.push(Mark { at: range.end as u16, layer: *old });
                }
                *self = Self::Runs(marks);
            }
            Self::Runs(marks) => {
                splice(marks, range, layer);
                if marks.len() == 1 {
                    *self = Self::One(layer);
                } else if size_of_val(&marks[..]) > Packed::bytes(1) {
                    *self = Self::Packed(Box::new(Packed::from_marks(marks)));
                }
            }
            Self::Packed(packed) => {
                packed.fill(range, layer);
                packed.changes = packed.changes.wrapping_add(1);
                if packed.is_uniform() {
                    *self = Self::One(layer);
                } else if packed.changes == 0 {
                    self.unpack();
                }
            }
        }
    }

    /// Makes a packed chunk a list of runs if that is cheaper by now.
    fn unpack(&mut self) {
        let Self::Packed(packed) = self else { return };
        let runs = packed.marks();
        if runs.len() == 1 {
            *self = Self::One(runs[0].1);
        } else if runs.len() <= UNPACK_RUNS {
            let marks = runs.into_iter().map(|(range, layer)| Mark { at: range.start as u16, layer });
            *self = Self::Runs(marks.collect());
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Runs(marks) => marks.capacity() * size_of::<Mark>(),
            Self::Packed(packed) => size_of::<Packed>() + packed.palette.capacity() + size_of_val(&packed.words[..]),
        }
    }
}

/// Replaces what lies in `range` by one run of `layer`, merging it with equal neighbours.
fn splice(marks: &mut Vec<Mark>, range: Range<u64>, layer: Layer) {
    let first = marks.partition_point(|mark| u64::from(mark.at) < range.start);
    let last = marks.partition_point(|mark| u64::from(mark.at) <= range.end);
    // What owned the block after the range, and owns it still.
    let after = marks[last - 1].layer;
    let mut new = [Mark { at: 0, layer }; 2];
    let mut count = 0;
    if first == 0 || marks[first - 1].layer != layer {
        new[count] = Mark { at: range.start as u16, layer };
        count += 1;
    }
    if range.end < CHUNK && after != layer {
        new[count] = Mark { at: range.end as u16, layer: after };
        count += 1;
    }
    if marks.capacity() < marks.len() + count {
        // Doubling would waste up to half of what a million extents need.
        marks.reserve_exact((marks.len() / 8).max(4));
    }
    marks.splice(first..last, new[..count].iter().copied());
}

impl Index {
    /// A volume of `blocks` blocks that nobody owns.
    pub fn new(blocks: u64) -> Self {
        Self { chunks: vec![Chunk::One(NOTHING); blocks.div_ceil(CHUNK) as usize], blocks }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds unowned blocks at the end.
    pub fn grow(&mut self, blocks: u64) {
        assert!(blocks >= self.blocks, "an index must not shrink");
        self.chunks.resize(blocks.div_ceil(CHUNK) as usize, Chunk::One(NOTHING));
        self.blocks = blocks;
    }

    /// Makes `layer` the owner of the blocks `start..end`.
    pub fn set(&mut self, start: u64, end: u64, layer: Layer) {
        debug_assert!(end <= self.blocks);
        let mut at = start;
        while at < end {
            let chunk = at / CHUNK;
            let to = end.min((chunk + 1) * CHUNK);
            self.chunks[chunk as usize].set(at % CHUNK..to - chunk * CHUNK, layer);
            at = to;
        }
    }

    pub fn get(&self, block: u64) -> Layer {
        self.chunks[(block / CHUNK) as usize].run_at(block % CHUNK).0
    }

    /// The run that begins at `start`, cut at `end`.
    pub fn run(&self, start: u64, end: u64) -> Run {
        let mut at = start;
        let mut layer = None;
        while at < end {
            let chunk = at / CHUNK;
            let (owner, to) = self.chunks[chunk as usize].run_at(at % CHUNK);
            if layer.is_some_and(|layer| layer != owner) {
                break;
            }
            layer = Some(owner);
            at = (chunk * CHUNK + to).min(end);
        }
        Run { start, end: at, layer: layer.unwrap_or(NOTHING) }
    }

    /// The runs of `start..end` in order.
    pub fn runs(&self, start: u64, end: u64) -> impl Iterator<Item = Run> {
        let mut at = start;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let run = self.run(at, end);
                at = run.end;
                run
            })
        })
    }

    /// Gives the blocks of `old` to `new` in `chunks` (of 4096 blocks); a whole volume in pieces blocks nobody.
    pub fn relabel(&mut self, chunks: Range<usize>, old: Layer, new: Layer) {
        let end = chunks.end.min(self.chunks.len());
        for chunk in chunks.start..end {
            let (start, mut at) = (chunk as u64 * CHUNK, 0);
            while at < CHUNK {
                let (layer, to) = self.chunks[chunk].run_at(at);
                if layer == old {
                    self.chunks[chunk].set(at..to, new);
                }
                at = to;
            }
            debug_assert!(start <= self.blocks);
        }
    }

    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Memory that the index takes, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.chunks[..]) + self.chunks.iter().map(Chunk::bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
