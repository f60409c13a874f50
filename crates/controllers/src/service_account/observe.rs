//! A namespace and what it has.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use tether_plan::service_account::{DEFAULT_ACCOUNT, Observed, ROOT_CA_NAME};

use crate::context::Context;

pub(super) struct Seen {
    namespace: Arc<Namespace>,
    has_account: bool,
    root_ca: Option<Arc<ConfigMap>>,
}

impl Seen {
    /// `None` if the namespace is gone.
    pub(super) fn of(context: &Context, namespace: &str) -> Option<Self> {
        Some(Self {
            namespace: context.namespaces.get("", namespace)?,
            has_account: context.default_accounts.get(namespace, DEFAULT_ACCOUNT).is_some(),
            root_ca: context.root_cas.get(namespace, ROOT_CA_NAME),
        })
    }

    pub(super) fn observed<'a>(&'a self, ca_pem: Option<&'a str>) -> Observed<'a> {
        let Self { namespace, has_account, root_ca } = self;
        Observed { namespace, has_account: *has_account, root_ca: root_ca.as_deref(), ca_pem }
    }
}
