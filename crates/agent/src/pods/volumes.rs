//! Which of a pod's volumes are not mounted yet, and why.
//!
//! What needs no driver needs nothing here: without containers, a ConfigMap or an emptyDir has nobody who would
//! read it. A claim must be bound, and a CSI volume needs a driver that is registered with this node; none can be
//! yet, so such a pod waits and says so.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tether_plan::kubelet::Unmounted;

/// Looks at every volume of `pod`.
pub(crate) async fn unmounted(client: &Client, pod: &Pod) -> kube::Result<Vec<Unmounted>> {
    let mut waiting = Vec::new();
    // A pod that is being deleted needs its volumes no more.
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(waiting);
    }
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        if let Some(why) = obstacle(client, pod, volume).await? {
            waiting.push(Unmounted { volume: volume.name.clone(), why });
        }
    }
    Ok(waiting)
}

async fn obstacle(client: &Client, pod: &Pod, volume: &Volume) -> kube::Result<Option<String>> {
    if let Some(csi) = &volume.csi {
        return Ok(Some(no_driver(&csi.driver)));
    }
    let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => source.claim_name.clone(),
        (None, Some(_)) => format!("{}-{}", pod.name_any(), volume.name),
        (None, None) => return Ok(None),
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let Some(claim) = claims.get_opt(&name).await? else {
        return Ok(Some(format!("persistentvolumeclaim {name:?} not found")));
    };
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let Some(volume_name) = claim.spec.and_then(|spec| spec.volume_name).filter(|_| bound) else {
        return Ok(Some(format!("persistentvolumeclaim {name:?} is not bound")));
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let Some(volume) = volumes.get_opt(&volume_name).await? else {
        return Ok(Some(format!("persistentvolume {volume_name:?} not found")));
    };
    Ok(volume.spec.and_then(|spec| spec.csi).map(|csi| no_driver(&csi.driver)))
}

fn no_driver(name: &str) -> String {
    format!("driver name {name} not found in the list of registered CSI drivers")
}
