//! Objects of the cluster as clients of the REST API see them.

pub(crate) mod node;
pub(crate) mod setting;
pub(crate) mod volume;
pub(crate) mod volume_attachment;

use std::fmt::Debug;

use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tether_crd::{Condition, NAMESPACE};

use crate::error::RequestError;

/// How many objects are asked for at once.
const PAGE: u32 = 500;

/// Addresses of this server, as the caller knows it.
pub(crate) struct Links {
    base: String,
}

impl Links {
    pub(crate) fn new(base: String) -> Self {
        Self { base }
    }

    pub(crate) fn root(&self) -> String {
        format!("{}/v1", self.base)
    }

    pub(crate) fn schemas(&self) -> String {
        self.to("schemas")
    }

    pub(crate) fn to(&self, plural: &str) -> String {
        format!("{}/v1/{plural}", self.base)
    }

    fn to_one(&self, plural: &str, name: &str) -> String {
        // Names of objects have dots and dashes, which need no escape.
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        let name = if plain { name.to_owned() } else { utf8_percent_encode(name, NON_ALPHANUMERIC).to_string() };
        format!("{}/v1/{plural}/{name}", self.base)
    }

    /// A collection with its members.
    pub(crate) fn collection(&self, kind: &str, plural: &str, members: Vec<Value>) -> Value {
        json!({"type": "collection", "resourceType": kind, "links": {"self": self.to(plural)}, "actions": {}, "data": members})
    }

    /// A member with what every one has.
    pub(crate) fn member(&self, kind: &str, plural: &str, name: &str, actions: &[&str], fields: Value) -> Value {
        let this = self.to_one(plural, name);
        let actions: Map<String, Value> =
            actions.iter().map(|action| ((*action).to_owned(), format!("{this}?action={action}").into())).collect();
        let mut member = fields;
        member["id"] = name.into();
        member["type"] = kind.into();
        member["links"] = json!({"self": this});
        member["actions"] = actions.into();
        member
    }
}

pub(crate) fn api<K>(client: &Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

/// All objects of a kind, or those with a label.
async fn all<K>(client: &Client, labels: &str) -> Result<Vec<K>, RequestError>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let (api, mut all) = (api::<K>(client), Vec::new());
    let params = ListParams::default().limit(PAGE).labels(labels);
    let mut next = params.clone();
    loop {
        let page = api.list(&next).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => next = params.clone().continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// One object.
pub(crate) async fn one<K>(client: &Client, kind: &'static str, name: &str) -> Result<K, RequestError>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    api::<K>(client).get_opt(name).await?.ok_or_else(|| RequestError::Missing { kind, name: name.to_owned() })
}

/// Conditions by type: how clients of the REST API look them up.
fn conditions(conditions: &[Condition]) -> Value {
    let by_type: Map<String, Value> =
        conditions.iter().map(|condition| (condition.kind.clone(), json!(condition))).collect();
    by_type.into()
}
