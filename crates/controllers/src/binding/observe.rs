//! Which claims and volumes a change concerns, and what there is to know about them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ListParams};
use tether_plan::binding::claim::Observed;
use tether_plan::binding::{claim_class, claim_ref, is_fully_bound, names_class, volume_class, volume_name};
use tether_plan::object::{is_deleting, key, name, namespace, uid};
use tether_plan::pod::{claim_names, node_name};

use super::Key;
use crate::cache::Seen;
use crate::context::{Context, pods_of_claim, volumes_of_claim};
use crate::queue::Queue;
use crate::write::WriteError;

/// Puts into the queue what a change concerns.
pub(super) fn subscribe(context: &Arc<Context>, queue: &Arc<Queue<Key>>) {
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.claims.subscribe(move |seen| {
        let claim = seen.object();
        out.add(Key::Claim(namespace(claim).to_owned(), name(claim).to_owned()));
        if !volume_name(claim).is_empty() {
            out.add(Key::Volume(volume_name(claim).to_owned()));
        }
        if let (Seen::Deleted(_), Some(context)) = (seen, weak.upgrade()) {
            for volume in context.volumes.find(&volumes_of_claim(namespace(claim), name(claim))) {
                out.add(Key::Volume(name(&*volume).to_owned()));
            }
        }
    });
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.volumes.subscribe(move |seen| {
        let volume = seen.object();
        out.add(Key::Volume(name(volume).to_owned()));
        if let Some(reference) = claim_ref(volume) {
            let part = |field: &Option<String>| field.clone().unwrap_or_default();
            out.add(Key::Claim(part(&reference.namespace), part(&reference.name)));
        }
        let class = volume_class(volume);
        let wants = |c: &PersistentVolumeClaim| volume_name(c) == name(volume) || claim_class(c) == class;
        add_unbound(weak.upgrade().as_deref(), &out, wants);
    });
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.classes.subscribe(move |seen| {
        let class = name(seen.object());
        add_unbound(weak.upgrade().as_deref(), &out, |c| claim_class(c) == class || !names_class(c));
    });
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.pods.subscribe(move |seen| {
        let pod = seen.object();
        let Some(context) = weak.upgrade() else {
            return;
        };
        for claim in claim_names(pod) {
            // A bound claim cares for its pods only once it is being deleted.
            let concerned = |c: &PersistentVolumeClaim| !is_fully_bound(c) || is_deleting(c);
            if context.claims.get(namespace(pod), &claim).is_some_and(|c| concerned(&c)) {
                out.add(Key::Claim(namespace(pod).to_owned(), claim));
            }
        }
    });
}

fn add_unbound(context: Option<&Context>, queue: &Queue<Key>, wanted: impl Fn(&PersistentVolumeClaim) -> bool) {
    let claims = context.map(|context| context.claims.list()).unwrap_or_default();
    for claim in claims.iter().filter(|claim| !is_fully_bound(claim) && wanted(claim)) {
        queue.add(Key::Claim(namespace(&**claim).to_owned(), name(&**claim).to_owned()));
    }
}

/// A claim, and everything that it could be bound to.
pub(super) struct ClaimView {
    pub(super) claim: Arc<PersistentVolumeClaim>,
    volumes: Vec<Arc<PersistentVolume>>,
    classes: Vec<Arc<StorageClass>>,
    waiting_pods: Vec<String>,
}

impl ClaimView {
    /// `None` if the claim is gone.
    pub(super) fn of(context: &Context, namespace: &str, name: &str) -> Option<Self> {
        let claim = context.claims.get(namespace, name)?;
        // A bound claim needs its own volume only.
        let volumes = match volume_name(&claim) {
            "" => context.volumes.list(),
            volume => context.volumes.get("", volume).into_iter().collect(),
        };
        let pods = context.pods.find(&pods_of_claim(namespace, name));
        let waiting = pods.iter().filter(|pod| node_name(pod).is_empty());
        let waiting_pods = waiting.map(|pod| pod.metadata.name.clone().unwrap_or_default()).collect();
        Some(Self { claim, volumes, classes: context.classes.list(), waiting_pods })
    }

    pub(super) fn observed(&self) -> Observed<'_> {
        Observed {
            claim: &self.claim,
            volumes: self.volumes.iter().map(AsRef::as_ref).collect(),
            classes: self.classes.iter().map(AsRef::as_ref).collect(),
            waiting_pods: self.waiting_pods.clone(),
        }
    }
}

/// The claim that a volume points to, if it was seen with the right uid.
pub(super) fn claim_of(context: &Context, volume: &PersistentVolume) -> Option<Arc<PersistentVolumeClaim>> {
    let reference = claim_ref(volume)?;
    let found = context.claims.get(reference.namespace.as_deref()?, reference.name.as_deref()?)?;
    (Some(uid(&*found)) == reference.uid.as_deref()).then_some(found)
}

/// The same by the API server's word.
pub(super) async fn live_claim(
    context: &Context,
    namespace: &str,
    name: &str,
    volume: &PersistentVolume,
) -> Result<Option<PersistentVolumeClaim>, WriteError> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(|e| WriteError::of(format!("get claim {namespace}/{name}"), e))?;
    let wanted = claim_ref(volume).and_then(|r| r.uid.as_deref());
    Ok(found.filter(|claim| Some(uid(claim)) == wanted))
}

/// The pods that use a claim, by the API server's word.
pub(super) async fn users(context: &Context, namespace: &str, claim: &str) -> Result<Vec<Pod>, WriteError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let pods = api.list(&ListParams::default()).await;
    let pods = pods.map_err(|e| WriteError::of(format!("list pods of {namespace}"), e))?;
    let uses = |pod: &Pod| claim_names(pod).iter().any(|name| name == claim);
    let users: Vec<Pod> = pods.items.into_iter().filter(uses).collect();
    tracing::debug!(claim, users = ?users.iter().map(key).collect::<Vec<_>>(), "asked for users");
    Ok(users)
}
