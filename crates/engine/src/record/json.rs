//! The text of a record file.

use serde::{Deserialize, Serialize};
use tether_replication::ids::{Epoch, Generation, Holder, MemberId};
use tether_replication::record::Record;
use uuid::Uuid;

/// Version of the format; a newer one is refused.
pub const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Text {
    version: u32,
    volume: String,
    epoch: u64,
    holder: Option<String>,
    previous: Option<String>,
    in_sync: Vec<String>,
    generation: u64,
    standby: Option<String>,
    released: bool,
    #[serde(default)]
    alone: bool,
}

/// What is wrong with a record's text.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("it has format {found}, and this version of tether understands up to {VERSION}: use a newer one")]
    Newer { found: u32 },
    #[error("it is the record of volume {found:?}, not of {wanted:?}")]
    Volume { found: String, wanted: String },
    #[error("{0:?} is no uid of an engine")]
    Uid(String),
    #[error("{0:?} is no name of a replica")]
    Name(String),
}

fn uid(holder: Holder) -> Option<String> {
    (holder != Holder::NOBODY).then(|| holder.to_string())
}

fn holder(uid: Option<String>) -> Result<Holder, ParseError> {
    let Some(uid) = uid else { return Ok(Holder::NOBODY) };
    Uuid::parse_str(&uid).map(|uid| Holder(uid.as_u128())).map_err(|_| ParseError::Uid(uid))
}

/// The text of `record`.
pub fn write(volume: &str, record: &Record) -> String {
    let text = Text {
        version: VERSION,
        volume: volume.to_owned(),
        epoch: record.epoch.0,
        holder: uid(record.holder),
        previous: uid(record.previous),
        in_sync: record.in_sync.iter().map(ToString::to_string).collect(),
        generation: record.generation.0,
        standby: record.standby.and_then(uid),
        released: record.released,
        alone: record.alone,
    };
    serde_json::to_string_pretty(&text).expect("a record must be writable as JSON") + "\n"
}

/// The record that `text` is about.
pub fn read(volume: &str, text: &[u8]) -> Result<Record, ParseError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version: found } = serde_json::from_slice(text)?;
    if found > VERSION {
        return Err(ParseError::Newer { found });
    }
    let text: Text = serde_json::from_slice(text)?;
    if text.volume != volume {
        return Err(ParseError::Volume { found: text.volume, wanted: volume.to_owned() });
    }
    let member = |name: String| MemberId::new(&name).ok_or(ParseError::Name(name));
    Ok(Record {
        epoch: Epoch(text.epoch),
        holder: holder(text.holder)?,
        previous: holder(text.previous)?,
        in_sync: text.in_sync.into_iter().map(member).collect::<Result<_, _>>()?,
        generation: Generation(text.generation),
        standby: text.standby.map(|uid| holder(Some(uid))).transpose()?,
        released: text.released,
        alone: text.alone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::new(["r1", "r2"].map(|name| MemberId::new(name).expect("a name")));
        record.epoch = Epoch(7);
        record.generation = Generation(9);
        record.holder = Holder(5);
        record.standby = Some(Holder(6));
        record
    }

    #[test]
    fn a_record_survives_its_text() {
        assert_eq!(read("v1", write("v1", &record()).as_bytes()).expect("its own text"), record());
    }

    #[test]
    fn other_texts_are_refused_in_words() {
        let text = write("v1", &record());
        let table = [
            (text.replace("\"version\": 1", "\"version\": 2"), "use a newer one"),
            (text.replace("\"v1\"", "\"v2\""), "not of \"v1\""),
            (text.replace("\"r1\"", "\"\""), "no name"),
            (text.replace("released", "unleashed"), "unknown field"),
            (String::new(), "EOF"),
        ];
        for (text, words) in table {
            let error = read("v1", text.as_bytes()).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
