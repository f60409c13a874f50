//! Digests of contents: equal exactly when the bytes are equal, however they are allocated.
//!
//! SHA-256 over each block that is not all zeroes, preceded by its offset in the range. Holes and written
//! zeroes are the same, and holes cost nothing.

use sha2::{Digest as _, Sha256};

use crate::buffer::BLOCK;

/// Digest of a range.
pub type Digest = [u8; 32];

/// Takes a range piece by piece, in order.
#[derive(Debug, Clone, Default)]
pub struct Hasher {
    hash: Sha256,
    at: u64,
}

impl Hasher {
    /// The next piece; all but the last must be whole blocks.
    pub fn update(&mut self, data: &[u8]) {
        debug_assert!(self.at.is_multiple_of(BLOCK), "only the last piece may end within a block");
        for block in data.chunks(BLOCK as usize) {
            if !is_zero(block) {
                self.hash.update(self.at.to_le_bytes());
                self.hash.update(block);
            }
            self.at += block.len() as u64;
        }
    }

    /// The next `len` bytes are zeroes.
    pub fn skip(&mut self, len: u64) {
        self.at += len;
    }

    pub fn finish(self) -> Digest {
        self.hash.finalize().into()
    }
}

/// As hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).expect("a nibble must be a digit"));
        }
        text
    })
}

/// Word by word, which the compiler turns into vector instructions.
fn is_zero(block: &[u8]) -> bool {
    block.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(data: &[u8]) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(data);
        hasher.finish()
    }

    #[test]
    fn holes_equal_written_zeroes_and_pieces_equal_the_whole() {
        let mut data = vec![0; 5 * BLOCK as usize + 100];
        data[2 * BLOCK as usize + 5] = 1;
        let mut pieces = Hasher::default();
        pieces.skip(2 * BLOCK);
        pieces.update(&data[2 * BLOCK as usize..3 * BLOCK as usize]);
        pieces.skip(2 * BLOCK);
        pieces.update(&data[5 * BLOCK as usize..]);
        assert_eq!(pieces.finish(), whole(&data));
    }

    #[test]
    fn a_byte_at_another_place_or_of_another_value_changes_the_digest() {
        let mut seen = std::collections::BTreeSet::from([whole(&[0; 8192])]);
        for at in [0, 1, 63, 64, 4095, 4096, 8191] {
            for value in [1, 128] {
                let mut data = vec![0; 8192];
                data[at] = value;
                assert!(seen.insert(whole(&data)), "{at} {value}");
            }
        }
    }
}
