//! Stable reason codes: *why*, as a value that scripts, alerts and dashboards may match on.
//!
//! A code is written once and keeps its meaning for ever: it may be retired, never reused or renamed
//! (`tests/reason_codes.txt` lists the codes ever released, and a test holds this file to that list).
//! The words around a code are for people and may be improved at any time.
//!
//! Where Kubernetes has a reason for the same thing, the code is Kubernetes' own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Declares the codes; the doc comment of a code is also its meaning at run time.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $code:ident,)+) => {
        /// Why a rule acted, waits, asks, is blocked or rests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[doc = $doc])+ $code,)+
        }

        impl Reason {
            /// Every code, in the order of this file.
            pub const ALL: &'static [Self] = &[$(Self::$code,)+];

            /// The code as it appears in conditions and events.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$code => stringify!($code),)+ }
            }

            /// What the code means, in general; the words of a finding say it of one object.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => concat!($($doc,)+).trim_start(),)+ }
            }
        }
    };
}

reasons! {
    // Everywhere.

    /// The object is being deleted; what follows from that is another rule's work.
    BeingDeleted,
    /// What the rule wants is already so.
    UpToDate,

    // Pod garbage collection.

    /// The number of finished pods is within the limit.
    BelowThreshold,
    /// More finished pods are kept than the limit allows; the oldest go first.
    TooManyTerminatedPods,
    /// A terminating pod is on a node that an administrator declared out of service.
    NodeOutOfService,
    /// A terminating pod is on a node that carries the out-of-service taint but reports Ready.
    NodeStillReady,
    /// A pod's node is not known; it may only not have been seen yet.
    NodeNotSeen,
    /// A pod's node does not exist any more.
    DeletionByPodGC,
    /// A terminating pod was never given to a node, so no kubelet will finish it.
    NeverScheduled,

    // Node lifecycle.

    /// The node gives signs of life, or is Ready.
    NodeAlive,
    /// The kubelet posted the node's status once, and stopped.
    NodeStatusUnknown,
    /// The kubelet never posted the node's status.
    NodeStatusNeverUpdated,
    /// The node is not ready, or was not heard of for too long.
    NodeNotReady,
    /// The node's taints are set to what its conditions and its cordon ask for.
    TaintsFollowConditions,
    /// No node of the cluster is Ready, so that a fault of the network or of the control plane is more likely.
    AllNodesAway,
    /// Too many nodes of the zone are not Ready to evict anything from it.
    ZoneUnhealthy,
    /// Nodes of a zone are evicted one at a time.
    EvictionRateLimited,
    /// The pod tolerates the taints of its node, for ever or for a while.
    TaintTolerated,
    /// The pod is deleted for a NoExecute taint of its node.
    DeletionByTaintManager,
    /// The pod is marked for deletion for a NoExecute taint of its node.
    TaintManagerEviction,
}

/// A text that is not a reason code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a reason code")]
pub struct UnknownReason(pub String);

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(code: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|r| r.code() == code).ok_or_else(|| UnknownReason(code.to_owned()))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const RELEASED: &str = include_str!("../tests/reason_codes.txt");

    #[test]
    fn a_released_code_stays() {
        let gone: Vec<&str> = RELEASED.lines().filter(|code| Reason::from_str(code).is_err()).collect();
        assert!(gone.is_empty(), "released codes must not disappear: {gone:?}");
    }

    #[test]
    fn every_code_is_listed() {
        let listed: BTreeSet<&str> = RELEASED.lines().collect();
        let missing: Vec<&str> = Reason::ALL.iter().map(|r| r.code()).filter(|c| !listed.contains(c)).collect();
        assert!(missing.is_empty(), "add to tests/reason_codes.txt:\n{}", missing.join("\n"));
    }

    #[test]
    fn every_code_fits_a_condition_and_says_what_it_means() {
        for reason in Reason::ALL {
            let code = reason.code();
            assert!(code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric()), "{code}");
            assert!(reason.meaning().ends_with('.'), "{code}: {:?}", reason.meaning());
            assert_eq!(code.parse(), Ok(*reason));
        }
    }
}
