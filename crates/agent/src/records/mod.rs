//! Fencing records in Volume objects: the API server is the arbiter.
//!
//! A record changes only by a JSON patch of the volume's status that tests the old record, so that writers of other
//! parts of the status are not in the way. What the server answers decides what is known:
//!
//! ```text
//!   read failed                      ─► never sent
//!   patched                          ─► applied
//!   the test failed (409, 422)       ─► certainly not applied: read again, judge again
//!   refused (4xx)                    ─► certainly not applied
//!   5xx, timeout, broken connection  ─► unknown: it may have happened, or may still
//! ```

mod convert;

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tether_crd::NAMESPACE;
use tether_engine::record::{Before, RecordStore, Records};
use tether_replication::engine::CasOutcome;
use tether_replication::record::{Change, Record};
use tokio::runtime::Handle;

/// How long one request may take. An engine that cannot shrink its set suspends what needs it, so that an answer after
/// the lease has run out helps nobody; a busy API server answers well within.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How often a change is judged anew because somebody else changed the record meanwhile. Only engines do, rarely.
const MAX_ATTEMPTS: usize = 16;

/// Why a request gave nothing.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("the API server did not answer within {REQUEST_LIMIT:?}")]
    Slow,
    #[error("{0}")]
    Kube(#[from] kube::Error),
}

impl RequestError {
    /// The HTTP status of an answer.
    fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status.code),
            Self::Kube(_) | Self::Slow => None,
        }
    }
}

/// Keeps the records of all volumes of a cluster.
pub struct VolumeRecords {
    client: Client,
    /// Requests are made from the threads of engines, and driven by this runtime.
    runtime: Handle,
}

impl VolumeRecords {
    /// Must be called inside the runtime that is to drive the requests.
    pub fn new(client: Client) -> Self {
        Self { client, runtime: Handle::current() }
    }
}

impl Records for VolumeRecords {
    fn open(&self, volume: &str, wish: &str) -> Result<Box<dyn RecordStore>, String> {
        if !wish.is_empty() {
            return Err(format!("record: {wish:?} is a file, and records are kept in Volume objects here"));
        }
        let kind = ApiResource::erase::<tether_crd::Volume>(&());
        let api = Api::namespaced_with(self.client.clone(), NAMESPACE, &kind);
        let runtime = self.runtime.clone();
        Ok(Box::new(VolumeRecord { api, runtime, volume: volume.to_owned(), uid: Arc::default() }))
    }
}

/// The record of one volume.
struct VolumeRecord {
    api: Api<DynamicObject>,
    runtime: Handle,
    volume: String,
    /// Of the volume that was first seen: another one of the same name is none of ours.
    uid: Arc<OnceLock<String>>,
}

/// The volume as it is.
struct Seen {
    uid: String,
    version: String,
    has_status: bool,
    /// As the server has it, which is what a patch tests.
    text: Option<Value>,
    record: Option<Record>,
}

impl VolumeRecord {
    fn request<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
        let limited = async { tokio::time::timeout(REQUEST_LIMIT, request).await };
        Ok(self.runtime.block_on(limited).map_err(|_| RequestError::Slow)??)
    }

    fn see(&self) -> Result<Seen, String> {
        let object = self.request(self.api.get(&self.volume)).map_err(|error| error.to_string())?;
        let uid = object.metadata.uid.unwrap_or_default();
        let known = self.uid.get_or_init(|| uid.clone());
        if *known != uid {
            return Err(format!(
                "volume {:?} was deleted and made anew: it is not the one of this engine",
                self.volume
            ));
        }
        let text = object.data.pointer("/status/record").filter(|text| !text.is_null()).cloned();
        let record = text.clone().map(convert::read).transpose()?;
        let version = object.metadata.resource_version.unwrap_or_default();
        Ok(Seen { uid, version, has_status: object.data["status"].is_object(), text, record })
    }

    /// Writes the record if nobody changed what was seen.
    fn put(&self, seen: &Seen, next: &Record) -> Result<(), RequestError> {
        let value = convert::write(next);
        let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": seen.uid})];
        if let Some(text) = &seen.text {
            patch.push(json!({"op": "test", "path": "/status/record", "value": text}));
            patch.push(json!({"op": "replace", "path": "/status/record", "value": value}));
        } else {
            // A patch cannot test that there is nothing; that nothing at all has changed implies it.
            patch.push(json!({"op": "test", "path": "/metadata/resourceVersion", "value": seen.version}));
            patch.push(match seen.has_status {
                true => json!({"op": "add", "path": "/status/record", "value": value}),
                false => json!({"op": "add", "path": "/status", "value": {"record": value}}),
            });
        }
        let patch = serde_json::from_value(Value::Array(patch)).expect("this must be a patch");
        let patch: Patch<()> = Patch::Json(patch);
        self.request(self.api.patch_status(&self.volume, &PatchParams::default(), &patch)).map(drop)
    }
}

impl RecordStore for VolumeRecord {
    fn load(&self) -> Result<Option<Record>, String> {
        self.see().map(|seen| seen.record)
    }

    fn create(&self, record: &Record) -> Result<Record, String> {
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.see()?;
            if let Some(existing) = seen.record {
                return Ok(existing);
            }
            match self.put(&seen, record) {
                Ok(()) => return Ok(record.clone()),
                Err(error) if is_outrun(&error) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("others keep changing the volume".to_owned())
    }

    fn change(&self, change: &Change, before: Before<'_>) -> CasOutcome {
        for _ in 0..MAX_ATTEMPTS {
            let seen = match self.see() {
                Ok(seen) => seen,
                Err(why) => {
                    tracing::warn!(volume = self.volume, why, "the record cannot be reached");
                    return CasOutcome::NotSent;
                }
            };
            let Some(current) = seen.record.clone() else {
                tracing::error!(volume = self.volume, "the record is gone; put it back, or start anew");
                return CasOutcome::NotSent;
            };
            let next = match current.apply(change) {
                Ok(next) => next,
                Err(refusal) => return CasOutcome::Refused { refusal, current },
            };
            if let Err(why) = before(&current) {
                tracing::warn!(volume = self.volume, why, "the record is not changed");
                return CasOutcome::NotSent;
            }
            match self.put(&seen, &next) {
                Ok(()) => return CasOutcome::Applied(next),
                Err(error) if is_outrun(&error) => tracing::debug!(volume = self.volume, "judging the change anew"),
                Err(error) => {
                    tracing::warn!(volume = self.volume, %error, "the record could not be changed");
                    return outcome(error.code());
                }
            }
        }
        CasOutcome::NotSent
    }
}

/// Somebody else was faster: the test of the patch failed, or it did not fit any more.
fn is_outrun(error: &RequestError) -> bool {
    matches!(error.code(), Some(409 | 422))
}

/// What is known of a change that was answered with this status, or not at all.
fn outcome(code: Option<u16>) -> CasOutcome {
    match code {
        Some(400..=499) => CasOutcome::NotSent,
        _ => CasOutcome::Unknown,
    }
}

#[cfg(test)]
mod tests;
