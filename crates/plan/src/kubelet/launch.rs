//! What a container executes: its command, arguments and environment, put together as Kubernetes says.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod};

/// Where programs are found if the container does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a container is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Name and value, in order.
    pub env: Vec<(String, String)>,
    pub working_dir: Option<String>,
    /// It acts on the node itself, in the node's own mount namespace: privileged and with the host's processes.
    pub on_host: bool,
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// Further groups: those of the pod, and the one of its volumes.
    pub groups: Vec<u32>,
    /// What it sees of the pod's volumes, and where; outer paths come first.
    pub mounts: Vec<Mount>,
    /// It sees every device of the host.
    pub all_devices: bool,
}

/// A volume of the pod, as a container sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// Where, in the container.
    pub path: String,
    pub volume: String,
    /// The part of it that is shown.
    pub sub_path: Option<String>,
    pub read_only: bool,
    /// As a block device, not as a file system.
    pub device: bool,
}

/// Why a container cannot be run as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    #[error("{kind} {name:?} not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error("the value of {key} in Secret {name:?} is no text")]
    NotText { name: String, key: String },
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("env {0}: this source of a value is not supported")]
    Unsupported(String),
    #[error("volumeMount {path}: subPath {sub_path:?} must be relative and must not contain '..'")]
    SubPath { path: String, sub_path: String },
}

/// The objects that a pod's environment comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

/// Those objects; what is not in here does not exist.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, BTreeMap<String, String>>,
    pub secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

/// What has to be looked up before [`launch`].
pub fn references(pod: &Pod) -> References {
    let mut found = References::default();
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    for container in containers {
        for from in container.env_from.iter().flatten() {
            found.config_maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
            found.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|var| var.value_from.as_ref()) {
            found.config_maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
            found.secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
    found
}

/// How to run a container of the pod on a node with this address.
pub fn launch(pod: &Pod, container: &Container, address: &str, sources: &Sources) -> Result<Launch, LaunchError> {
    let mut env = Environment::new(pod, address, sources);
    env.set("PATH", PATH.to_owned());
    env.set("HOSTNAME", pod.metadata.name.clone().unwrap_or_default());
    env.add_sets(container)?;
    for var in container.env.iter().flatten() {
        env.add(var, container)?;
    }
    let arguments = container.command.iter().flatten().chain(container.args.iter().flatten());
    let argv = arguments.map(|text| expand(text, &env.values)).collect();
    let mounts = mounts(container, &env.values)?;
    let context = container.security_context.as_ref();
    let pod_spec = pod.spec.as_ref();
    let pod_context = pod_spec.and_then(|spec| spec.security_context.as_ref());
    let id = |own: Option<i64>, pods: Option<i64>| own.or(pods).and_then(|id| u32::try_from(id).ok());
    let privileged = context.and_then(|context| context.privileged).unwrap_or_default();
    Ok(Launch {
        argv,
        env: env.in_order(),
        working_dir: container.working_dir.clone().filter(|dir| !dir.is_empty()),
        // With volumes at paths of its own it cannot be in the node's mount namespace.
        on_host: privileged && mounts.is_empty() && pod_spec.and_then(|spec| spec.host_pid).unwrap_or_default(),
        mounts,
        all_devices: privileged,
        groups: pod_context
            .map(|context| context.supplemental_groups.iter().flatten().chain(&context.fs_group))
            .into_iter()
            .flatten()
            .filter_map(|group| u32::try_from(*group).ok())
            .collect(),
        user: id(context.and_then(|c| c.run_as_user), pod_context.and_then(|c| c.run_as_user)),
        group: id(context.and_then(|c| c.run_as_group), pod_context.and_then(|c| c.run_as_group)),
    })
}

/// Where the container sees what.
fn mounts(container: &Container, values: &BTreeMap<String, String>) -> Result<Vec<Mount>, LaunchError> {
    let mut all = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let expression = mount.sub_path_expr.as_ref().filter(|text| !text.is_empty());
        let sub_path = expression.map(|text| expand(text, values)).or_else(|| mount.sub_path.clone());
        let sub_path = sub_path.filter(|text| !text.is_empty());
        if let Some(sub_path) =
            sub_path.as_ref().filter(|sub| sub.starts_with('/') || sub.split('/').any(|s| s == ".."))
        {
            return Err(LaunchError::SubPath { path: mount.mount_path.clone(), sub_path: sub_path.clone() });
        }
        all.push(Mount {
            path: mount.mount_path.clone(),
            volume: mount.name.clone(),
            sub_path,
            read_only: mount.read_only.unwrap_or_default(),
            device: false,
        });
    }
    all.extend(container.volume_devices.iter().flatten().map(|device| Mount {
        path: device.device_path.clone(),
        volume: device.name.clone(),
        sub_path: None,
        read_only: false,
        device: true,
    }));
    all.sort();
    Ok(all)
}

/// What there is under a key of an object.
enum Found {
    Nothing,
    NoKey,
    Value(String),
}

struct Environment<'a> {
    pod: &'a Pod,
    address: &'a str,
    sources: &'a Sources,
    names: Vec<String>,
    values: BTreeMap<String, String>,
}

impl<'a> Environment<'a> {
    fn new(pod: &'a Pod, address: &'a str, sources: &'a Sources) -> Self {
        Self { pod, address, sources, names: Vec::new(), values: BTreeMap::new() }
    }

    fn set(&mut self, name: &str, value: String) {
        if self.values.insert(name.to_owned(), value).is_none() {
            self.names.push(name.to_owned());
        }
    }

    fn in_order(mut self) -> Vec<(String, String)> {
        let values = &mut self.values;
        self.names
            .into_iter()
            .map(|name| (values.remove(&name).unwrap_or_default(), name))
            .map(|(v, n)| (n, v))
            .collect()
    }

    /// Whole ConfigMaps and Secrets.
    fn add_sets(&mut self, container: &Container) -> Result<(), LaunchError> {
        for from in container.env_from.iter().flatten() {
            let prefix = from.prefix.clone().unwrap_or_default();
            if let Some(source) = &from.config_map_ref {
                match self.sources.config_maps.get(&source.name) {
                    Some(data) => data.iter().for_each(|(k, v)| self.set(&format!("{prefix}{k}"), v.clone())),
                    None if source.optional == Some(true) => {}
                    None => return Err(LaunchError::Missing { kind: "configmap", name: source.name.clone() }),
                }
            }
            if let Some(source) = &from.secret_ref {
                let Some(data) = self.sources.secrets.get(&source.name) else {
                    if source.optional == Some(true) {
                        continue;
                    }
                    return Err(LaunchError::Missing { kind: "secret", name: source.name.clone() });
                };
                for (key, value) in data {
                    let value = secret_text(&source.name, key, value)?;
                    self.set(&format!("{prefix}{key}"), value);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, var: &EnvVar, container: &Container) -> Result<(), LaunchError> {
        let value = match (&var.value, &var.value_from) {
            (_, Some(source)) => self.look_up(var, source, container)?,
            (value, None) => Some(expand(value.as_deref().unwrap_or_default(), &self.values)),
        };
        if let Some(value) = value {
            self.set(&var.name, value);
        }
        Ok(())
    }

    fn look_up(
        &self,
        var: &EnvVar,
        source: &EnvVarSource,
        container: &Container,
    ) -> Result<Option<String>, LaunchError> {
        if let Some(field) = &source.field_ref {
            return self.field(&field.field_path).map(Some);
        }
        if let Some(reference) = &source.config_map_key_ref {
            let (name, key) = (&reference.name, &reference.key);
            let found = match self.sources.config_maps.get(name) {
                Some(data) => data.get(key).cloned().map_or(Found::NoKey, Found::Value),
                None => Found::Nothing,
            };
            return self.found("ConfigMap", name, key, reference.optional, found);
        }
        if let Some(reference) = &source.secret_key_ref {
            let (name, key) = (&reference.name, &reference.key);
            let found = match self.sources.secrets.get(name).map(|data| data.get(key)) {
                Some(Some(value)) => Found::Value(secret_text(name, key, value)?),
                Some(None) => Found::NoKey,
                None => Found::Nothing,
            };
            return self.found("Secret", name, key, reference.optional, found);
        }
        if let Some(reference) = &source.resource_field_ref {
            return resource(container, &reference.resource)
                .map(Some)
                .ok_or_else(|| LaunchError::Unsupported(var.name.clone()));
        }
        Err(LaunchError::Unsupported(var.name.clone()))
    }

    fn found(
        &self,
        kind: &'static str,
        name: &str,
        key: &str,
        optional: Option<bool>,
        found: Found,
    ) -> Result<Option<String>, LaunchError> {
        match found {
            Found::Value(value) => Ok(Some(value)),
            Found::Nothing | Found::NoKey if optional == Some(true) => Ok(None),
            Found::Nothing => {
                let kind = if kind == "Secret" { "secret" } else { "configmap" };
                Err(LaunchError::Missing { kind, name: name.to_owned() })
            }
            Found::NoKey => {
                let namespace = self.pod.metadata.namespace.clone().unwrap_or_default();
                Err(LaunchError::MissingKey { kind, namespace, name: name.to_owned(), key: key.to_owned() })
            }
        }
    }

    fn field(&self, path: &str) -> Result<String, LaunchError> {
        match path {
            "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => Ok(self.address.to_owned()),
            other => field(self.pod, other),
        }
    }
}

/// A field of a pod, as its environment and its volumes see it.
pub fn field(pod: &Pod, path: &str) -> Result<String, LaunchError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let entry = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
    };
    let key_of = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    if let Some(key) = key_of("metadata.labels['") {
        return Ok(entry(&meta.labels, key));
    }
    if let Some(key) = key_of("metadata.annotations['") {
        return Ok(entry(&meta.annotations, key));
    }
    let text = |value: Option<String>| Ok(value.unwrap_or_default());
    let lines = |map: &Option<BTreeMap<String, String>>| {
        let lines = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    };
    match path {
        "metadata.name" => text(meta.name.clone()),
        "metadata.namespace" => text(meta.namespace.clone()),
        "metadata.uid" => text(meta.uid.clone()),
        "metadata.labels" => lines(&meta.labels),
        "metadata.annotations" => lines(&meta.annotations),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.clone())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.clone())),
        other => Err(LaunchError::Field(other.to_owned())),
    }
}

fn secret_text(name: &str, key: &str, value: &[u8]) -> Result<String, LaunchError> {
    let text = String::from_utf8(value.to_vec());
    text.map_err(|_| LaunchError::NotText { name: name.to_owned(), key: key.to_owned() })
}

/// A limit or request of the container, as it is written.
fn resource(container: &Container, path: &str) -> Option<String> {
    let resources = container.resources.as_ref()?;
    let (kind, name) = path.split_once('.')?;
    let map = match kind {
        "limits" => resources.limits.as_ref()?,
        "requests" => resources.requests.as_ref()?,
        _ => return None,
    };
    map.get(name).map(|quantity| quantity.0.clone())
}

/// Replaces `$(NAME)` by the variable's value if there is one; `$$(NAME)` stays, without one of its dollars.
fn expand(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        let name = tail.strip_prefix("$(").and_then(|inner| inner.split_once(')'));
        if let Some(escaped) = tail.strip_prefix("$$") {
            out.push('$');
            rest = escaped;
        } else if let Some((name, after)) = name {
            match values.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&tail[..tail.len() - after.len()]),
            }
            rest = after;
        } else {
            out.push('$');
            rest = &tail[1..];
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(container: Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "labels": {"app": "x"}},
            "spec": {"containers": [container], "nodeName": "node-1"},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn run(container: Value, sources: &Sources) -> Result<Launch, LaunchError> {
        let pod = pod(container);
        launch(&pod, &pod.spec.as_ref().unwrap().containers[0], "127.1.0.1", sources)
    }

    #[test]
    fn variables_are_expanded_as_kubernetes_does() {
        let values = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let table = [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A $", "$A $"),
            ("$(A", "$(A"),
        ];
        for (text, expected) in table {
            assert_eq!(expand(text, &values), expected, "{text}");
        }
    }

    #[test]
    fn the_environment_comes_from_everywhere_in_order() {
        let container = json!({
            "name": "app", "command": ["serve", "--node=$(NODE)"], "args": ["$(GREETING)"],
            "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "S_"}],
            "env": [
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
                {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k", "optional": true}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "GREETING", "value": "hello $(S_who) at $(IP)"},
            ],
            "resources": {"limits": {"cpu": "2"}},
        });
        let sources = Sources {
            config_maps: BTreeMap::from([("settings".into(), BTreeMap::from([("who".into(), "you".into())]))]),
            secrets: BTreeMap::from([("keys".into(), BTreeMap::from([("k".into(), b"s3".to_vec())]))]),
        };
        let found = run(container.clone(), &sources).unwrap();
        assert_eq!(found.argv, ["serve", "--node=node-1", "hello you at $(IP)"]);
        let env: Vec<_> = found.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = ["HOSTNAME=web", "S_who=you", "NODE=node-1", "APP=x", "KEY=s3", "CPU=2"];
        assert_eq!(env[1..7], expected);
        assert!(!found.on_host);
        let wanted = references(&pod(container.clone()));
        assert_eq!(wanted.secrets.into_iter().collect::<Vec<_>>(), ["keys", "no"]);
        assert_eq!(wanted.config_maps.into_iter().collect::<Vec<_>>(), ["settings"]);

        let error = run(container.clone(), &Sources::default()).unwrap_err();
        assert_eq!(error.to_string(), "configmap \"settings\" not found");
        let without_key = Sources { secrets: BTreeMap::from([("keys".into(), BTreeMap::new())]), ..sources };
        let error = run(container, &without_key).unwrap_err();
        assert_eq!(error.to_string(), "couldn't find key k in Secret ns/keys");
    }

    #[test]
    fn volumes_are_shown_outer_paths_first() {
        let container = json!({
            "name": "a", "command": ["x"], "env": [{"name": "N", "value": "one"}],
            "volumeMounts": [
                {"name": "data", "mountPath": "/data/inner", "subPathExpr": "dir-$(N)", "readOnly": true},
                {"name": "scratch", "mountPath": "/data"},
            ],
            "volumeDevices": [{"name": "raw", "devicePath": "/dev/xvda"}],
        });
        let found = run(container.clone(), &Sources::default()).unwrap().mounts;
        let shown: Vec<_> = found.iter().map(|m| format!("{} {} {:?}", m.path, m.volume, m.sub_path)).collect();
        assert_eq!(shown, ["/data scratch None", "/data/inner data Some(\"dir-one\")", "/dev/xvda raw None"]);
        assert!(found[1].read_only && found[2].device);
        let mut escaping = container;
        escaping["volumeMounts"][1]["subPath"] = json!("a/../../etc");
        let error = run(escaping, &Sources::default()).unwrap_err().to_string();
        assert!(error.contains("must not contain '..'"), "{error}");
    }

    #[test]
    fn only_privileged_pods_with_the_hosts_processes_act_on_the_node() {
        let container = json!({"name": "a", "command": ["x"], "securityContext": {"privileged": true, "runAsUser": 7}});
        let mut pod = pod(container);
        let of = |pod: &Pod| launch(pod, &pod.spec.as_ref().unwrap().containers[0], "", &Sources::default()).unwrap();
        assert!(!of(&pod).on_host);
        pod.spec.as_mut().unwrap().host_pid = Some(true);
        assert!(of(&pod).on_host);
        assert_eq!(of(&pod).user, Some(7));
    }
}
