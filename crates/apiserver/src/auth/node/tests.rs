//! What a node may and may not, request by request.

use serde_json::json;

use super::*;
use crate::auth::tests::Memory;
use crate::auth::{Authorizer, User};

/// Pod `a/web` runs on n1 and uses a bit of everything; `a/other` runs on n2; `a/mirror` is n1's own.
fn cluster() -> Arc<Memory> {
    let web = json!({
        "metadata": {"namespace": "a", "name": "web"},
        "spec": {
            "nodeName": "n1",
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{
                "env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}},
                        {"valueFrom": {"configMapKeyRef": {"name": "env"}}}],
                "envFrom": [{"secretRef": {"name": "env-all"}}, {"configMapRef": {"name": "env-all"}}],
            }],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "init"}}}]}],
            "volumes": [
                {"name": "s", "secret": {"secretName": "mounted"}},
                {"name": "c", "configMap": {"name": "mounted"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "projected"}},
                                                         {"configMap": {"name": "projected"}}]}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "i", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "inline"}}},
            ],
        },
    });
    let pod = |name: &str, node: &str, annotations: serde_json::Value| {
        json!({
            "metadata": {"namespace": "a", "name": name, "annotations": annotations},
            "spec": {"nodeName": node, "volumes": [{"name": "s", "secret": {"secretName": name}}]},
        })
    };
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {
            "claimRef": {"namespace": "a", "name": "data"},
            "csi": {
                "controllerPublishSecretRef": {"namespace": "sys", "name": "controller"},
                "nodeStageSecretRef": {"namespace": "sys", "name": "stage"},
                "nodePublishSecretRef": {"namespace": "sys", "name": "publish"},
            },
        },
    });
    let elsewhere = json!({"metadata": {"name": "pv2"}, "spec": {"claimRef": {"namespace": "b", "name": "data"}}});
    Memory::with([
        ("pods", web),
        ("pods", pod("other", "n2", json!({}))),
        ("pods", pod("mirror", "n1", json!({MIRROR_ANNOTATION: "x"}))),
        ("persistentvolumes", volume),
        ("persistentvolumes", elsewhere),
        ("volumeattachments.storage.k8s.io", json!({"metadata": {"name": "va"}, "spec": {"nodeName": "n1"}})),
    ])
}

/// `VERB [GROUP/]RESOURCE[:SUBRESOURCE] [NAMESPACE/]NAME`, a `-` being nothing.
fn request(node: &str, text: &str) -> Attributes {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (group, resource) = words[1].split_once('/').unwrap_or(("", words[1]));
    let (resource, subresource) = resource.split_once(':').unwrap_or((resource, ""));
    let (namespace, name) = words[2].split_once('/').unwrap_or(("", words[2]));
    let unless_dash = |word: &str| if word == "-" { String::new() } else { word.to_owned() };
    Attributes {
        user: User::node(node),
        verb: words[0].into(),
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: unless_dash(namespace),
        name: unless_dash(name),
        field_selector: words.get(3).copied().unwrap_or_default().into(),
        is_resource: true,
        ..Attributes::default()
    }
}

#[test]
fn a_node_may_what_its_pods_need() {
    let authorizer = Authorizer::new(cluster());
    let allowed = [
        "get secrets a/pull",
        "get secrets a/env",
        "get secrets a/env-all",
        "get secrets a/init",
        "get secrets a/mounted",
        "get secrets a/projected",
        "get secrets a/inline",
        "get secrets sys/stage",
        "get secrets sys/publish",
        "list secrets a/mounted",
        "watch secrets a/mounted",
        "get configmaps a/env",
        "get configmaps a/env-all",
        "get configmaps a/mounted",
        "get configmaps a/projected",
        "get persistentvolumeclaims a/data",
        "list persistentvolumeclaims a/data",
        "watch persistentvolumeclaims a/data",
        "get persistentvolumeclaims a/web-scratch",
        "patch persistentvolumeclaims:status a/data",
        "get persistentvolumes pv",
        "get storage.k8s.io/volumeattachments va",
        "get serviceaccounts a/sa",
        "create serviceaccounts:token a/sa",
        "get pods a/web",
        "get pods a/mirror",
        "watch pods a/web",
        "list pods - spec.nodeName=n1",
        "watch pods - spec.nodeName=n1,status.phase!=Failed",
        "create pods a/-",
        "delete pods a/web",
        "patch pods:status a/web",
        "create pods:eviction a/web",
        "get nodes n1",
        "watch nodes n1",
        "create nodes -",
        "patch nodes n1",
        "patch nodes:status n1",
        "get coordination.k8s.io/leases kube-node-lease/n1",
        "create coordination.k8s.io/leases kube-node-lease/-",
        "update coordination.k8s.io/leases kube-node-lease/n1",
        "get storage.k8s.io/csinodes n1",
        "create storage.k8s.io/csinodes -",
        "list storage.k8s.io/csidrivers -",
        "create events a/-",
        "patch events.k8s.io/events a/e",
        "create authentication.k8s.io/tokenreviews -",
        "create authorization.k8s.io/subjectaccessreviews -",
    ];
    for text in allowed {
        let decision = authorizer.authorize(&request("n1", text));
        assert!(decision.is_allowed(), "{text}: {decision:?}");
    }
}

#[test]
fn a_node_may_nothing_else() {
    let authorizer = Authorizer::new(cluster());
    let unrelated = "no relationship found between node 'n1' and this object";
    let refused = [
        ("get secrets a/other", unrelated),
        ("get secrets a/mirror", unrelated),
        ("get secrets b/mounted", unrelated),
        ("get secrets sys/controller", unrelated),
        ("list secrets a/-", "No Object name found"),
        ("list secrets -", "can only read namespaced object of this type"),
        ("update secrets a/mounted", "can only read resources of this type"),
        ("get configmaps a/other", unrelated),
        ("get persistentvolumeclaims a/other", unrelated),
        ("watch persistentvolumeclaims a/other", unrelated),
        ("list persistentvolumeclaims a/-", "can only get individual resources of this type"),
        ("update persistentvolumeclaims a/data", "can only get individual resources of this type"),
        ("get persistentvolumeclaims:status a/data", "can only get/update/patch this type"),
        ("patch persistentvolumeclaims:status a/other", unrelated),
        ("get persistentvolumes pv2", unrelated),
        ("list persistentvolumes -", "can only get individual resources of this type"),
        ("get storage.k8s.io/volumeattachments none", unrelated),
        ("patch storage.k8s.io/volumeattachments va", "can only get individual resources of this type"),
        ("get serviceaccounts a/other", unrelated),
        ("create serviceaccounts a/sa", "can only create token subresource of serviceaccount"),
        ("create serviceaccounts:token a/other", unrelated),
        ("delete serviceaccounts a/sa", "can only create tokens for individual service accounts"),
        ("get pods a/other", unrelated),
        ("list pods -", "can only list/watch pods with spec.nodeName field selector"),
        ("list pods - spec.nodeName=n2", "can only list/watch pods with spec.nodeName field selector"),
        ("list pods - spec.nodeName!=n1", "can only list/watch pods with spec.nodeName field selector"),
        ("watch pods a/other", unrelated),
        ("update pods a/web", ""),
        ("create pods:binding a/web", ""),
        ("get nodes n2", "node 'n1' cannot read 'n2', only its own Node object"),
        ("list nodes -", "node 'n1' cannot read all nodes, only its own Node object"),
        ("delete nodes n1", ""),
        (
            "list coordination.k8s.io/leases kube-node-lease/-",
            "can only get, create, update, patch, or delete a node lease",
        ),
        (
            "get coordination.k8s.io/leases default/n1",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (
            "update coordination.k8s.io/leases kube-node-lease/n2",
            "can only access node lease with the same name as the requesting node",
        ),
        ("list storage.k8s.io/csinodes -", "can only get, create, update, patch, or delete a CSINode"),
        ("delete storage.k8s.io/csinodes n2", "can only access CSINode with the same name as the requesting node"),
        ("get longhorn.io/volumes a/v", ""),
        ("create rbac.authorization.k8s.io/clusterrolebindings -", ""),
    ];
    for (text, reason) in refused {
        let decision = authorizer.authorize(&request("n1", text));
        assert!(!decision.is_allowed() && decision.reason() == reason, "{text}: {decision:?}");
    }
    let error = authorizer.check(&request("n1", "get secrets a/other")).unwrap_err();
    assert_eq!(
        error.message,
        "secrets \"other\" is forbidden: User \"system:node:n1\" cannot get resource \"secrets\" in API group \"\" in \
         the namespace \"a\": no relationship found between node 'n1' and this object"
    );
    let nameless = authorizer.authorize(&request("", "get nodes n1"));
    assert_eq!(nameless.reason(), "unknown node for user \"system:node:\"");
}

#[test]
fn relations_follow_the_pod() {
    let objects = cluster();
    let authorizer = Authorizer::new(objects.clone());
    assert!(authorizer.authorize(&request("n1", "get persistentvolumes pv")).is_allowed());
    objects.delete("pods", "a", "web");
    assert!(!authorizer.authorize(&request("n1", "get persistentvolumes pv")).is_allowed());
    assert!(!authorizer.authorize(&request("n1", "get secrets a/mounted")).is_allowed());
}
