//! The ConfigMaps and Secrets that a pod's environment comes from.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tether_plan::kubelet::{Sources, references};

/// Reads them; what does not exist, or may not be read by this node, is left out.
pub(super) async fn read(client: &Client, pod: &Pod) -> kube::Result<Sources> {
    let wanted = references(pod);
    let namespace = pod.namespace().unwrap_or_default();
    let mut found = Sources::default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    for name in wanted.config_maps {
        if let Some(map) = existing(maps.get_opt(&name).await)? {
            found.config_maps.insert(name, map.data.unwrap_or_default());
        }
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    for name in wanted.secrets {
        if let Some(secret) = existing(secrets.get_opt(&name).await)? {
            let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
            found.secrets.insert(name, data);
        }
    }
    Ok(found)
}

/// A node is refused what no pod of its own uses; the server may not have seen yet that this one does.
fn existing<T>(result: kube::Result<Option<T>>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        other => other,
    }
}
