//! `longhorn.io/v1beta2`: the resources of volumes, as Rust types, and the definitions that a cluster is given for them.
//!
//! Field names, enum words and number formats are Longhorn's, so that its clients, manifests and dashboards keep working.
//! Every field has a default: clients send partial objects, and an older object lacks what a newer version added. All fields are
//! written, empty or not, as Longhorn does; only what is an `Option` is left out when it is absent.
//!
//! Tether's additions are the fencing record of a volume ([`volume::Record`]), the owner of a ticket ([`attachment::Owner`]) and what a
//! ticket waits for ([`attachment::Waiting`]).
//!
//! Types implement the traits of `k8s-openapi`, so that what works on a Pod works on a [`Volume`].

#[macro_use]
mod declare;
pub mod admission;
pub mod attachment;
pub mod condition;
pub mod definitions;
mod difference;
pub mod engine;
pub mod install;
pub mod instance_manager;
pub mod labels;
mod metadata;
pub mod names;
pub mod node;
mod policy;
pub mod replica;
pub mod scalar;
pub mod schema;
pub mod setting;
pub mod settings;
pub mod snapshot;
pub mod volume;
pub mod volume_snapshot;

pub use attachment::VolumeAttachment;
pub use condition::Condition;
pub use difference::Difference;
pub use engine::Engine;
pub use instance_manager::InstanceManager;
pub use node::Node;
pub use replica::Replica;
pub use scalar::IntString;
pub use setting::Setting;
pub use snapshot::Snapshot;
pub use volume::Volume;

/// The API group of every resource here.
pub const GROUP: &str = "longhorn.io";
/// The version that is served and stored.
pub const VERSION: &str = "v1beta2";
/// Group and version, as objects carry them.
pub const API_VERSION: &str = "longhorn.io/v1beta2";
/// Where all objects of the system live.
pub const NAMESPACE: &str = "longhorn-system";
/// What keeps a deleted object until its controller has cleaned up.
pub const FINALIZER: &str = "longhorn.io";
