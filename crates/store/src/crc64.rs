//! CRC-64 (ISO 3309) as Go's `hash/crc64` computes it: the sum that Longhorn keeps of a snapshot's image.
//!
//! Images are sparse: a run of zeroes of any length is one step, since feeding zeroes is a linear map of the register.

/// The polynomial x⁶⁴ + x⁴ + x³ + x + 1, bits reversed.
const POLYNOMIAL: u64 = 0xd800_0000_0000_0000;
/// Bytes taken in one step.
const LANES: usize = 8;

/// `TABLES[n][b]`: the register after byte `b` and `n` zero bytes.
const TABLES: [[u64; 256]; LANES] = tables();

const fn tables() -> [[u64; 256]; LANES] {
    let mut tables = [[0; 256]; LANES];
    let mut byte = 0;
    while byte < 256 {
        let (mut register, mut bit) = (byte as u64, 0);
        while bit < 8 {
            register = if register & 1 == 1 { register >> 1 ^ POLYNOMIAL } else { register >> 1 };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut lane = 1;
    while lane < LANES {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[lane - 1][byte];
            tables[lane][byte] = before >> 8 ^ tables[0][(before & 255) as usize];
            byte += 1;
        }
        lane += 1;
    }
    tables
}

/// A sum that is being computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crc64 {
    register: u64,
}

impl Default for Crc64 {
    fn default() -> Self {
        Self { register: !0 }
    }
}

impl Crc64 {
    /// The next bytes.
    pub fn update(&mut self, data: &[u8]) {
        let mut register = self.register;
        let (chunks, rest) = data.as_chunks::<LANES>();
        for chunk in chunks {
            let mixed = (register ^ u64::from_le_bytes(*chunk)).to_le_bytes();
            register = mixed.iter().zip(TABLES.iter().rev()).fold(0, |sum, (byte, table)| sum ^ table[*byte as usize]);
        }
        for byte in rest {
            register = register >> 8 ^ TABLES[0][(register as u8 ^ byte) as usize];
        }
        self.register = register;
    }

    /// The next `len` bytes are zeroes.
    pub fn zeroes(&mut self, mut len: u64) {
        // Column `n` of the map is what becomes of bit `n`; squaring it doubles the number of zeroes.
        let mut map: [u64; 64] = std::array::from_fn(|bit| {
            let register = 1 << bit;
            register >> 8 ^ TABLES[0][(register & 255) as usize]
        });
        while len > 0 {
            if len & 1 == 1 {
                self.register = apply(&map, self.register);
            }
            len >>= 1;
            if len > 0 {
                map = std::array::from_fn(|bit| apply(&map, map[bit]));
            }
        }
    }

    pub fn finish(&self) -> u64 {
        !self.register
    }
}

fn apply(map: &[u64; 64], mut register: u64) -> u64 {
    let mut sum = 0;
    while register != 0 {
        sum ^= map[register.trailing_zeros() as usize];
        register &= register - 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(data: &[u8]) -> u64 {
        let mut crc = Crc64::default();
        crc.update(data);
        crc.finish()
    }

    /// What Go prints for the same bytes.
    #[test]
    fn sums_are_those_of_go() {
        assert_eq!(whole(b""), 0);
        assert_eq!(whole(b"a"), 0x3420_0000_0000_0000);
        assert_eq!(whole(b"ab"), 0x36c4_2000_0000_0000);
        assert_eq!(whole(b"abcdefghij"), 0x7f5b_6e21_b002_d367);
        assert_eq!(whole(b"123456789"), 0xb909_56c7_75a4_1001);
    }

    proptest! {
        #[test]
        fn zeroes_in_one_step_are_zeroes_byte_by_byte(
            pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..40), 0usize..5000), 0..6),
        ) {
            let (mut plain, mut quick) = (Vec::new(), Crc64::default());
            for (data, zeroes) in pieces {
                plain.extend_from_slice(&data);
                plain.resize(plain.len() + zeroes, 0);
                quick.update(&data);
                quick.zeroes(zeroes as u64);
            }
            prop_assert_eq!(whole(&plain), quick.finish());
        }
    }
}
