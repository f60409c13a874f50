//! Randomness: uids, generated names, jitter.

/// A new object's uid.
pub fn uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Five characters for `generateName`, of Kubernetes' alphabet: no vowels, so no words.
pub fn name_suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let bytes = uuid::Uuid::new_v4().into_bytes();
    bytes[..5].iter().map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])).collect()
}

/// A number from 0 to 1 that spreads what would otherwise happen at once.
pub fn jitter() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}
