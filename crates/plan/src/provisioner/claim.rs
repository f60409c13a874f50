//! Which volume a claim gets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeSpec, SecretReference, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tether_machinery::quantity::Quantity as Amount;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{ClaimChange, Create, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, Driver, FINALIZER, Origin};
use crate::Plan;
use crate::attacher::Content;
use crate::binding::{
    BETA_STORAGE_PROVISIONER, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, claim_class, reference_to,
    volume_name, waits_for_consumer,
};
use crate::event::Event;
use crate::object::{annotation, is_deleting, key, name, namespace, subject, uid};
use crate::secret::{self, PREFIX, Part};

const PROVISION: Rule = Rule("provision-volume");

/// What the decision looks at.
#[derive(Clone, Debug)]
pub struct ClaimObserved<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub class: Option<&'a StorageClass>,
    /// The node that the scheduler chose, and its drivers, if they were seen.
    pub node: Option<(&'a Node, &'a CSINode)>,
    /// What the volume is to begin with, or why that cannot be said yet.
    pub origin: Result<Option<Origin>, String>,
}

/// What the driver made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    pub handle: String,
    /// 0: as much as was asked for.
    pub bytes: i64,
    pub context: BTreeMap<String, String>,
    /// Where it can be reached from; empty: everywhere.
    pub topology: Vec<BTreeMap<String, String>>,
}

/// Decides whether a volume is to be made for the claim.
pub fn decide_claim(driver: &Driver, observed: &ClaimObserved<'_>) -> Plan<ClaimChange> {
    let mut plan = Plan::default();
    let claim = observed.claim;
    let about = || subject(claim);
    let by = annotation(claim, STORAGE_PROVISIONER).or_else(|| annotation(claim, BETA_STORAGE_PROVISIONER));
    if by != Some(driver.name.as_str()) {
        plan.rests(PROVISION, about(), Reason::OtherDriver, "The claim does not ask this driver.");
    } else if !volume_name(claim).is_empty() {
        plan.rests(PROVISION, about(), Reason::UpToDate, "The claim has its volume.");
    } else if is_deleting(claim) {
        plan.rests(PROVISION, about(), Reason::BeingDeleted, "The claim is being deleted.");
    } else if observed.class.is_none() {
        let words = format!("StorageClass {:?} is not known.", claim_class(claim));
        plan.blocked(PROVISION, about(), Reason::ObjectMissing, words);
    } else if waits_for_consumer(observed.class) && annotation(claim, SELECTED_NODE).is_none() {
        let words = "A pod that uses the claim has to be given a node first.";
        plan.blocked(PROVISION, about(), Reason::WaitForFirstConsumer, words);
    } else if let Some(class) = observed.class {
        match create(driver, observed, class) {
            Ok(call) => {
                let note = format!("External provisioner is provisioning volume for claim {:?}", key(claim));
                plan.tells(Event::normal(claim, Reason::Provisioning, note));
                let words = format!("Volume {} of {} bytes is to be made.", call.name, call.bytes);
                plan.acts(PROVISION, about(), Reason::Provisioning, words, ClaimChange::Create(Box::new(call)));
            }
            Err(words) => {
                let note = format!("failed to provision volume with StorageClass {:?}: {words}", name(class));
                plan.tells(Event::warning(claim, Reason::ProvisioningFailed, note));
                plan.blocked(PROVISION, about(), Reason::ProvisioningFailed, words);
            }
        }
    }
    plan
}

fn create(driver: &Driver, observed: &ClaimObserved<'_>, class: &StorageClass) -> Result<Create, String> {
    let claim = observed.claim;
    let spec = claim.spec.as_ref().ok_or("the claim has no spec")?;
    let origin = observed.origin.clone()?;
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let bytes = requests.and_then(|r| r.get("storage")).ok_or("the claim asks for no storage")?;
    let bytes = Amount::parse(&bytes.0).map_err(|error| error.to_string())?.value();
    let name = volume_of(claim);
    let modes: Result<Vec<i32>, String> =
        spec.access_modes.iter().flatten().map(|mode| access_mode(mode, driver)).collect();
    // What cannot be named later is not made now.
    SECRETS.iter().try_for_each(|kind| secret(class, claim, &name, kind).map(drop))?;
    let topology = match (driver.topology, observed.node) {
        (true, Some((node, drivers))) => segments(driver, node, drivers)?,
        _ => None,
    };
    Ok(Create {
        bytes,
        modes: modes?,
        content: content(driver, claim, class),
        parameters: parameters(class),
        secret: secret(class, claim, &name, "provisioner-secret")?,
        topology,
        origin,
        name,
    })
}

/// The name of a claim's volume, and of its object.
fn volume_of(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", uid(claim))
}

fn access_mode(mode: &str, driver: &Driver) -> Result<i32, String> {
    let single = driver.single_node_multi_writer;
    match mode {
        "ReadWriteOnce" => Ok(if single { 7 } else { 1 }),
        "ReadWriteOncePod" => Ok(if single { 6 } else { 1 }),
        "ReadOnlyMany" => Ok(3),
        "ReadWriteMany" => Ok(5),
        other => Err(format!("access mode {other:?} is not known")),
    }
}

fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref()) == Some("Block")
}

fn fs_type(driver: &Driver, class: &StorageClass) -> String {
    let all = class.parameters.iter().flatten();
    let named = |key: &str| key.to_lowercase() == "fstype" || key.to_lowercase() == format!("{PREFIX}fstype");
    let found = all.filter(|(key, value)| named(key) && !value.is_empty()).map(|(_, value)| value.clone()).next();
    found.unwrap_or_else(|| driver.default_fs_type.clone())
}

fn content(driver: &Driver, claim: &PersistentVolumeClaim, class: &StorageClass) -> Content {
    if is_block(claim) {
        return Content::Block;
    }
    Content::Mount { fs_type: fs_type(driver, class), flags: class.mount_options.clone().unwrap_or_default() }
}

/// The parameters that are the driver's.
pub(super) fn parameters(class: &StorageClass) -> BTreeMap<String, String> {
    let all = class.parameters.clone().unwrap_or_default();
    all.into_iter().filter(|(key, _)| !key.starts_with(PREFIX)).collect()
}

/// The calls that a class may name secrets for, besides making and deleting the volume.
const SECRETS: [&str; 5] = [
    "controller-publish-secret",
    "node-stage-secret",
    "node-publish-secret",
    "controller-expand-secret",
    "node-expand-secret",
];

/// A secret that the class names, with what it says of claim and volume filled in.
fn secret(
    class: &StorageClass,
    claim: &PersistentVolumeClaim,
    volume: &str,
    kind: &str,
) -> Result<Option<SecretReference>, String> {
    secret::named(class.parameters.as_ref(), kind, |part, word| match (part, word) {
        (_, "pv.name") => Some(volume.to_owned()),
        (_, "pvc.namespace") => Some(namespace(claim).to_owned()),
        (Part::Name, "pvc.name") => Some(name(claim).to_owned()),
        (Part::Name, other) => {
            let key = other.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            annotation(claim, key).map(ToOwned::to_owned)
        }
        _ => None,
    })
}

/// Where the chosen node is, in the words of the driver.
fn segments(driver: &Driver, node: &Node, drivers: &CSINode) -> Result<Option<BTreeMap<String, String>>, String> {
    let Some(registered) = drivers.spec.drivers.iter().find(|d| d.name == driver.name) else {
        return Err(format!("driver {} is not registered on node {}", driver.name, name(node)));
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let keys = registered.topology_keys.iter().flatten();
    let found: BTreeMap<String, String> =
        keys.filter_map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect();
    Ok((!found.is_empty()).then_some(found))
}

/// The object that describes a volume which was made for a claim.
pub fn persistent_volume(
    driver: &Driver,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    asked: &Create,
    made: &Made,
) -> PersistentVolume {
    let claim_spec = claim.spec.as_ref();
    let mut annotations = BTreeMap::from([(PROVISIONED_BY.to_owned(), driver.name.clone())]);
    let (secret_name, secret_namespace) =
        asked.secret.as_ref().map(|s| (s.name.clone(), s.namespace.clone())).unwrap_or_default();
    annotations.insert(DELETION_SECRET_NAME.to_owned(), secret_name.unwrap_or_default());
    annotations.insert(DELETION_SECRET_NAMESPACE.to_owned(), secret_namespace.unwrap_or_default());
    let bytes = if made.bytes > 0 { made.bytes } else { asked.bytes };
    let [controller_publish, node_stage, node_publish, controller_expand, node_expand] =
        SECRETS.map(|kind| secret(class, claim, &asked.name, kind).ok().flatten());
    let fs = match &asked.content {
        Content::Block => None,
        Content::Mount { fs_type, .. } => Some(fs_type.clone()).filter(|fs| !fs.is_empty()),
    };
    let csi = CSIPersistentVolumeSource {
        driver: driver.name.clone(),
        volume_handle: made.handle.clone(),
        fs_type: fs,
        volume_attributes: (!made.context.is_empty()).then(|| made.context.clone()),
        controller_publish_secret_ref: controller_publish,
        node_stage_secret_ref: node_stage,
        node_publish_secret_ref: node_publish,
        controller_expand_secret_ref: controller_expand,
        node_expand_secret_ref: node_expand,
        ..Default::default()
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(asked.name.clone()),
            annotations: Some(annotations),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..Default::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: claim_spec.and_then(|s| s.access_modes.clone()),
            capacity: Some([("storage".to_owned(), Quantity(binary(bytes)))].into()),
            claim_ref: Some(reference_to(claim)),
            csi: Some(csi),
            mount_options: class.mount_options.clone(),
            node_affinity: affinity(&made.topology),
            persistent_volume_reclaim_policy: Some(class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned())),
            storage_class_name: Some(name(class).to_owned()),
            volume_mode: claim_spec.and_then(|s| s.volume_mode.clone()),
            ..Default::default()
        }),
        status: None,
    }
}

/// A size as people write it: `64Mi`.
pub(crate) fn binary(bytes: i64) -> String {
    let units = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"];
    let scaled = (1..=6).rev().zip(units).map(|(power, unit)| (1_i64 << (10 * power), unit));
    let mut whole = scaled.filter(|(scale, _)| bytes != 0 && bytes % scale == 0);
    whole.next().map_or_else(|| bytes.to_string(), |(scale, unit)| format!("{}{unit}", bytes / scale))
}

/// The nodes that a volume can be reached from: any of the places, all segments of it.
fn affinity(places: &[BTreeMap<String, String>]) -> Option<VolumeNodeAffinity> {
    let term = |place: &BTreeMap<String, String>| {
        let requirement = |(key, value): (&String, &String)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".into(),
            values: Some(vec![value.clone()]),
        };
        NodeSelectorTerm { match_expressions: Some(place.iter().map(requirement).collect()), match_fields: None }
    };
    let terms: Vec<NodeSelectorTerm> = places.iter().filter(|place| !place.is_empty()).map(term).collect();
    if terms.is_empty() {
        return None;
    }
    Some(VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: terms }) })
}
