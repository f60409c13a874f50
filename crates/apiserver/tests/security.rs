//! Who may what, asked of a whole server: the rules are tested where they live, here is that they are applied.

mod common;

use common::{Api, configmap};
use http::Method;
use serde_json::{Value, json};
use tether_apiserver::auth::User;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn grant(api: &Api, user: &str, rules: Value) {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                      "metadata": {"name": user}, "rules": rules});
    api.post(&format!("{RBAC}/clusterroles"), role).await.ok();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    api.post(&format!("{RBAC}/clusterrolebindings"), binding).await.ok();
}

fn user(name: &str) -> User {
    User::new(name, Vec::<String>::new())
}

#[tokio::test]
async fn a_permission_for_one_object_shows_one_object() {
    let api = Api::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["mine", "theirs"] {
        api.post(maps, configmap(name)).await.ok();
    }
    let rule = json!([{"apiGroups": [""], "resources": ["configmaps", "namespaces"],
                       "resourceNames": ["mine", "default"], "verbs": ["get", "list", "watch"]}]);
    grant(&api, "ann", rule).await;
    let ann = api.as_user(user("ann"));
    ann.get(&format!("{maps}/mine")).await.ok();
    ann.get(&format!("{maps}/theirs")).await.fails(403);
    ann.get(maps).await.fails(403);
    let one = ann.get(&format!("{maps}?fieldSelector=metadata.name%3Dmine")).await.ok();
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
    ann.get(&format!("{maps}?fieldSelector=metadata.name%3Dtheirs")).await.fails(403);
    // Watching one object by its path must not become watching all of them.
    let watch = "watch=1&timeoutSeconds=1";
    let events = ann.get(&format!("{maps}/mine?{watch}")).await.ok();
    assert!(events.to_string().contains("mine") && !events.to_string().contains("theirs"), "{events}");
    let beyond = ann.get(&format!("{maps}/mine?{watch}&fieldSelector=metadata.namespace%3Ddefault")).await;
    assert_eq!(beyond.fails(400), "fieldSelector metadata.name doesn't match requested name");
    let namespaces = ann.get(&format!("/api/v1/namespaces/default?{watch}")).await.ok();
    assert!(!namespaces.to_string().contains("kube-system"), "{namespaces}");
}

#[tokio::test]
async fn an_apply_that_creates_needs_to_be_allowed_to_create() {
    let api = Api::start().await;
    let rule = json!([{"apiGroups": ["", "coordination.k8s.io"], "resources": ["configmaps", "leases"],
                       "verbs": ["get", "patch", "update"]}]);
    grant(&api, "ann", rule).await;
    let ann = api.as_user(user("ann"));
    let path = "/api/v1/namespaces/default/configmaps/new?fieldManager=test";
    let refused = ann.patch(path, "apply", configmap("new")).await;
    assert_eq!(
        refused.fails(403),
        "configmaps \"new\" is forbidden: User \"ann\" cannot create resource \"configmaps\" in API group \"\" in the \
         namespace \"default\""
    );
    api.patch(path, "apply", configmap("new")).await.ok();
    ann.patch(path, "apply", configmap("new")).await.ok();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    ann.put(path, lease).await.fails(403);
}

#[tokio::test]
async fn strangers_get_nowhere() {
    let api = Api::start().await;
    let nobody = api.as_user(User::anonymous());
    assert_eq!(nobody.get("/livez").await.code, 200);
    nobody.get("/version").await.ok();
    assert_eq!(nobody.get("/api").await.fails(403), "forbidden: User \"system:anonymous\" cannot get path \"/api\"");
    let secrets = nobody.get("/api/v1/secrets").await;
    assert_eq!(
        secrets.fails(403),
        "secrets is forbidden: User \"system:anonymous\" cannot list resource \"secrets\" in API group \"\" at the \
         cluster scope"
    );
}

#[tokio::test]
async fn impersonation_is_a_permission() {
    let api = Api::start().await;
    let rule = json!([{"apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"], "verbs": ["impersonate"]}]);
    grant(&api, "ann", rule).await;
    grant(&api, "bob", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}])).await;
    let ann = api.as_user(user("ann"));
    let maps = "/api/v1/namespaces/default/configmaps";
    ann.get(maps).await.fails(403);
    ann.send(Method::GET, maps, &[("impersonate-user", "bob")], "").await.ok();
    let masters = [("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
    ann.send(Method::GET, maps, &masters, "").await.fails(403);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let who = ann.send(Method::POST, path, &[("impersonate-user", "bob")], review.to_string()).await.ok();
    assert_eq!(who["status"]["userInfo"]["username"], "bob");
}

#[tokio::test]
async fn nobody_grants_what_they_lack() {
    let api = Api::start().await;
    let group = "rbac.authorization.k8s.io";
    let rules = json!([
        {"apiGroups": [group], "resources": ["roles", "rolebindings"], "verbs": ["get", "create", "update", "patch"]},
        {"apiGroups": [group], "resources": ["roles"], "resourceNames": ["named"], "verbs": ["escalate"]},
    ]);
    grant(&api, "ann", rules).await;
    let ann = api.as_user(user("ann"));
    let role = |name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
               "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]})
    };
    let roles = format!("{RBAC}/namespaces/default/roles");
    let refused = ann.post(&roles, role("greedy")).await.fails(403);
    assert!(refused.contains("is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"]"));
    ann.post(&roles, role("named")).await.fails(403);
    let harmless = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "named"}});
    ann.post(&roles, harmless).await.ok();
    // May escalate this one, now that it exists.
    ann.patch(&format!("{roles}/named"), "merge", role("named")).await.ok();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    });
    ann.post(&format!("{RBAC}/namespaces/default/rolebindings"), binding).await.fails(403);
}

#[tokio::test]
async fn a_node_lives_within_its_bounds() {
    let api = Api::start().await;
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let n1 = api.as_user(User::node("n1"));
    n1.post("/api/v1/nodes", node("n1")).await.ok();
    let other = n1.post("/api/v1/nodes", node("n2")).await.fails(403);
    assert_eq!(other, "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"");
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    n1.patch("/api/v1/nodes/n1", "merge", taint.clone()).await.fails(403);
    api.patch("/api/v1/nodes/n1", "merge", taint).await.ok();
    n1.get("/api/v1/nodes/n1").await.ok();
    n1.get("/api/v1/nodes").await.fails(403);

    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    api.post("/api/v1/namespaces/default/secrets", secret).await.ok();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "default",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "s", "secret": {"secretName": "s"}},
                        {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        },
    });
    let path = "/api/v1/namespaces/default/secrets/s";
    n1.get(path).await.fails(403);
    let web = api.post("/api/v1/namespaces/default/pods", pod).await.ok();
    n1.get(path).await.ok();
    api.as_user(User::node("n2")).get(path).await.fails(403);
    n1.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.ok();
    n1.get("/api/v1/pods").await.fails(403);

    let ask = |uid: &str, audiences: &[&str]| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "audiences": audiences,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid}}})
    };
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let uid = web["metadata"]["uid"].as_str().expect("uid");
    let token = n1.post(tokens, ask(uid, &[])).await.ok();
    assert_eq!(token["spec"]["audiences"].as_array().map(Vec::len), Some(1));
    n1.post(tokens, ask(uid, &["bank"])).await.fails(403);
    n1.post(tokens, ask("old", &[])).await.fails(403);
}

#[tokio::test]
async fn a_token_is_good_until_its_pod_is_gone() {
    let api = Api::start().await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
                     "spec": {"serviceAccountName": "default", "containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod).await.ok();
    let ask = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                     "spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web"}}});
    let issued = api.post("/api/v1/namespaces/default/serviceaccounts/default/token", ask).await.ok();
    let token = issued["status"]["token"].as_str().expect("token").to_owned();
    let review = || {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        api.post("/apis/authentication.k8s.io/v1/tokenreviews", body)
    };
    let status = review().await.ok()["status"].clone();
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:default");
    api.delete(&format!("{pods}/web?gracePeriodSeconds=0")).await.ok();
    let status = review().await.ok()["status"].clone();
    assert_eq!(status["error"], "[invalid bearer token, service account token has been invalidated]");
}

#[tokio::test]
async fn a_change_of_policy_counts_from_the_next_request() {
    let api = Api::start().await;
    let ann = api.as_user(user("ann"));
    let maps = "/api/v1/namespaces/default/configmaps";
    for _ in 0..20 {
        ann.get(maps).await.fails(403);
        grant(&api, "ann", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}])).await;
        ann.get(maps).await.ok();
        api.delete(&format!("{RBAC}/clusterrolebindings/ann")).await.ok();
        ann.get(maps).await.fails(403);
        api.delete(&format!("{RBAC}/clusterroles/ann")).await.ok();
    }
}

#[tokio::test]
async fn a_webhook_that_does_not_answer_fails_closed_and_can_be_removed() {
    let api = Api::start().await;
    let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let port = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        socket.local_addr().expect("address").port()
    };
    let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]});
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "strict"},
        "webhooks": [{
            "name": "check.example.com", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/check")},
        }],
    });
    api.post(configurations, configuration).await.ok();
    let maps = "/api/v1/namespaces/default/configmaps";
    let message = api.post(maps, configmap("a")).await.fails(500);
    assert_eq!(
        message,
        format!(
            "Internal error occurred: failed calling webhook \"check.example.com\": failed to call webhook: Post \
             \"https://127.0.0.1:{port}/check?timeout=10s\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        )
    );
    api.delete(&format!("{configurations}/strict")).await.ok();
    api.post(maps, configmap("a")).await.ok();
}
