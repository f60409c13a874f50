//! The texts of events, as Kubernetes writes them.

use k8s_openapi::api::core::v1::Pod;

use super::Site;
use crate::object::{name, namespace};

pub(super) fn attach_succeeded(volume: &str) -> String {
    format!("AttachVolume.Attach succeeded for volume {volume:?} ")
}

pub(super) fn attach_failed(volume: &str, error: &str) -> String {
    format!("AttachVolume.Attach failed for volume {volume:?} : {error}")
}

/// Who has the volume; of pods in other namespaces only their number is told.
pub(super) fn waiting_for_detach(pod: &Pod, volume: &str, elsewhere: &[&Site<'_>]) -> String {
    let users = || elsewhere.iter().flat_map(|site| site.pods.iter().copied());
    let mut same: Vec<&str> = users().filter(|user| namespace(*user) == namespace(pod)).map(name).collect();
    same.sort_unstable();
    let others = users().count() - same.len();
    let who = match (same.is_empty(), others) {
        (true, 0) => {
            "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another \
             node"
                .to_owned()
        }
        (false, 0) => format!("Volume is already used by pod(s) {}", same.join(", ")),
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (false, _) => {
            format!("Volume is already used by pod(s) {} and {others} pod(s) in different namespaces", same.join(", "))
        }
    };
    format!("Waiting for detach for volume {volume:?} {who}")
}
