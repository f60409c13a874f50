//! InstanceManager: the process of a node in which engines and replicas live.

use std::collections::BTreeMap;

use crate::Condition;
use crate::definitions::Column;
use crate::engine::InstanceState;
use crate::volume::DataEngine;

resource! {
    /// The process of a node in which engines and replicas live.
    InstanceManager: "instancemanagers", short "lhim" {
        /// What is wanted.
        spec: InstanceManagerSpec,
        /// What is the case.
        status: InstanceManagerStatus,
    } columns &[
        Column::text("Data Engine", ".spec.dataEngine"),
        Column::text("State", ".status.currentState"),
        Column::text("Type", ".spec.type"),
        Column::text("Node", ".spec.nodeID"),
        Column::AGE,
    ]
}

words! {
    /// What may live in an instance manager.
    InstanceManagerType {
        /// Engines and replicas.
        AllInOne = "aio",
        /// Engines; of older versions.
        Engine = "engine",
        /// Replicas; of older versions.
        Replica = "replica",
    }
}

words! {
    /// Whether an instance manager runs.
    InstanceManagerState {
        /// It cannot be told, as when its node does not answer.
        Unknown = "unknown",
        /// It runs.
        Running = "running",
        /// It does not, and is going to be made.
        Stopped = "stopped",
        /// It is on its way up.
        Starting = "starting",
        /// It broke.
        Error = "error",
    }
}

object! {
    /// What is wanted of an instance manager.
    InstanceManagerSpec {
        /// Its image.
        image: String,
        /// Its node.
        node_id: String = "nodeID",
        /// What may live in it.
        kind: InstanceManagerType = "type",
        /// The implementation.
        data_engine: DataEngine,
    }
}

object! {
    /// Which process this is.
    InstanceSpec {
        /// Name of the engine or replica.
        name: String,
        /// The implementation.
        data_engine: DataEngine,
    }
}

object! {
    /// How a process is.
    InstanceStatus {
        /// Whether it runs.
        state: InstanceState,
        /// `engine` or `replica`.
        kind: String = "type",
        /// Its first port.
        port_start: i64,
        /// Its last port.
        port_end: i64,
        /// Where it listens, or its device.
        endpoint: String,
        /// What went wrong.
        error_msg: String,
        /// Further states of it.
        conditions: BTreeMap<String, bool>,
        /// The uid of the process.
        uuid: String,
        /// Raised by every change.
        resource_version: i64,
    }
}

object! {
    /// One process.
    InstanceProcess {
        /// Which.
        spec: InstanceSpec,
        /// How it is.
        status: InstanceStatus,
    }
}

object! {
    /// What is the case with an instance manager.
    InstanceManagerStatus {
        /// The node whose manager looks after it; kept for clients that read it.
        owner_id: String = "ownerID",
        /// Whether it runs.
        current_state: InstanceManagerState,
        /// The engines in it, by name.
        instance_engines: BTreeMap<String, InstanceProcess>,
        /// The replicas in it, by name.
        instance_replicas: BTreeMap<String, InstanceProcess>,
        /// Its address.
        ip: String,
        /// Newest version of its API.
        api_version: i64,
        /// Oldest version of its API.
        api_min_version: i64,
        /// Newest version of its proxy's API.
        proxy_api_version: i64,
        /// Oldest version of its proxy's API.
        proxy_api_min_version: i64,
        /// PodReady, NodeReady, SettingSynced.
        conditions: Vec<Condition>,
    }
}

/// The condition of an instance manager whose pod runs and answers.
pub const POD_READY: &str = "PodReady";
