//! Owners and dependents, of built-in and custom kinds.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::harness::*;

async fn map(cluster: &Cluster, name: &str, owners: &[&ConfigMap]) -> ConfigMap {
    create(&cluster.in_default(), owned(name, &references(owners))).await
}

fn references(owners: &[&ConfigMap]) -> Value {
    let reference = |owner: &&ConfigMap| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid,
                "blockOwnerDeletion": true })
    };
    owners.iter().map(reference).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_follow_their_owner_in_background_and_survive_one_of_two() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = cluster.in_default();
    let (root, other) = (map(&cluster, "root", &[]).await, map(&cluster, "other", &[]).await);
    let leaf = map(&cluster, "leaf", &[&root]).await;
    map(&cluster, "twig", &[&leaf]).await;
    map(&cluster, "shared", &[&root, &other]).await;
    delete(&maps, "root", DeleteParams::background()).await;
    until_gone(&maps, "leaf").await;
    until_gone(&maps, "twig").await;
    let one_owner = |m: &ConfigMap| m.metadata.owner_references.as_ref().is_some_and(|o| o.len() == 1);
    let shared = until(&maps, "shared", "owned by one", one_owner).await;
    assert_eq!(shared.metadata.owner_references.unwrap()[0].name, "other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_foreground_the_owner_goes_last() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = cluster.in_default();
    let root = map(&cluster, "root", &[]).await;
    let mut held = owned("leaf", &references(&[&root]));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&maps, held).await;
    delete(&maps, "root", DeleteParams::foreground()).await;
    until(&maps, "leaf", "deleted", |m| m.metadata.deletion_timestamp.is_some()).await;
    let waiting = maps.get("root").await.unwrap();
    assert_eq!(waiting.metadata.finalizers.unwrap(), ["foregroundDeletion"]);
    patch(&maps, "leaf", json!({ "metadata": { "finalizers": null } })).await;
    until_gone(&maps, "root").await;
    until_gone(&maps, "leaf").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_stay_and_have_no_owner() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = cluster.in_default();
    let root = map(&cluster, "root", &[]).await;
    map(&cluster, "leaf", &[&root]).await;
    delete(&maps, "root", DeleteParams::orphan()).await;
    until_gone(&maps, "root").await;
    until(&maps, "leaf", "let go", |m| m.metadata.owner_references.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_never_was_or_is_elsewhere_is_none() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = cluster.in_default();
    let mut ghost = map(&cluster, "ghost", &[]).await;
    ghost.metadata.uid = Some("another-uid".into());
    map(&cluster, "stray", &[&ghost]).await;
    until_gone(&maps, "stray").await;
    assert!(maps.get("ghost").await.is_ok());

    create(&cluster.all::<Namespace>(), json!({ "metadata": { "name": "far" } })).await;
    let far: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "far");
    let distant = create(&far, owned("distant", &json!([]))).await;
    map(&cluster, "lured", &[&distant]).await;
    until_gone(&maps, "lured").await;
    let note = cluster.event("OwnerRefInvalidNamespace", "lured").await;
    assert!(note.ends_with("does not exist in namespace \"default\""), "{note}");
    assert!(far.get("distant").await.is_ok());
}

/// A definition of toys, and a way to make them.
pub(crate) async fn toys(cluster: &Cluster) -> Api<DynamicObject> {
    let definition = json!({
        "metadata": { "name": "toys.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "toys", "singular": "toy", "kind": "Toy", "listKind": "ToyList" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                           "schema": { "openAPIV3Schema": { "type": "object" } } }],
        },
    });
    let definitions: Api<CustomResourceDefinition> = cluster.all();
    create(&definitions, definition).await;
    let established = |d: &CustomResourceDefinition| {
        let conditions = d.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Established" && c.status == "True")
    };
    until(&definitions, "toys.example.com", "established", established).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Toy"));
    Api::namespaced_with(cluster.client.clone(), "default", &resource)
}

pub(crate) fn toy(name: &str, finalizers: &[&str]) -> DynamicObject {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Toy"));
    let mut toy = DynamicObject::new(name, &resource);
    toy.metadata.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
    toy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_own_and_are_owned_as_soon_as_they_are_served() {
    let cluster = Cluster::start().await;
    let toys = toys(&cluster).await;
    let maps: Api<ConfigMap> = cluster.in_default();
    let bear = toys.create(&PostParams::default(), &toy("bear", &[])).await.unwrap();
    let reference =
        json!([{ "apiVersion": "example.com/v1", "kind": "Toy", "name": "bear", "uid": bear.metadata.uid }]);
    create(&maps, owned("label", &reference)).await;
    // The label stays as long as the bear does, whatever is looked at meanwhile.
    let kept = map(&cluster, "kept", &[]).await;
    map(&cluster, "probe", &[&kept]).await;
    delete(&maps, "kept", DeleteParams::background()).await;
    until_gone(&maps, "probe").await;
    assert!(maps.get("label").await.is_ok());
    toys.delete("bear", &DeleteParams::background()).await.unwrap();
    until_gone(&maps, "label").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_goes_after_its_instances() {
    let cluster = Cluster::start().await;
    let toys = toys(&cluster).await;
    toys.create(&PostParams::default(), &toy("free", &[])).await.unwrap();
    toys.create(&PostParams::default(), &toy("held", &["example.com/hold"])).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = cluster.all();
    delete(&definitions, "toys.example.com", DeleteParams::default()).await;
    let terminating = |d: &CustomResourceDefinition| {
        let conditions = d.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Terminating" && c.reason.as_deref() == Some("InstanceDeletionInProgress"))
    };
    until(&definitions, "toys.example.com", "terminating", terminating).await;
    while toys.get_opt("free").await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(definitions.get("toys.example.com").await.is_ok(), "one instance is held");
    patch(&toys, "held", json!({ "metadata": { "finalizers": null } })).await;
    until_gone(&definitions, "toys.example.com").await;
}
