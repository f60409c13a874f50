//! Records as Volume objects carry them.

use serde_json::Value;
use tether_crd::volume::Record as Text;
use tether_replication::ids::{Epoch, Generation, Holder, MemberId};
use tether_replication::record::Record;
use uuid::Uuid;

/// Version of the format; a newer one is refused.
const VERSION: u64 = 1;

fn uid(holder: Holder) -> Option<String> {
    (holder != Holder::NOBODY).then(|| holder.to_string())
}

fn holder(uid: Option<&String>) -> Result<Holder, String> {
    let Some(uid) = uid else { return Ok(Holder::NOBODY) };
    Uuid::parse_str(uid).map(|uid| Holder(uid.as_u128())).map_err(|_| format!("{uid:?} is no uid of an engine"))
}

/// What is written.
pub(super) fn write(record: &Record) -> Value {
    let text = Text {
        version: VERSION,
        epoch: record.epoch.0,
        holder: uid(record.holder),
        previous: uid(record.previous),
        in_sync: record.in_sync.iter().map(ToString::to_string).collect(),
        generation: record.generation.0,
        standby: record.standby.and_then(uid),
        released: record.released,
        alone: record.alone,
    };
    serde_json::to_value(text).expect("a record must be JSON")
}

/// What that says.
pub(super) fn read(value: Value) -> Result<Record, String> {
    let text: Text = serde_json::from_value(value).map_err(|error| format!("the record makes no sense: {error}"))?;
    if text.version > VERSION {
        let found = text.version;
        return Err(format!(
            "the record has format {found}, and this version of tether knows {VERSION}: use a newer one"
        ));
    }
    let member = |name: &String| MemberId::new(name).ok_or_else(|| format!("{name:?} is no name of a replica"));
    Ok(Record {
        epoch: Epoch(text.epoch),
        holder: holder(text.holder.as_ref())?,
        previous: holder(text.previous.as_ref())?,
        in_sync: text.in_sync.iter().map(member).collect::<Result<_, _>>()?,
        generation: Generation(text.generation),
        standby: text.standby.as_ref().map(|uid| holder(Some(uid))).transpose()?,
        released: text.released,
        alone: text.alone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_object_and_newer_ones_are_refused() {
        let mut record = Record::new(["v1-0001", "v1-0002"].map(|name| MemberId::new(name).unwrap()));
        record.epoch = Epoch(7);
        record.holder = Holder(5);
        record.standby = Some(Holder(6));
        record.alone = true;
        let text = write(&record);
        assert_eq!(read(text.clone()).unwrap(), record);
        let mut newer = text.clone();
        newer["version"] = 2.into();
        assert!(read(newer).unwrap_err().contains("use a newer one"));
        let mut nameless = text;
        nameless["inSync"] = serde_json::json!([""]);
        assert!(read(nameless).unwrap_err().contains("no name of a replica"));
    }
}
