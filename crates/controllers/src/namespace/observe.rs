//! The namespace as it is: its deletion is too final for a cache.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;

use crate::context::Context;
use crate::write::WriteError;

pub(super) async fn namespace(context: &Context, name: &str) -> Result<Option<Namespace>, WriteError> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    api.get_opt(name).await.map_err(|e| WriteError::of(format!("get namespace {name}"), e))
}
