//! From a pod to the volumes that it wants: its claims and their volumes are read when it is looked at.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tether_plan::binding::volume_name;
use tether_plan::kubelet::volume::claim::claim_of;
use tether_plan::kubelet::volume::{Found, Purpose, Wanted, find, purposes};
use tether_plan::kubelet::{Obstacle, Unmounted};
use tether_plan::object::uid;

use super::Volumes;

impl Volumes {
    /// Which volumes of drivers a pod wants, and what keeps others from being found.
    pub async fn resolve(&self, pod: &Pod) -> kube::Result<(Vec<Wanted>, Vec<Unmounted>)> {
        let (mut wanted, mut stuck) = (Vec::new(), Vec::new());
        let node = self.own_node().unwrap_or_default();
        for (volume, purpose) in purposes(pod) {
            let found = match claim_of(pod, volume) {
                Some(claim) => read(&self.client, pod, volume, purpose, &claim, &node).await?,
                None if volume.csi.is_some() => Err(INLINE.to_owned()),
                None => continue,
            };
            match found {
                Ok(found) => wanted.push(found),
                Err(why) => {
                    stuck.push(Unmounted { volume: volume.name.clone(), why, obstacle: Obstacle::Claim });
                }
            }
        }
        Ok((wanted, stuck))
    }

    /// Why volumes of the pod are not mounted; nothing if all are.
    pub async fn unmounted(&self, pod: &Arc<Pod>) -> kube::Result<Vec<Unmounted>> {
        let (wanted, mut unmounted) = self.resolve(pod).await?;
        self.want(pod, wanted.clone());
        self.followed.follow(&self.client, &self.this, uid(&**pod), &wanted);
        unmounted.extend(self.obstacles(uid(&**pod), &wanted));
        Ok(unmounted)
    }
}

/// Volumes that a driver makes for one pod are for drivers that say so; none here does.
const INLINE: &str =
    "inline volumes of CSI drivers are not supported by this node: use a claim, or an ephemeral volume";

async fn read(
    client: &Client,
    pod: &Pod,
    volume: &Volume,
    purpose: Purpose,
    claim: &str,
    node: &Node,
) -> kube::Result<Result<Wanted, String>> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claim = existing(claims.get_opt(claim).await)?;
    let bound = claim.as_ref().map(volume_name).filter(|name| !name.is_empty());
    let held = match bound {
        Some(name) => existing(volumes.get_opt(name).await)?,
        None => None,
    };
    let found = find(pod, volume, purpose, &Found { claim: claim.as_ref(), volume: held.as_ref(), node });
    Ok(found.map_err(|error| error.to_string()))
}

/// A node is refused what no pod of its own uses; the server may not have seen yet that this one does.
pub(super) fn existing<T>(result: kube::Result<Option<T>>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        other => other,
    }
}
