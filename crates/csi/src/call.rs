//! Calls to a driver: with a deadline, measured, and with errors in the words that Kubernetes' users know.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Secret, SecretReference};
use kube::Client;
use kube::api::Api;
use tether_plan::attacher::Content;
use tonic::{Code, Request, Response, Status};

use crate::metrics::Calls;
use crate::proto::VolumeCapability;
use crate::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// Makes a call. The driver is told the deadline, and it is kept even if the driver does not.
pub(crate) async fn call<Q, A, F>(
    metrics: &Calls,
    method: &'static str,
    timeout: Duration,
    message: Q,
    make: impl FnOnce(Request<Q>) -> F,
) -> Result<A, Status>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    let started = Instant::now();
    let answer = match tokio::time::timeout(timeout, make(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        // The client's own timer, and its twin that cancels the stream, are the same as ours.
        Ok(Err(status)) if started.elapsed() >= timeout && is_timeout(status.code()) => Err(too_late()),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(too_late()),
    };
    let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
    metrics.observe(method, code, started.elapsed());
    answer
}

fn is_timeout(code: Code) -> bool {
    matches!(code, Code::Cancelled | Code::DeadlineExceeded)
}

fn too_late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// An error as Kubernetes' components print it, and as alerts match it.
pub(crate) fn words(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

/// A Secret that a call needs cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to load secret \"{name}\": {source}")]
pub(crate) struct SecretError {
    name: String,
    source: Box<kube::Error>,
}

/// What a Secret holds, as calls carry it; nothing if none is named.
pub(crate) async fn read_secret(
    client: &Client,
    secret: Option<&SecretReference>,
) -> Result<HashMap<String, String>, SecretError> {
    let Some(secret) = secret else { return Ok(HashMap::new()) };
    let (namespace, name) =
        (secret.namespace.as_deref().unwrap_or_default(), secret.name.as_deref().unwrap_or_default());
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let failed = |error| SecretError { name: format!("{namespace}/{name}"), source: Box::new(error) };
    let found = api.get(name).await.map_err(failed)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(found.data.into_iter().flatten().map(|(key, value)| (key, text(value.0))).collect())
}

/// How a volume is used, as calls carry it.
pub(crate) fn capability(content: &Content, mode: i32) -> VolumeCapability {
    let access_type = match content {
        Content::Block => AccessType::Block(BlockVolume {}),
        Content::Mount { fs_type, flags } => AccessType::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            volume_mount_group: String::new(),
        }),
    };
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode }) }
}
