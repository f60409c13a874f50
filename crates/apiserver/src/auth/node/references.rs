//! What a pod or a volume refers to by name.

use serde_json::Value;

use crate::auth::text;

/// Volume types whose secret is named by `secretRef.name`.
const SECRET_REF_VOLUMES: [&str; 7] = ["cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"];

/// Every object that a pod's spec names, in the pod's own namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PodReferences<'a> {
    pub(crate) secrets: Vec<&'a str>,
    pub(crate) config_maps: Vec<&'a str>,
    /// By claim name; an ephemeral volume's claim is named after the pod and the volume.
    pub(crate) claims: Vec<String>,
    pub(crate) service_account: &'a str,
}

impl<'a> PodReferences<'a> {
    pub(crate) fn of(pod: &'a Value) -> Self {
        let mut references = Self { service_account: text(pod, "/spec/serviceAccountName"), ..Self::default() };
        for secret in list(pod, "/spec/imagePullSecrets") {
            references.secrets.push(text(secret, "/name"));
        }
        for containers in ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"] {
            list(pod, containers).for_each(|container| references.add_container(container));
        }
        for volume in list(pod, "/spec/volumes") {
            references.add_volume(volume, text(pod, "/metadata/name"));
        }
        references.secrets.retain(|name| !name.is_empty());
        references.config_maps.retain(|name| !name.is_empty());
        references
    }

    fn add_container(&mut self, container: &'a Value) {
        for source in list(container, "/envFrom") {
            self.secrets.push(text(source, "/secretRef/name"));
            self.config_maps.push(text(source, "/configMapRef/name"));
        }
        for variable in list(container, "/env") {
            self.secrets.push(text(variable, "/valueFrom/secretKeyRef/name"));
            self.config_maps.push(text(variable, "/valueFrom/configMapKeyRef/name"));
        }
    }

    fn add_volume(&mut self, volume: &'a Value, pod: &str) {
        self.secrets.push(text(volume, "/secret/secretName"));
        self.secrets.push(text(volume, "/azureFile/secretName"));
        self.secrets.push(text(volume, "/csi/nodePublishSecretRef/name"));
        self.config_maps.push(text(volume, "/configMap/name"));
        for kind in SECRET_REF_VOLUMES {
            let name = volume.get(kind).map(|source| text(source, "/secretRef/name"));
            self.secrets.extend(name);
        }
        for source in list(volume, "/projected/sources") {
            self.secrets.push(text(source, "/secret/name"));
            self.config_maps.push(text(source, "/configMap/name"));
        }
        let claim = text(volume, "/persistentVolumeClaim/claimName");
        if !claim.is_empty() {
            self.claims.push(claim.to_owned());
        } else if volume.get("ephemeral").is_some_and(|source| !source.is_null()) {
            self.claims.push(format!("{pod}-{}", text(volume, "/name")));
        }
    }
}

/// The secrets (namespace, name) of a volume that a node has to see, in order to stage and publish it.
pub(super) fn volume_secrets(volume: &Value) -> Vec<(&str, &str)> {
    let mut secrets = Vec::new();
    for reference in ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"] {
        let secret = volume.pointer("/spec/csi").and_then(|csi| csi.get(reference));
        secrets.extend(secret.map(|secret| (text(secret, "/namespace"), text(secret, "/name"))));
    }
    let claim_namespace = text(volume, "/spec/claimRef/namespace");
    for kind in SECRET_REF_VOLUMES {
        let secret = volume.get("spec").and_then(|spec| spec.get(kind)).and_then(|source| source.get("secretRef"));
        secrets.extend(secret.map(|secret| {
            let namespace = text(secret, "/namespace");
            (if namespace.is_empty() { claim_namespace } else { namespace }, text(secret, "/name"))
        }));
    }
    if let Some(azure) = volume.pointer("/spec/azureFile") {
        let namespace = text(azure, "/secretNamespace");
        let namespace = if namespace.is_empty() { claim_namespace } else { namespace };
        secrets.push((namespace, text(azure, "/secretName")));
    }
    secrets.retain(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    secrets
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}
