//! VolumeAttachment: every party's wish to have a volume attached, as one ticket each, and how far each wish is fulfilled.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::Condition;
use crate::definitions::Column;
use crate::scalar::Omit;
use crate::schema::Schema;
use crate::volume::Words;

resource! {
    /// The attachment tickets of one volume, which has the same name.
    VolumeAttachment: "volumeattachments", short "lhva" {
        /// The wishes.
        spec: VolumeAttachmentSpec,
        /// How far they are fulfilled.
        status: VolumeAttachmentStatus,
    } columns &[Column::AGE]
}

object! {
    /// The wishes.
    VolumeAttachmentSpec {
        /// The volume; cannot be changed.
        volume: String,
        /// The tickets, by id.
        attachment_tickets: BTreeMap<String, Ticket>,
    }
}

object! {
    /// One party's wish.
    Ticket {
        /// The same as its key.
        id: String,
        /// Whose kind of wish it is; this decides its priority.
        kind: TicketType = "type",
        /// Where the volume is wanted.
        node_id: String = "nodeID",
        /// `disableFrontend`, `lastAttachedBy`.
        parameters: Words,
        /// Raised at admission by every change of the ticket.
        generation: i64,
        /// The object that the ticket is for; the ticket goes when that object is gone.
        owner: Option<Owner>,
    }
}

object! {
    /// The object that a ticket is for.
    Owner {
        /// Its group and version.
        api_version: String,
        /// Its kind.
        kind: String,
        /// Its namespace; empty if it has none.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid: another object of the same name is not the owner.
        uid: String,
    }
}

object! {
    /// How far the wishes are fulfilled.
    VolumeAttachmentStatus {
        /// By ticket id.
        attachment_ticket_statuses: BTreeMap<String, TicketStatus>,
    }
}

object! {
    /// How far one wish is fulfilled.
    TicketStatus {
        /// The ticket.
        id: String,
        /// Whether the volume is attached as the ticket wishes; it counts only for the generation below.
        satisfied: bool,
        /// `Satisfied`, with the reason if it is not.
        conditions: Vec<Condition>,
        /// The ticket's generation that this is about.
        generation: i64,
        /// What the ticket waits for; absent when it is satisfied.
        waiting: Option<Waiting>,
    }
}

object! {
    /// What a ticket waits for.
    Waiting {
        /// Why, as a code.
        reason: String,
        /// Why, in words, and what will change it.
        message: String,
        /// How many tickets come before this one; 0: it is next, or attaching.
        position: i64,
        /// Since when it waits.
        since: String,
    }
}

/// The condition of a ticket's status.
pub const SATISFIED: &str = "Satisfied";
/// The reason of a ticket on the right node that wants the other frontend.
pub const REASON_INCOMPATIBLE: &str = "AttachedWithIncompatibleParameters";
/// Parameter: `true`, `false` or `any`; missing means `false`.
pub const DISABLE_FRONTEND: &str = "disableFrontend";
/// The value of [`DISABLE_FRONTEND`] that fits either.
pub const ANY: &str = "any";
/// Parameter: who asked for the attachment.
pub const LAST_ATTACHED_BY: &str = "lastAttachedBy";

macro_rules! ticket_types {
    ($($(#[doc = $doc:literal])+ $variant:ident = $word:literal @ $priority:literal,)+) => {
        /// Whose kind of wish a ticket is.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum TicketType {
            $($(#[doc = $doc])+ $variant,)+
            /// A type that is not known here; it comes last.
            Other(String),
        }

        impl TicketType {
            /// Every known type.
            pub const KNOWN: &'static [Self] = &[$(Self::$variant,)+];

            /// As it is written.
            pub fn as_str(&self) -> &str {
                match self { $(Self::$variant => $word,)+ Self::Other(word) => word }
            }

            /// Which of several tickets a detached volume follows: the highest.
            pub fn priority(&self) -> i32 {
                match self { $(Self::$variant => $priority,)+ Self::Other(_) => 0 }
            }
        }

        impl From<&str> for TicketType {
            fn from(word: &str) -> Self {
                match word { $($word => Self::$variant,)+ _ => Self::Other(word.to_owned()) }
            }
        }
    };
}

ticket_types! {
    /// Filling a volume from a backup.
    Restore = "volume-restore-controller" @ 2000,
    /// Growing a volume.
    Expansion = "volume-expansion-controller" @ 2000,
    /// A person, by command, page or REST API.
    Api = "longhorn-api" @ 1000,
    /// A pod, through CSI.
    Csi = "csi-attacher" @ 900,
    /// Kept for compatibility; nobody makes it.
    Salvage = "salvage-controller" @ 900,
    /// The share of an `rwx` volume.
    ShareManager = "share-manager-controller" @ 900,
    /// Making or removing a snapshot.
    Snapshot = "snapshot-controller" @ 800,
    /// Making a backup.
    Backup = "backup-controller" @ 800,
    /// Copying a volume.
    Clone = "volume-clone-controller" @ 800,
    /// Moving replicas away from a disk or node.
    Eviction = "volume-eviction-controller" @ 800,
    /// Exporting a volume to a backing image.
    BackingImageDataSource = "bim-ds-controller" @ 800,
    /// Rebuilding a volume that nobody uses.
    Rebuilding = "volume-rebuilding-controller" @ 800,
}

impl TicketType {
    /// Whether somebody works with the volume, which makes tickets of others give way.
    pub fn is_workload(&self) -> bool {
        matches!(self, Self::Csi | Self::Api | Self::ShareManager)
    }
}

impl Default for TicketType {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl fmt::Display for TicketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for TicketType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for TicketType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}

impl Schema for TicketType {
    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl Omit for TicketType {}

impl Ticket {
    /// Whether a volume whose frontend is `disabled`, or not, is what the ticket wants.
    pub fn fits_frontend(&self, disabled: bool) -> bool {
        match self.parameters.get(DISABLE_FRONTEND).map(String::as_str) {
            None | Some("false") => !disabled,
            Some("true") => disabled,
            Some(_) => true,
        }
    }

    /// Whether the volume is to be attached without its frontend; none: as it is.
    pub fn disable_frontend(&self) -> Option<bool> {
        match self.parameters.get(DISABLE_FRONTEND).map(String::as_str) {
            None | Some("false") => Some(false),
            Some("true") => Some(true),
            Some(_) => None,
        }
    }
}

impl VolumeAttachment {
    /// Whether the ticket is satisfied as it is now: a status of an older generation says nothing.
    pub fn is_satisfied(&self, ticket: &str) -> bool {
        let Some(wish) = self.spec.attachment_tickets.get(ticket) else { return false };
        let status = self.status.attachment_ticket_statuses.get(ticket);
        status.is_some_and(|status| status.satisfied && status.generation == wish.generation)
    }
}
