//! Writes that change exactly what was meant: JSON patches that test what they change.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How often a write is made again that came too late: whoever is faster that often writes without an end.
const WRITE_ATTEMPTS: usize = 4;

/// Makes a JSON patch that tests what it changes. If the object has moved on, the patch is made anew for what it is now;
/// `None` if there is nothing to change.
pub(crate) async fn precisely<K>(
    api: &Api<K>,
    seen: &K,
    make: impl Fn(&ObjectMeta, &K) -> Option<Value>,
) -> Result<Option<K>, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut current: Option<Box<K>> = None;
    for attempt in 1.. {
        let object = current.as_deref().unwrap_or(seen);
        let Some(patch) = make(object.meta(), object) else { return Ok(None) };
        let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
        let patched = api.patch(&object.name_any(), &PatchParams::default(), &Patch::<()>::Json(patch)).await;
        match patched {
            Ok(written) => return Ok(Some(written)),
            Err(error) if attempt < WRITE_ATTEMPTS && has_moved_on(&error) => {
                let live = api.get(&seen.name_any()).await?;
                if live.uid() != seen.uid() {
                    return Err(error);
                }
                current = Some(Box::new(live));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A test of the patch failed, or the object changed while it was being written.
fn has_moved_on(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 409 | 422))
}

pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
