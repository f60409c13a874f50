//! The Longhorn Node of this node, and its disks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use tether_controllers::cache::Cache;
use tether_controllers::worker::{Reconcile, log};
use tether_controllers::write::{WriteError, code};
use tether_crd::node::{DiskSpec, DiskType, NodeSpec};
use tether_crd::settings::{STORAGE_RESERVED_PERCENTAGE_FOR_DEFAULT_DISK, Settings};
use tether_crd::{NAMESPACE, Node, Replica, Setting};
use tether_plan::disk::{Change, Found, Observed, decide};

use super::{Shared, disks};

/// Free space changes without anybody telling.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// Looks in a row: a disk that was named is looked at at once.
const MAX_LOOKS: usize = 3;

pub(super) struct Disks {
    shared: Arc<Shared>,
    nodes: Arc<Cache<Node>>,
    replicas: Arc<Cache<Replica>>,
    settings: Arc<Cache<Setting>>,
}

impl Disks {
    pub fn new(
        shared: Arc<Shared>,
        nodes: Arc<Cache<Node>>,
        replicas: Arc<Cache<Replica>>,
        settings: Arc<Cache<Setting>>,
    ) -> Arc<Self> {
        Arc::new(Self { shared, nodes, replicas, settings })
    }

    fn is_default(&self, path: &str) -> bool {
        Path::new(path) == self.shared.layout.default_disk
    }

    fn look(&self, spec: &DiskSpec) -> Result<Found, String> {
        disks::look(Path::new(&spec.path), self.is_default(&spec.path))
            .map_err(|error| format!("{}: {error}", spec.path))
    }

    /// Makes the node known, with a disk of its own.
    async fn register(&self, settings: &Settings) -> Result<(), WriteError> {
        let path = &self.shared.layout.default_disk;
        let failed =
            |error: std::io::Error| WriteError::Unfinished { operation: format!("{}: {error}", path.display()) };
        std::fs::create_dir_all(path).map_err(failed)?;
        let found = disks::look(path, true).map_err(failed)?;
        let percent = settings.number(STORAGE_RESERVED_PERCENTAGE_FOR_DEFAULT_DISK);
        let disk = DiskSpec {
            disk_type: DiskType::Filesystem,
            path: path.display().to_string(),
            allow_scheduling: true,
            storage_reserved: found.maximum / 100 * percent,
            ..DiskSpec::default()
        };
        let name = self.shared.node.clone();
        let mut node = Node {
            spec: NodeSpec {
                name: name.clone(),
                allow_scheduling: true,
                disks: BTreeMap::from([("default-disk".to_owned(), disk)]),
                ..NodeSpec::default()
            },
            ..Node::default()
        };
        node.metadata.name = Some(name);
        node.metadata.namespace = Some(NAMESPACE.to_owned());
        match self.shared.api::<Node>().create(&PostParams::default(), &node).await {
            Ok(made) => self.nodes.wrote(made),
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => return Err(WriteError::of("make the Longhorn Node", error)),
        }
        Ok(())
    }
}

impl Reconcile for Disks {
    type Key = ();
    const NAME: &'static str = "disks";

    async fn reconcile(&self, (): &()) -> Result<Option<Timestamp>, WriteError> {
        let settings = self.settings.list();
        let settings = Settings::of(settings.iter().map(AsRef::as_ref));
        for _ in 0..MAX_LOOKS {
            let Some(node) = self.nodes.get(NAMESPACE, &self.shared.node) else {
                self.register(&settings).await?;
                return Ok(Some(Timestamp::now() + LOOK_AGAIN));
            };
            let found: BTreeMap<_, _> =
                node.spec.disks.iter().map(|(disk, spec)| (disk.clone(), self.look(spec))).collect();
            let uuids = node.spec.disks.keys().map(|disk| (disk.clone(), uuid::Uuid::new_v4().to_string())).collect();
            let replicas = self.replicas.list();
            let observed = Observed {
                node: &node,
                found: &found,
                replicas: replicas.iter().map(AsRef::as_ref).collect(),
                settings: &settings,
                instance_manager: &self.shared.manager_name,
                new_uuids: &uuids,
            };
            let plan = decide(&observed, Timestamp::now());
            log(Self::NAME, &plan);
            let mut again = false;
            for change in plan.changes {
                match change {
                    Change::Name { disk, path, uuid } => {
                        let failed =
                            |error: std::io::Error| WriteError::Unfinished { operation: format!("{path}: {error}") };
                        disks::name(Path::new(&path), &disk, &uuid).map_err(failed)?;
                        again = true;
                    }
                    // A disk that was just named is looked at first.
                    Change::SetStatus { .. } if again => {}
                    Change::SetStatus { disks, .. } => {
                        let mut next = (*node).clone();
                        next.status.disk_status = disks;
                        let api = self.shared.api::<Node>();
                        let written = api.replace_status(&self.shared.node, &PostParams::default(), &next).await;
                        self.nodes.wrote(written.map_err(|error| WriteError::of("write the state of disks", error))?);
                    }
                }
            }
            if !again {
                break;
            }
        }
        Ok(Some(Timestamp::now() + LOOK_AGAIN))
    }
}
