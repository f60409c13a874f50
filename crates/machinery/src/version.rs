//! The order of API versions: which of several a client should prefer.

use std::cmp::Reverse;

/// Kubernetes' order of versions: stable before beta before alpha, higher numbers first, then the rest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    follows_the_scheme: bool,
    stability: u8,
    major: u64,
    minor: u64,
    /// Versions outside the scheme come in alphabetical order, so reversed here.
    other: Reverse<String>,
}

/// The place of a version; the greatest is the one that clients should use.
pub fn rank(version: &str) -> Rank {
    let other =
        Rank { follows_the_scheme: false, stability: 0, major: 0, minor: 0, other: Reverse(version.to_owned()) };
    let Some(rest) = version.strip_prefix('v') else { return other };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..digits].parse() else { return other };
    let (stability, minor) = match &rest[digits..] {
        "" => (2, Some(0)),
        tail if tail.starts_with("beta") => (1, tail[4..].parse().ok()),
        tail if tail.starts_with("alpha") => (0, tail[5..].parse().ok()),
        _ => return other,
    };
    let Some(minor) = minor else { return other };
    Rank { follows_the_scheme: true, stability, major, minor, other: Reverse(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = ["foo10", "v1alpha1", "v10", "v2", "v10beta3", "foo1", "v3beta1", "v12alpha1", "v11alpha2"];
        versions.sort_by_key(|v| Reverse(rank(v)));
        let expected = ["v10", "v2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha1", "foo1", "foo10"];
        assert_eq!(versions, expected);
    }
}
