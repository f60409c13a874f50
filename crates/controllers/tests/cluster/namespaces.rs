//! How namespaces begin and end.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::garbage::{toy, toys};
use crate::harness::*;

async fn namespace(cluster: &Cluster, name: &str) -> Api<Namespace> {
    let namespaces: Api<Namespace> = cluster.all();
    create(&namespaces, json!({ "metadata": { "name": name } })).await;
    namespaces
}

fn within<K>(cluster: &Cluster, name: &str) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(cluster.client.clone(), name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_gets_an_account_and_the_certificate_authority_and_keeps_them() {
    let cluster = Cluster::start().await;
    namespace(&cluster, "shop").await;
    let (accounts, maps) = (within::<ServiceAccount>(&cluster, "shop"), within::<ConfigMap>(&cluster, "shop"));
    until(&accounts, "default", "there", |_| true).await;
    let right = |m: &ConfigMap| m.data == Some([("ca.crt".into(), "PEM".into())].into());
    until(&maps, "kube-root-ca.crt", "right", right).await;
    patch(&maps, "kube-root-ca.crt", json!({ "data": { "ca.crt": "forged", "more": "x" } })).await;
    until(&maps, "kube-root-ca.crt", "right again", right).await;
    let uid = accounts.get("default").await.unwrap().metadata.uid;
    delete(&accounts, "default", DeleteParams::default()).await;
    until(&accounts, "default", "there again", |a| a.metadata.uid != uid).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_ends_when_everything_in_it_has() {
    let cluster = Cluster::start().await;
    let namespaces = namespace(&cluster, "shop").await;
    let maps: Api<ConfigMap> = within(&cluster, "shop");
    until(&within::<ServiceAccount>(&cluster, "shop"), "default", "there", |_| true).await;
    create(&maps, owned("plain", &json!([]))).await;
    create(&within::<Pod>(&cluster, "shop"), pod("web")).await;
    let mut held = owned("held", &json!([]));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&maps, held).await;

    delete(&namespaces, "shop", DeleteParams::default()).await;
    let condition = |n: &Namespace, kind: &str| {
        let conditions = n.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().find(|c| c.type_ == kind).map(|c| (c.status.clone(), c.message.clone().unwrap_or_default()))
    };
    let waits =
        |n: &Namespace| condition(n, "NamespaceFinalizersRemaining").is_some_and(|(status, _)| status == "True");
    let waiting = until(&namespaces, "shop", "waiting", waits).await;
    assert_eq!(waiting.status.as_ref().unwrap().phase.as_deref(), Some("Terminating"));
    let (_, message) = condition(&waiting, "NamespaceFinalizersRemaining").unwrap();
    let expected = "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    assert_eq!(message, expected);
    let (_, message) = condition(&waiting, "NamespaceContentRemaining").unwrap();
    assert_eq!(message, "Some resources are remaining: configmaps. has 1 resource instances");
    patch(&maps, "held", json!({ "metadata": { "finalizers": null } })).await;
    until_gone(&namespaces, "shop").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_go_with_their_namespace() {
    let cluster = Cluster::start().await;
    toys(&cluster).await;
    let namespaces = namespace(&cluster, "nursery").await;
    let resource = kube::api::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("example.com", "v1", "Toy"));
    let toys: Api<kube::api::DynamicObject> = Api::namespaced_with(cluster.client.clone(), "nursery", &resource);
    toys.create(&PostParams::default(), &toy("bear", &[])).await.unwrap();
    delete(&namespaces, "nursery", DeleteParams::default()).await;
    until_gone(&namespaces, "nursery").await;
}
