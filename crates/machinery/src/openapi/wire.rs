//! Writing protobuf: fields as they come, nothing for values that are the default.

/// Wire types: how the bytes after a field's number are read.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A text; an empty one is the default.
    pub(super) fn text(&mut self, number: u32, text: &str) {
        if !text.is_empty() {
            self.bytes(number, text.as_bytes());
        }
    }

    /// A text that counts even if it is empty: in a list, or chosen among others.
    pub(super) fn element(&mut self, number: u32, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    pub(super) fn flag(&mut self, number: u32, flag: bool) {
        if flag {
            self.set_flag(number, flag);
        }
    }

    /// A truth value that was chosen among others.
    pub(super) fn set_flag(&mut self, number: u32, flag: bool) {
        self.key(number, VARINT);
        self.varint(u64::from(flag));
    }

    pub(super) fn int(&mut self, number: u32, value: i64) {
        if value != 0 {
            self.key(number, VARINT);
            self.varint(value as u64);
        }
    }

    pub(super) fn double(&mut self, number: u32, value: f64) {
        if value != 0.0 {
            self.set_double(number, value);
        }
    }

    /// A number that was chosen among others.
    pub(super) fn set_double(&mut self, number: u32, value: f64) {
        self.key(number, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A message, which counts even if it is empty.
    pub(super) fn message(&mut self, number: u32, write: impl FnOnce(&mut Writer)) {
        let mut inner = Writer::default();
        write(&mut inner);
        self.bytes(number, &inner.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_protobuf() {
        let mut writer = Writer::default();
        writer.text(1, "");
        writer.text(1, "ab");
        writer.int(2, 300);
        writer.flag(3, true);
        writer.message(16, |inner| inner.double(1, 1.0));
        assert_eq!(
            writer.finish(),
            [
                0x0a, 2, b'a', b'b', // field 1
                0x10, 0xac, 0x02, // field 2: 300
                0x18, 1, // field 3
                0x82, 0x01, 9, 0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, // field 16: a message with 1.0
            ]
        );
    }
}
