//! Settings that a cluster lacks, with their defaults: what is not there cannot be looked at or changed with kubectl.

use kube::Client;
use kube::api::{Api, PostParams};
use tether_crd::{NAMESPACE, Setting, settings};

use crate::longhorn::Longhorn;
use crate::write::code;

/// Makes the settings that are not there. Decisions take the default for what is missing, so that a failure is no obstacle.
pub(crate) async fn make_missing(client: &Client, longhorn: &Longhorn) {
    let api: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    for setting in settings::defaults() {
        let name = setting.metadata.name.clone().unwrap_or_default();
        if longhorn.settings.get(NAMESPACE, &name).is_some() {
            continue;
        }
        match api.create(&PostParams::default(), &setting).await {
            Ok(_) => tracing::info!(setting = name, "made with its default"),
            // Somebody else was faster.
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => tracing::warn!(setting = name, %error, "not made"),
        }
    }
}
