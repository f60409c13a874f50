//! Volumes that need no driver: directories of the pod, ConfigMaps, Secrets, tokens, paths of the host.
//!
//! They are made before the pod's containers start, in the pod's directory, and go with it. What is secret lies in
//! memory only.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccount, ServiceAccountTokenProjection, Volume,
    VolumeProjection,
};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tether_csi::mountinfo;
use tether_plan::kubelet::volume::purposes;
use tether_plan::kubelet::{Obstacle, Unmounted, field};
use tether_plan::object::uid;

use super::claims::existing;
use super::{Volumes, pod_dir};

/// The mode of files that nobody gave one.
const DEFAULT_MODE: i32 = 0o644;
/// What a token lives if nobody says how long.
const TOKEN_SECONDS: i64 = 3607;

/// Why a volume could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error("{kind} {name:?} not found")]
    Missing { kind: &'static str, name: String },
    #[error("{kind} {name:?} has no key {key:?}")]
    MissingKey { kind: &'static str, name: String, key: String },
    #[error("hostPath type check failed: {path} is not a {kind}")]
    HostPath { path: String, kind: String },
    #[error("path {0:?} must be relative and must not contain '..'")]
    Path(String),
    #[error("this kind of volume is not supported by this node")]
    Unsupported,
    #[error("{0}")]
    Field(String),
    #[error("{0}")]
    Object(#[from] kube::Error),
    #[error("{path}: {source}", path = path.display())]
    Host { path: PathBuf, source: io::Error },
}

fn host(path: &Path) -> impl FnOnce(io::Error) -> LocalError {
    move |source| LocalError::Host { path: path.to_owned(), source }
}

/// Files of a volume: relative path, mode, content.
type Files = Vec<(String, i32, Vec<u8>)>;

impl Volumes {
    /// Makes the volumes of a pod that need no driver; what keeps some from being made.
    pub async fn make_local(&self, pod: &Pod) -> Vec<Unmounted> {
        let mut stuck = Vec::new();
        for (volume, _) in purposes(pod) {
            if let Err(error) = self.make_one(pod, volume).await {
                let why = format!("MountVolume.SetUp failed for volume {:?} : {error}", volume.name);
                stuck.push(Unmounted { volume: volume.name.clone(), why, obstacle: Obstacle::Claim });
            }
        }
        stuck
    }

    async fn make_one(&self, pod: &Pod, volume: &Volume) -> Result<(), LocalError> {
        if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() || volume.csi.is_some() {
            return Ok(());
        }
        let Some(path) = path(&self.root, uid(pod), volume) else { return Err(LocalError::Unsupported) };
        let reader = Reader { client: &self.client, pod };
        if let Some(source) = &volume.host_path {
            return check_host_path(&source.path, source.type_.as_deref().unwrap_or_default());
        }
        if let Some(source) = &volume.empty_dir {
            let memory = source.medium.as_deref() == Some("Memory");
            let limit = source.size_limit.as_ref().map(|quantity| quantity.0.clone());
            make_dir(&path, 0o777)?;
            return if memory { in_memory(&path, limit.as_deref()) } else { Ok(()) };
        }
        let (files, secret) = if let Some(source) = &volume.config_map {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            (reader.config_map(&source.name, source.items.as_deref(), mode, source.optional).await?, false)
        } else if let Some(source) = &volume.secret {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            let name = source.secret_name.as_deref().unwrap_or_default();
            (reader.secret(name, source.items.as_deref(), mode, source.optional).await?, true)
        } else if let Some(source) = &volume.downward_api {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            (reader.fields(source.items.as_deref().unwrap_or_default(), mode)?, false)
        } else if let Some(source) = &volume.projected {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            (reader.projected(source.sources.as_deref().unwrap_or_default(), mode).await?, true)
        } else {
            return Err(LocalError::Unsupported);
        };
        make_dir(&path, 0o755)?;
        if secret {
            in_memory(&path, None)?;
        }
        write_files(&path, files)
    }
}

/// Where a volume without a driver is; `None` for one of a kind that there is not.
pub(crate) fn path(root: &Path, pod: &str, volume: &Volume) -> Option<PathBuf> {
    let kind = if let Some(source) = &volume.host_path {
        return Some(PathBuf::from(&source.path));
    } else if volume.empty_dir.is_some() {
        "kubernetes.io~empty-dir"
    } else if volume.config_map.is_some() {
        "kubernetes.io~configmap"
    } else if volume.secret.is_some() {
        "kubernetes.io~secret"
    } else if volume.downward_api.is_some() {
        "kubernetes.io~downward-api"
    } else if volume.projected.is_some() {
        "kubernetes.io~projected"
    } else {
        return None;
    };
    Some(pod_dir(root, pod).join("volumes").join(kind).join(&volume.name))
}

/// Removes a pod's directory with everything in it: what lies in memory is unmounted; if anything else is mounted there,
/// nothing is touched.
pub(crate) fn remove(root: &Path, pod: &str) -> io::Result<()> {
    let dir = pod_dir(root, pod);
    for mount in mountinfo::below(&dir)?.into_iter().rev() {
        if mount.fs_type != "tmpfs" {
            return Err(io::Error::other(format!("{} is mounted ({})", mount.point.display(), mount.fs_type)));
        }
        unmount(&mount.point, UnmountFlags::empty())?;
    }
    super::records::gone(fs::remove_dir_all(dir))
}

fn make_dir(path: &Path, mode: u32) -> Result<(), LocalError> {
    fs::create_dir_all(path).map_err(host(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(host(path))
}

/// Mounts a file system in memory, once.
fn in_memory(path: &Path, limit: Option<&str>) -> Result<(), LocalError> {
    if mountinfo::at(path).map_err(host(path))?.is_some() {
        return Ok(());
    }
    let bytes = limit.and_then(|text| text.parse::<tether_machinery::quantity::Quantity>().ok()).map(|q| q.value());
    let options = match bytes {
        Some(bytes) => format!("mode=0777,size={bytes}"),
        None => "mode=0755".to_owned(),
    };
    let options = std::ffi::CString::new(options).map_err(|error| host(path)(error.into()))?;
    let mounted = mount("tmpfs", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()));
    mounted.map_err(|error| host(path)(error.into()))
}

fn write_files(dir: &Path, files: Files) -> Result<(), LocalError> {
    for (name, mode, content) in files {
        if name.is_empty() || name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Err(LocalError::Path(name));
        }
        let path = dir.join(&name);
        fs::create_dir_all(path.parent().unwrap_or(dir)).map_err(host(&path))?;
        if fs::read(&path).is_ok_and(|held| held == content) {
            continue;
        }
        let staging = path.with_extension("tether-new");
        let mode = u32::try_from(mode).unwrap_or(0o600);
        let mut file = fs::OpenOptions::new();
        let mut file =
            file.write(true).create(true).truncate(true).mode(mode).open(&staging).map_err(host(&staging))?;
        io::Write::write_all(&mut file, &content).map_err(host(&staging))?;
        fs::set_permissions(&staging, fs::Permissions::from_mode(mode)).map_err(host(&staging))?;
        fs::rename(&staging, &path).map_err(host(&path))?;
    }
    Ok(())
}

fn check_host_path(path: &str, kind: &str) -> Result<(), LocalError> {
    let at = Path::new(path);
    match kind {
        "DirectoryOrCreate" if !at.exists() => return fs::create_dir_all(at).map_err(host(at)),
        "FileOrCreate" if !at.exists() => return fs::write(at, []).map_err(host(at)),
        _ => {}
    }
    let is = |check: fn(&fs::FileType) -> bool| fs::metadata(at).is_ok_and(|found| check(&found.file_type()));
    let (holds, word) = match kind {
        "" => (at.exists(), "path of this host"),
        "Directory" | "DirectoryOrCreate" => (is(fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(fs::FileType::is_file), "file"),
        "Socket" => (is(FileTypeExt::is_socket), "socket"),
        "CharDevice" => (is(FileTypeExt::is_char_device), "character device"),
        "BlockDevice" => (is(FileTypeExt::is_block_device), "block device"),
        other => return Err(LocalError::HostPath { path: path.to_owned(), kind: other.to_owned() }),
    };
    if holds { Ok(()) } else { Err(LocalError::HostPath { path: path.to_owned(), kind: word.to_owned() }) }
}

/// Reads what a pod's volumes are made of.
struct Reader<'a> {
    client: &'a Client,
    pod: &'a Pod,
}

impl Reader<'_> {
    fn namespace(&self) -> String {
        self.pod.namespace().unwrap_or_default()
    }

    async fn config_map(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<Files, LocalError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace());
        let found = existing(maps.get_opt(name).await)?;
        let data = found.map(|map| {
            let text = map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
            let binary = map.binary_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
            text.chain(binary).collect()
        });
        chosen("configmap", name, data, items, mode, optional)
    }

    async fn secret(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<Files, LocalError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace());
        let found = existing(secrets.get_opt(name).await)?;
        let data = found.map(|secret| secret.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)).collect());
        chosen("secret", name, data, items, mode, optional)
    }

    fn fields(&self, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<Files, LocalError> {
        let mut files = Files::new();
        for item in items {
            let path = item.field_ref.as_ref().map(|field| field.field_path.as_str()).unwrap_or_default();
            let value = field(self.pod, path).map_err(|error| LocalError::Field(error.to_string()))?;
            files.push((item.path.clone(), item.mode.unwrap_or(mode), value.into_bytes()));
        }
        Ok(files)
    }

    async fn projected(&self, sources: &[VolumeProjection], mode: i32) -> Result<Files, LocalError> {
        let mut files = Files::new();
        for source in sources {
            if let Some(map) = &source.config_map {
                files.extend(self.config_map(&map.name, map.items.as_deref(), mode, map.optional).await?);
            }
            if let Some(secret) = &source.secret {
                files.extend(self.secret(&secret.name, secret.items.as_deref(), mode, secret.optional).await?);
            }
            if let Some(fields) = &source.downward_api {
                files.extend(self.fields(fields.items.as_deref().unwrap_or_default(), mode)?);
            }
            if let Some(token) = &source.service_account_token {
                files.push((token.path.clone(), 0o644, self.token(token).await?.into_bytes()));
            }
            if source.cluster_trust_bundle.is_some() || source.pod_certificate.is_some() {
                return Err(LocalError::Unsupported);
            }
        }
        Ok(files)
    }

    /// A token of the pod's service account that dies with the pod.
    async fn token(&self, wanted: &ServiceAccountTokenProjection) -> Result<String, LocalError> {
        let account = self.pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let account = account.unwrap_or_else(|| "default".into());
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace());
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: wanted.audience.clone().into_iter().collect(),
                expiration_seconds: Some(wanted.expiration_seconds.unwrap_or(TOKEN_SECONDS)),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(self.pod.name_any()),
                    uid: self.pod.uid(),
                }),
            },
            ..Default::default()
        };
        let made = accounts.create_token_request(&account, &PostParams::default(), &request).await?;
        Ok(made.status.map(|status| status.token).unwrap_or_default())
    }
}

/// The keys that are wanted of an object, at their paths.
fn chosen(
    kind: &'static str,
    name: &str,
    data: Option<BTreeMap<String, Vec<u8>>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: Option<bool>,
) -> Result<Files, LocalError> {
    let optional = optional.unwrap_or_default();
    let Some(mut data) = data else {
        let missing = || LocalError::Missing { kind, name: name.to_owned() };
        return if optional { Ok(Files::new()) } else { Err(missing()) };
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data.into_iter().map(|(key, value)| (key, mode, value)).collect());
    };
    let mut files = Files::new();
    for item in items {
        match data.remove(&item.key) {
            Some(value) => files.push((item.path.clone(), item.mode.unwrap_or(mode), value)),
            None if optional => {}
            None => return Err(LocalError::MissingKey { kind, name: name.to_owned(), key: item.key.clone() }),
        }
    }
    Ok(files)
}
