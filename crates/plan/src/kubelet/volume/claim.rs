//! From a pod's volume by way of its claim to the volume of a driver: which one it is, and how it is to be used.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Container, Node, PersistentVolume, PersistentVolumeClaim, Pod, SecretReference, Volume,
};
use tether_machinery::quantity::Quantity;

use crate::attach_detach::unique_name;
use crate::attacher::{AccessMode, Content};
use crate::binding::{claim_phase, claim_ref, volume_name};
use crate::object::{has_finalizer, is_deleting, name, namespace, uid};
use crate::selector::matches_node_selector;

const RESIZE_PENDING: &str = "FileSystemResizePending";
const PVC_PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Why a volume of a pod cannot be mounted yet. The texts are a kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "error processing PVC {claim}: failed to fetch PVC from API server: persistentvolumeclaims {name:?} not found"
    )]
    NoClaim { claim: String, name: String },
    #[error("error processing PVC {claim}: PVC was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("error processing PVC {claim}: PVC is being deleted")]
    Deleted { claim: String },
    #[error("error processing PVC {claim}: PVC is not bound")]
    Unbound { claim: String },
    #[error(
        "error processing PVC {claim}: failed to fetch PV {volume} from API server: persistentvolumes {volume:?} not found"
    )]
    NoVolume { claim: String, volume: String },
    #[error(
        "error processing PVC {claim}: found PV object {volume} with nil pv.Spec.ClaimRef.UID or bound to another claim"
    )]
    OtherClaim { claim: String, volume: String },
    #[error("PersistentVolume {volume:?} is of a kind that this node cannot mount: it must have a csi source")]
    NotCsi { volume: String },
    #[error("volume {volume} has volumeMode Block, but is specified in volumeMounts")]
    BlockMounted { volume: String },
    #[error("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices")]
    FilesystemAsDevice { volume: String },
    #[error("no matching NodeSelectorTerms: the node affinity of PersistentVolume {volume:?} leaves this node out")]
    OtherNode { volume: String },
}

/// How the containers of a pod use one of its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purpose {
    pub mounted: bool,
    pub device: bool,
}

/// The volumes of a pod that its containers use, in the pod's order. Others are attached and never mounted.
pub fn purposes(pod: &Pod) -> Vec<(&Volume, Purpose)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let purpose = |name: &str| Purpose {
        mounted: containers().any(|c: &Container| c.volume_mounts.iter().flatten().any(|m| m.name == name)),
        device: containers().any(|c: &Container| c.volume_devices.iter().flatten().any(|d| d.name == name)),
    };
    let all = spec.volumes.iter().flatten().map(|volume| (volume, purpose(&volume.name)));
    all.filter(|(_, purpose)| purpose.mounted || purpose.device).collect()
}

/// A volume of a driver, and how a pod wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// As the pod calls it.
    pub volume: String,
    /// The PersistentVolume.
    pub persistent_volume: String,
    pub driver: String,
    pub handle: String,
    pub content: Content,
    /// The first of the volume's access modes, if it has one.
    pub access: Option<String>,
    /// No other pod may use it.
    pub alone: bool,
    pub read_only: bool,
    pub attributes: BTreeMap<String, String>,
    pub stage_secret: Option<(String, String)>,
    pub publish_secret: Option<(String, String)>,
    pub expand_secret: Option<(String, String)>,
    /// Namespace and name of the claim.
    pub claim: (String, String),
    pub capacity: Capacity,
}

/// How large the volume is, and how large its claim says that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub volume_bytes: i64,
    pub claim_bytes: i64,
    /// As the volume's object writes it.
    pub text: String,
}

impl Wanted {
    /// `kubernetes.io/csi/<driver>^<handle>`
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    pub fn is_block(&self) -> bool {
        self.content == Content::Block
    }

    /// Whether the file system has to follow the volume's growth.
    pub fn grows(&self) -> bool {
        !self.read_only && self.capacity.claim_bytes > 0 && self.capacity.volume_bytes > self.capacity.claim_bytes
    }

    /// The access mode in the driver's words; `refined` drivers tell the single-node modes apart.
    pub fn access_mode(&self, refined: bool) -> AccessMode {
        match (self.access.as_deref(), refined) {
            (Some("ReadOnlyMany"), _) => AccessMode::MultiNodeReaderOnly,
            (Some("ReadWriteMany"), _) => AccessMode::MultiNodeMultiWriter,
            (Some("ReadWriteOncePod"), true) => AccessMode::SingleNodeSingleWriter,
            (_, true) => AccessMode::SingleNodeMultiWriter,
            (_, false) => AccessMode::SingleNodeWriter,
        }
    }
}

/// What was read for one volume of a pod.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub claim: Option<&'a PersistentVolumeClaim>,
    pub volume: Option<&'a PersistentVolume>,
    pub node: &'a Node,
}

/// The claim that a volume of a pod is for; `None` for what needs none.
pub fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", name(pod), volume.name)),
        (None, None) => None,
    }
}

/// The volume behind a pod's claim, if it can be used.
pub fn find(pod: &Pod, volume: &Volume, purpose: Purpose, found: &Found<'_>) -> Result<Wanted, ClaimError> {
    let claim_name = claim_of(pod, volume).unwrap_or_default();
    let claim_key = format!("{}/{claim_name}", namespace(pod));
    let no_claim = || ClaimError::NoClaim { claim: claim_key.clone(), name: claim_name.clone() };
    let claim = found.claim.ok_or_else(no_claim)?;
    let owned = || claim.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid(pod));
    if volume.ephemeral.is_some() && !owned() {
        return Err(ClaimError::NotOwner { claim: claim_key, pod: format!("{}/{}", namespace(pod), name(pod)) });
    }
    if is_deleting(claim) && !has_finalizer(claim, PVC_PROTECTION) {
        return Err(ClaimError::Deleted { claim: claim_key });
    }
    if claim_phase(claim) != "Bound" || volume_name(claim).is_empty() {
        return Err(ClaimError::Unbound { claim: claim_key });
    }
    let persistent_volume = volume_name(claim).to_owned();
    let Some(held) = found.volume else {
        return Err(ClaimError::NoVolume { claim: claim_key, volume: persistent_volume });
    };
    if claim_ref(held).and_then(|reference| reference.uid.as_deref()) != Some(uid(claim)) {
        return Err(ClaimError::OtherClaim { claim: claim_key, volume: persistent_volume });
    }
    let spec = held.spec.as_ref();
    let Some((spec, csi)) = spec.and_then(|spec| Some((spec, spec.csi.as_ref()?))) else {
        return Err(ClaimError::NotCsi { volume: persistent_volume });
    };
    let block = spec.volume_mode.as_deref() == Some("Block");
    match (block, purpose) {
        (true, Purpose { mounted: true, .. }) => return Err(ClaimError::BlockMounted { volume: volume.name.clone() }),
        (false, Purpose { device: true, .. }) => {
            return Err(ClaimError::FilesystemAsDevice { volume: volume.name.clone() });
        }
        _ => {}
    }
    reachable(held, found.node)?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    Ok(Wanted {
        volume: volume.name.clone(),
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        content: content(csi, block, spec.mount_options.as_deref()),
        access: modes.first().cloned(),
        alone: modes.len() == 1 && modes[0] == "ReadWriteOncePod",
        read_only: volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only).unwrap_or_default(),
        attributes: csi.volume_attributes.clone().unwrap_or_default(),
        stage_secret: secret(csi.node_stage_secret_ref.as_ref()),
        publish_secret: secret(csi.node_publish_secret_ref.as_ref()),
        expand_secret: secret(csi.node_expand_secret_ref.as_ref()),
        claim: (namespace(pod).to_owned(), claim_name),
        capacity: capacity(held, claim),
        persistent_volume,
    })
}

fn content(csi: &CSIPersistentVolumeSource, block: bool, options: Option<&[String]>) -> Content {
    if block {
        return Content::Block;
    }
    Content::Mount {
        fs_type: csi.fs_type.clone().unwrap_or_default(),
        flags: options.map(<[String]>::to_vec).unwrap_or_default(),
    }
}

fn secret(reference: Option<&SecretReference>) -> Option<(String, String)> {
    let reference = reference?;
    Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().filter(|name| !name.is_empty())?))
}

fn capacity(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Capacity {
    let bytes = |text: Option<&str>| text.and_then(|text| text.parse::<Quantity>().ok()).map_or(0, |q| q.value());
    let of_volume = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    let of_claim = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    Capacity {
        volume_bytes: bytes(of_volume.map(|q| q.0.as_str())),
        claim_bytes: bytes(of_claim.map(|q| q.0.as_str())),
        text: of_volume.map(|quantity| quantity.0.clone()).unwrap_or_default(),
    }
}

/// Whether the claim's volume has grown and its file system has yet to follow, on the node that uses it.
pub fn awaits_node(claim: &PersistentVolumeClaim) -> bool {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|held| held.type_ == RESIZE_PENDING && held.status == "True")
}

/// Whether the volume's terms allow this node.
fn reachable(volume: &PersistentVolume, node: &Node) -> Result<(), ClaimError> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    match affinity {
        Some(selector) if !matches_node_selector(selector, node) => {
            Err(ClaimError::OtherNode { volume: name(volume).to_owned() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod() -> Pod {
        of(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
            "spec": {
                "containers": [{"name": "app", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}},
                    {"name": "unused", "emptyDir": {}},
                ],
            },
        }))
    }

    fn claim() -> PersistentVolumeClaim {
        of(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "c1"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }))
    }

    fn volume() -> PersistentVolume {
        of(json!({
            "metadata": {"name": "pv"},
            "spec": {
                "accessModes": ["ReadWriteOncePod"], "capacity": {"storage": "2Gi"}, "claimRef": {"uid": "c1"},
                "mountOptions": ["noatime"],
                "csi": {"driver": "d", "volumeHandle": "h", "fsType": "xfs",
                        "nodeStageSecretRef": {"name": "s", "namespace": "x"}},
            },
        }))
    }

    fn look(
        pod: &Pod,
        claim: Option<&PersistentVolumeClaim>,
        volume: Option<&PersistentVolume>,
    ) -> Result<Wanted, String> {
        let node: Node = of(json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}}));
        let (wanted, purpose) = purposes(pod)[0];
        find(pod, wanted, purpose, &Found { claim, volume, node: &node }).map_err(|error| error.to_string())
    }

    #[test]
    fn a_claim_leads_to_a_volume_and_how_it_is_used() {
        let pod = pod();
        assert_eq!(purposes(&pod).len(), 1, "what no container uses is not mounted");
        let found = look(&pod, Some(&claim()), Some(&volume())).unwrap();
        assert_eq!(found.unique_name(), "kubernetes.io/csi/d^h");
        assert_eq!(found.content, Content::Mount { fs_type: "xfs".into(), flags: vec!["noatime".into()] });
        assert!(found.read_only && found.alone && !found.grows(), "{found:?}");
        assert_eq!(found.stage_secret, Some(("x".into(), "s".into())));
        assert_eq!((found.capacity.volume_bytes, found.capacity.claim_bytes), (2 << 30, 1 << 30));
        assert_eq!(found.access_mode(true), AccessMode::SingleNodeSingleWriter);
        assert_eq!(found.access_mode(false), AccessMode::SingleNodeWriter);
        assert!(Wanted { read_only: false, ..found }.grows());
    }

    #[test]
    fn a_claim_says_that_its_file_system_has_to_follow() {
        let told = |kind: &str, status: &str| -> PersistentVolumeClaim {
            of(json!({"status": {"conditions": [{"type": kind, "status": status}]}}))
        };
        assert!(awaits_node(&told("FileSystemResizePending", "True")));
        assert!(!awaits_node(&told("FileSystemResizePending", "False")));
        assert!(!awaits_node(&told("Resizing", "True")), "the driver has yet to answer");
        assert!(!awaits_node(&claim()));
    }

    #[test]
    fn what_is_missing_is_told_in_a_kubelets_words() {
        let (pod, claim, volume) = (pod(), claim(), volume());
        let error = |claim: Option<&PersistentVolumeClaim>, volume: Option<&PersistentVolume>| {
            look(&pod, claim, volume).unwrap_err()
        };
        let no_claim =
            "error processing PVC ns/c: failed to fetch PVC from API server: persistentvolumeclaims \"c\" not found";
        assert_eq!(error(None, None), no_claim);
        let mut unbound = claim.clone();
        unbound.status.as_mut().unwrap().phase = Some("Pending".into());
        assert_eq!(error(Some(&unbound), None), "error processing PVC ns/c: PVC is not bound");
        let mut other = volume.clone();
        other.spec.as_mut().unwrap().claim_ref.as_mut().unwrap().uid = Some("c2".into());
        assert!(error(Some(&claim), Some(&other)).contains("bound to another claim"));
        let mut block = volume.clone();
        block.spec.as_mut().unwrap().volume_mode = Some("Block".into());
        let text = "volume data has volumeMode Block, but is specified in volumeMounts";
        assert_eq!(error(Some(&claim), Some(&block)), text);
        let mut far = volume;
        far.spec.as_mut().unwrap().node_affinity = Some(of(json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
        ]}})));
        assert!(error(Some(&claim), Some(&far)).starts_with("no matching NodeSelectorTerms"));
    }
}
