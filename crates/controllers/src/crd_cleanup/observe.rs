//! Definitions that are being deleted, and their instances as they go.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use parking_lot::Mutex;

use crate::context::Context;
use crate::kinds::Sighting;
use crate::write::WriteError;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// The names of definitions that are being deleted.
#[derive(Default)]
pub(super) struct Ending {
    names: Mutex<BTreeSet<String>>,
}

impl Ending {
    /// The definition that a sighting makes worth a look.
    pub(super) fn saw(&self, sighting: &Sighting<'_>) -> Option<String> {
        let mut names = self.names.lock();
        let (Sighting::Applied { resource, meta } | Sighting::Deleted { resource, meta }) = sighting else {
            // Instances may have gone unseen.
            let Sighting::Relisted { resource, .. } = sighting else {
                return None;
            };
            return names.get(&format!("{}.{}", resource.plural, resource.group)).cloned();
        };
        if resource.group == GROUP && resource.plural == PLURAL {
            let name = meta.name.clone()?;
            if matches!(sighting, Sighting::Deleted { .. }) {
                names.remove(&name);
                return None;
            }
            return meta.deletion_timestamp.is_some().then(|| {
                names.insert(name.clone());
                name
            });
        }
        let gone = matches!(sighting, Sighting::Deleted { .. });
        let definition = format!("{}.{}", resource.plural, resource.group);
        (gone && names.contains(&definition)).then_some(definition)
    }
}

/// The definition as it is.
pub(super) async fn definition(context: &Context, name: &str) -> Result<Option<CustomResourceDefinition>, WriteError> {
    let api: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    api.get_opt(name).await.map_err(|e| WriteError::of(format!("get definition {name}"), e))
}
