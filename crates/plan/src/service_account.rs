//! What every namespace is born with: ServiceAccount `default` and ConfigMap `kube-root-ca.crt`.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::object::{Target, is_deleting, name, subject};

const ACCOUNT: Rule = Rule("default-service-account");
const ROOT_CA: Rule = Rule("root-ca");

/// The account that pods of a namespace use if they name none.
pub const DEFAULT_ACCOUNT: &str = "default";
/// The ConfigMap that carries the certificate authority of the API server to pods.
pub const ROOT_CA_NAME: &str = "kube-root-ca.crt";
/// The key in that ConfigMap.
pub const ROOT_CA_KEY: &str = "ca.crt";

/// One namespace and what it has.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub namespace: &'a Namespace,
    pub has_account: bool,
    pub root_ca: Option<&'a ConfigMap>,
    /// The certificate authority in PEM; `None` if the API server is reached without one.
    pub ca_pem: Option<&'a str>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    CreateAccount {
        namespace: String,
    },
    CreateRootCa {
        namespace: String,
    },
    /// Set the data of the ConfigMap back to what it has to be.
    RestoreRootCa {
        config_map: Target,
    },
}

/// Decides about one namespace.
pub fn decide(observed: &Observed<'_>) -> Plan<Change> {
    let mut plan = Plan::default();
    let namespace = name(observed.namespace).to_owned();
    let about = || subject(observed.namespace);
    if is_deleting(observed.namespace) {
        plan.rests(ACCOUNT, about(), Reason::BeingDeleted, "The namespace is being deleted.");
        return plan;
    }
    if observed.has_account {
        plan.rests(ACCOUNT, about(), Reason::UpToDate, "The account is there.");
    } else {
        let change = Change::CreateAccount { namespace: namespace.clone() };
        plan.acts(ACCOUNT, about(), Reason::ObjectMissing, "Every namespace has a service account `default`.", change);
    }
    let Some(pem) = observed.ca_pem else {
        plan.rests(ROOT_CA, about(), Reason::NotConfigured, "No certificate authority is known.");
        return plan;
    };
    let held = observed.root_ca.and_then(|map| map.data.as_ref());
    match observed.root_ca {
        None => {
            let words = "Every namespace has a copy of the API server's certificate authority.";
            plan.acts(ROOT_CA, about(), Reason::ObjectMissing, words, Change::CreateRootCa { namespace });
        }
        Some(_)
            if held.is_some_and(|data| data.len() == 1 && data.get(ROOT_CA_KEY).is_some_and(|held| held == pem)) =>
        {
            plan.rests(ROOT_CA, about(), Reason::UpToDate, "The copy is there.");
        }
        Some(map) => {
            let change = Change::RestoreRootCa { config_map: Target::of(map) };
            plan.acts(ROOT_CA, about(), Reason::ContentDiffers, "The copy differs from the original.", change);
        }
    }
    plan
}
