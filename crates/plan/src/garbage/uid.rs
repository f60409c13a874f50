//! Uids as numbers: Kubernetes' are UUIDs, and there is one for each object that exists and for each owner that it names.

use std::fmt;

/// The uid of an object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Form);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Uuid([u8; 16]),
    /// An API server may call its objects as it likes.
    Other(Box<str>),
}

/// Where the text of a UUID has a hyphen.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID_LEN: usize = 36;

impl Uid {
    /// The one before all others.
    pub(super) const FIRST: Self = Self(Form::Uuid([0; 16]));
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(uuid(text).map_or_else(|| Form::Other(text.into()), Form::Uuid))
    }
}

/// The UUID that is written like this and in no other way.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    if text.len() != UUID_LEN || HYPHENS.iter().any(|at| text[*at] != b'-') {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut digits = text.iter().enumerate().filter(|(at, _)| !HYPHENS.contains(at)).map(|(_, byte)| digit(*byte));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = digits.next()?? << 4 | digits.next()??;
    }
    Some(bytes)
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Other(text) => f.write_str(text),
            Form::Uuid(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    let hyphen = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
                    write!(f, "{hyphen}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_uid_is_written_as_it_was() {
        let usual = "5e2f9f4e-1b1a-4f0e-9d7b-0d3c6f1f3a11";
        let others = ["", "uid-a", "5E2F9F4E-1B1A-4F0E-9D7B-0D3C6F1F3A11", "5e2f9f4e-1b1a-4f0e-9d7b-0d3c6f1f3a1g"];
        let odd = ["5e2f9f4e-1b1a-4f0e-9d7b-0d3c6f1f3a111", "5e2f9f4e11b1a14f0e19d7b10d3c6f1f3a11", &"é".repeat(18)];
        for text in others.iter().chain(&odd).chain([&usual]) {
            assert_eq!(Uid::from(*text).to_string(), **text);
            assert_eq!(matches!(Uid::from(*text).0, Form::Uuid(_)), *text == usual, "{text}");
        }
        assert!(Uid::FIRST < Uid::from(usual) && Uid::from(usual) < Uid::from("a"));
    }
}
