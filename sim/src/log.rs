//! What happened, line by line: a hash of all of it, and the lines themselves if somebody wants to read them.

/// The log of one run. Two runs of one seed have the same hash, or something is not deterministic.
#[derive(Debug)]
pub struct Log {
    hash: u64,
    lines: Vec<String>,
    keep: bool,
}

/// FNV-1a, 64 bits.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Log {
    pub fn new(keep: bool) -> Self {
        Self { hash: OFFSET, lines: Vec::new(), keep }
    }

    pub fn line(&mut self, now: u64, text: &str) {
        let line = format!("{:>12.6} {text}", now as f64 / 1e6);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        if self.keep {
            self.lines.push(line);
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
