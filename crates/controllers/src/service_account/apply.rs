//! Creates what is missing in a namespace.

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use serde_json::json;
use tether_plan::service_account::{Change, DEFAULT_ACCOUNT, ROOT_CA_KEY, ROOT_CA_NAME};

use crate::context::Context;
use crate::write::{FIELD_MANAGER, Part, WriteError, Writes, code};

/// What the ConfigMap says of itself, in Kubernetes' words.
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                           guaranteed across distributions of Kubernetes clusters.";

pub(super) async fn apply(context: &Context, ca_pem: &str, changes: Vec<Change>) -> Result<(), WriteError> {
    let client = || context.client.clone();
    for change in changes {
        match change {
            Change::CreateAccount { namespace } => {
                let account = ServiceAccount { metadata: named(DEFAULT_ACCOUNT), ..Default::default() };
                create(&Api::namespaced(client(), &namespace), &account).await?;
            }
            Change::CreateRootCa { namespace } => {
                let mut metadata = named(ROOT_CA_NAME);
                metadata.annotations = Some([("kubernetes.io/description".into(), DESCRIPTION.into())].into());
                let data = Some([(ROOT_CA_KEY.into(), ca_pem.to_owned())].into());
                let map = ConfigMap { metadata, data, ..Default::default() };
                create(&Api::namespaced(client(), &namespace), &map).await?;
            }
            Change::RestoreRootCa { config_map } => {
                let api: Api<ConfigMap> = Api::namespaced(client(), &config_map.namespace);
                // Whatever else is in there goes: null first, then the one key that belongs there.
                let held = context.root_cas.get(&config_map.namespace, &config_map.name);
                let keys = held.iter().filter_map(|map| map.data.as_ref()).flat_map(|data| data.keys());
                let mut data: serde_json::Map<String, serde_json::Value> =
                    keys.map(|key| (key.clone(), serde_json::Value::Null)).collect();
                data.insert(ROOT_CA_KEY.into(), json!(ca_pem));
                Writes::default().patch(&api, &config_map, Part::Object, json!({ "data": data })).await?;
            }
        }
    }
    Ok(())
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..Default::default() }
}

/// That it exists already is as good.
async fn create<K>(api: &Api<K>, object: &K) -> Result<(), WriteError>
where
    K: kube::Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    match api.create(&params, object).await {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(409) => Ok(()),
        Err(error) => Err(WriteError::of(format!("create {}", api.resource_url()), error)),
    }
}
