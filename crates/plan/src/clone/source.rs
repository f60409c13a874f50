//! What a volume is to be a copy of: `vol://volume` or `snap://volume/snapshot`.

use tether_crd::Volume;

/// The volume and, where one was named, the snapshot of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub volume: String,
    /// None: as the volume is when the copy begins.
    pub snapshot: Option<String>,
}

impl Source {
    /// That of a volume; none: it is no clone.
    pub fn of(volume: &Volume) -> Option<Self> {
        Self::parse(&volume.spec.data_source)
    }

    /// As it is written in a volume's spec.
    pub fn parse(text: &str) -> Option<Self> {
        let named = |part: &&str| !part.is_empty();
        if let Some(volume) = text.strip_prefix("vol://").filter(named) {
            return Some(Self { volume: volume.to_owned(), snapshot: None });
        }
        let (volume, snapshot) = text.strip_prefix("snap://")?.split_once('/')?;
        let both = !volume.is_empty() && !snapshot.is_empty();
        both.then(|| Self { volume: volume.to_owned(), snapshot: Some(snapshot.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_volumes_or_their_snapshots() {
        let source = |volume: &str, snapshot: Option<&str>| {
            Some(Source { volume: volume.into(), snapshot: snapshot.map(str::to_owned) })
        };
        for (text, expected) in [
            ("vol://v1", source("v1", None)),
            ("snap://v1/s1", source("v1", Some("s1"))),
            ("", None),
            ("vol://", None),
            ("snap://v1", None),
            ("snap:///s1", None),
            ("bak://v1/b1", None),
        ] {
            assert_eq!(Source::parse(text), expected, "{text}");
        }
    }
}
