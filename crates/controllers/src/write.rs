//! Writes that are refused if what they were decided on has moved on.

use std::collections::HashMap;
use std::fmt::Debug;

use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_plan::object::Target;

/// Who the API server records as the author of the fields that controllers set.
pub const FIELD_MANAGER: &str = "tether-controllers";

/// Why a write or a read that a plan needed did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object changed or went; the decision is made again on what it is now.
    #[error("{operation}: the object has moved on")]
    Stale { operation: String },
    /// Some of it was refused; the object that it was for says what.
    #[error("{operation}: not finished")]
    Unfinished { operation: String },
    #[error("{operation}: {source}")]
    Refused {
        operation: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl WriteError {
    pub fn of(operation: impl Into<String>, source: kube::Error) -> Self {
        let operation = operation.into();
        match code(&source) {
            Some(404 | 409 | 410) => Self::Stale { operation },
            _ => Self::Refused { operation, source: Box::new(source) },
        }
    }
}

/// The HTTP status of an error that the API server sent.
pub fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The writes of one plan. Several may be for one object: each is fenced by the version that the one before it made.
#[derive(Default)]
pub struct Writes {
    versions: HashMap<String, String>,
}

impl Writes {
    /// Merges `body` into the object or its status.
    pub async fn patch<K>(
        &mut self,
        api: &Api<K>,
        target: &Target,
        part: Part,
        mut body: Value,
    ) -> Result<K, WriteError>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let version = self.versions.get(&target.uid).unwrap_or(&target.resource_version);
        body["metadata"]["uid"] = json!(target.uid);
        body["metadata"]["resourceVersion"] = json!(version);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        let patched = match part {
            Part::Object => api.patch(&target.name, &params, &Patch::Merge(&body)).await,
            Part::Status => api.patch_status(&target.name, &params, &Patch::Merge(&body)).await,
        };
        let patched = patched.map_err(|e| WriteError::of(format!("patch {} {target:?}", plural(api)), e))?;
        if let Some(version) = patched.resource_version() {
            self.versions.insert(target.uid.clone(), version);
        }
        Ok(patched)
    }

    /// Deletes the object if it is still the one that was meant; that it is gone already is as good.
    pub async fn delete<K>(
        &self,
        api: &Api<K>,
        target: &Target,
        params: DeleteParams,
        fence: Fence,
    ) -> Result<(), WriteError>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let version = self.versions.get(&target.uid).unwrap_or(&target.resource_version).clone();
        let preconditions = Preconditions {
            uid: Some(target.uid.clone()),
            resource_version: matches!(fence, Fence::Version).then_some(version),
        };
        match api.delete(&target.name, &params.preconditions(preconditions)).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(404) => Ok(()),
            Err(error) => Err(WriteError::of(format!("delete {} {target:?}", plural(api)), error)),
        }
    }
}

/// What a patch is for.
#[derive(Clone, Copy)]
pub enum Part {
    Object,
    Status,
}

/// What must not have changed for a delete to happen.
#[derive(Clone, Copy)]
pub enum Fence {
    /// The object itself: not another one of the same name.
    Uid,
    /// Anything about it.
    Version,
}

/// How an error names what it was about.
fn plural<K: Resource>(api: &Api<K>) -> &str {
    api.resource_url().rsplit('/').next().unwrap_or_default()
}
