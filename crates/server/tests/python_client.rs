//! The conversation that Longhorn's Python client has with the manager: by schemas and links, never by paths of its own.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tether_apiserver::Server;
use tether_apiserver::auth::User;
use tether_crd::{NAMESPACE, Node, Replica, Volume, VolumeAttachment};
use tether_server::{Clients, Manager};

/// Tokens are names of users here.
#[derive(Clone)]
struct Users(Server);

impl Clients for Users {
    async fn client(&self, token: &str) -> Result<Client, kube::Error> {
        let groups = if token == "admin" { vec!["system:masters"] } else { vec!["system:authenticated"] };
        Ok(self.0.client(User::new(token, groups)))
    }
}

struct Python {
    manager: Manager<Users>,
    cluster: Client,
    token: &'static str,
    schemas: Vec<Value>,
}

impl Python {
    async fn connect(token: &'static str) -> Self {
        let server = Server::ephemeral().await;
        tether_apiserver::install(&server, &tether_crd::install::objects()).await.unwrap();
        let cluster = server.client(User::new("admin", ["system:masters"]));
        let mut python = Self { manager: Manager::new(Users(server)), cluster, token, schemas: Vec::new() };
        let (status, headers, _) = python.send(Method::GET, "http://m:9500/v1", None).await;
        assert_eq!(status, StatusCode::OK);
        let schemas = headers["x-api-schemas"].to_str().unwrap().to_owned();
        let found = python.get(&schemas).await;
        python.schemas.clone_from(found["data"].as_array().unwrap());
        assert!(python.schemas.iter().all(|schema| schema["type"] == "schema"));
        python
    }

    async fn send(&self, method: Method, url: &str, body: Option<Value>) -> (StatusCode, http::HeaderMap, Value) {
        use base64::Engine as _;
        let path = url.strip_prefix("http://m:9500").expect("links lead here");
        let basic = base64::prelude::BASE64_STANDARD.encode(format!("x:{}", self.token));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "m:9500")
            .header("authorization", format!("Basic {basic}"))
            .body(Bytes::from(body.map(|body| body.to_string()).unwrap_or_default()))
            .unwrap();
        let (parts, body) = self.manager.handle(request).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, url: &str) -> Value {
        let (status, _, body) = self.send(Method::GET, url, None).await;
        assert_eq!(status, StatusCode::OK, "{url}: {body}");
        body
    }

    /// Where the members of a type are, and whether a method is for them.
    fn collection(&self, kind: &str, method: &str) -> String {
        let schema = self.schemas.iter().find(|schema| schema["id"] == kind).expect(kind);
        assert!(schema["collectionMethods"].as_array().unwrap().contains(&json!(method)), "{kind} {method}");
        schema["links"]["collection"].as_str().unwrap().to_owned()
    }

    async fn list(&self, kind: &str) -> Vec<Value> {
        self.get(&self.collection(kind, "GET")).await["data"].as_array().unwrap().clone()
    }

    async fn by_id(&self, kind: &str, id: &str) -> Option<Value> {
        let (status, _, body) = self.send(Method::GET, &format!("{}/{id}", self.collection(kind, "GET")), None).await;
        if status == StatusCode::NOT_FOUND {
            assert_eq!(body["status"], 404, "the client reads the code from the body");
            return None;
        }
        Some(body)
    }

    async fn create(&self, kind: &str, body: Value) -> Value {
        let (status, _, body) = self.send(Method::POST, &self.collection(kind, "POST"), Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    async fn action(&self, object: &Value, name: &str, body: Value) -> (StatusCode, Value) {
        let url = object["actions"][name].as_str().unwrap_or_else(|| panic!("{name} is offered: {object}"));
        let (status, _, body) = self.send(Method::POST, url, Some(body)).await;
        (status, body)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.cluster.clone(), NAMESPACE)
    }

    /// What the controllers would have made by now.
    async fn controllers(&self, volume: &str) {
        let attachment = json!({"metadata": {"name": volume}, "spec": {"volume": volume}});
        self.api::<VolumeAttachment>()
            .create(&PostParams::default(), &serde_json::from_value(attachment).unwrap())
            .await
            .unwrap();
        let replica = json!({"metadata": {"name": format!("{volume}-r-00000001")}, "spec": {"volumeName": volume, "nodeID": "node-1"}});
        self.api::<Replica>().create(&PostParams::default(), &serde_json::from_value(replica).unwrap()).await.unwrap();
        self.volume_is(volume, "detached").await;
    }

    async fn volume_is(&self, volume: &str, state: &str) {
        let status = Patch::Merge(json!({"status": {"state": state}}));
        self.api::<Volume>().patch_status(volume, &PatchParams::default(), &status).await.unwrap();
    }

    async fn node(&self, name: &str, ready: &str) {
        let node = json!({"metadata": {"name": name}, "spec": {"name": name, "disks": {"d": {"path": "/data"}}}});
        self.api::<Node>().create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let conditions = json!([{"type": "Ready", "status": ready, "reason": "KubernetesNodeNotReady"}]);
        let status =
            Patch::Merge(json!({"status": {"conditions": conditions, "diskStatus": {"d": {"diskUUID": "u1"}}}}));
        self.api::<Node>().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    async fn tickets(&self, volume: &str) -> Value {
        json!(self.api::<VolumeAttachment>().get(volume).await.unwrap().spec.attachment_tickets)
    }
}

#[tokio::test]
async fn a_volume_is_made_attached_detached_and_deleted() {
    let python = Python::connect("admin").await;
    python.node("node-1", "True").await;
    let made = python
        .create("volume", json!({"name": "v1", "size": "1073741824", "numberOfReplicas": 2, "frontend": "blockdev"}))
        .await;
    assert_eq!((&made["id"], &made["type"], &made["size"]), (&json!("v1"), &json!("volume"), &json!("1073741824")));
    assert_eq!(
        (&made["accessMode"], &made["numberOfReplicas"], &made["standby"]),
        (&json!("rwo"), &json!(2), &json!(false))
    );
    python.controllers("v1").await;
    let volume = python.by_id("volume", "v1").await.unwrap();
    assert_eq!((&volume["state"], &volume["ready"]), (&json!("detached"), &json!(true)));
    assert_eq!(volume["replicas"][0]["hostId"], "node-1");

    // The page writes these names with capitals.
    let (status, attached) = python
        .action(&volume, "attach", json!({"hostId": "node-1", "AttachmentID": "longhorn-ui", "AttachedBy": "ana"}))
        .await;
    assert_eq!(status, StatusCode::OK);
    let parameters = json!({"disableFrontend": "false", "lastAttachedBy": "ana"});
    let ticket = json!({"id": "longhorn-ui", "type": "longhorn-api", "nodeID": "node-1", "parameters": parameters, "generation": 0});
    assert_eq!(python.tickets("v1").await, json!({ "longhorn-ui": ticket }));
    let shown = &attached["volumeAttachment"]["attachments"]["longhorn-ui"];
    assert_eq!((&shown["attachmentType"], &shown["satisfied"]), (&json!("longhorn-api"), &json!(false)));
    let listed = python.list("volumeAttachment").await;
    assert_eq!(listed[0]["attachments"]["longhorn-ui"]["nodeID"], "node-1");

    let (status, _) = python.action(&attached, "detach", json!({"attachmentID": "longhorn-ui"})).await;
    assert_eq!((status, python.tickets("v1").await), (StatusCode::OK, json!({})));
    let (status, _, _) = python.send(Method::DELETE, volume["links"]["self"].as_str().unwrap(), None).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(python.by_id("volume", "v2").await, None);
}

#[tokio::test]
async fn what_is_detached_without_a_name_is_what_people_attached() {
    let python = Python::connect("admin").await;
    python.node("node-1", "True").await;
    python.create("volume", json!({"name": "v1", "size": "2097152"})).await;
    python.controllers("v1").await;
    let volume = python.by_id("volume", "v1").await.unwrap();
    for body in [
        json!({"hostId": "node-1"}),
        json!({"hostId": "node-1", "attacherType": "csi-attacher", "attachmentID": "csi-1"}),
    ] {
        assert_eq!(python.action(&volume, "attach", body).await.0, StatusCode::OK);
    }
    assert_eq!(python.tickets("v1").await.as_object().unwrap().len(), 2);
    python.action(&volume, "detach", json!({})).await;
    let left = python.tickets("v1").await;
    assert_eq!(left.as_object().unwrap().keys().collect::<Vec<_>>(), ["csi-1"], "a pod's ticket is the pod's");
    python.action(&volume, "detach", json!({"forceDetach": true})).await;
    assert_eq!(python.tickets("v1").await, json!({}));
}

#[tokio::test]
async fn what_is_not_possible_is_said() {
    let python = Python::connect("admin").await;
    python.node("node-2", "False").await;
    let url = python.collection("volume", "POST");
    let (status, _, refused) = python.send(Method::POST, &url, Some(json!({"name": "V", "size": "1"}))).await;
    assert_eq!((status, &refused["type"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("error")));
    python.create("volume", json!({"name": "v1", "size": "2097152"})).await;
    python.controllers("v1").await;
    let volume = python.by_id("volume", "v1").await.unwrap();
    for (node, words) in [
        ("node-9", "unable to attach volume v1 to node-9: node \"node-9\" does not exist"),
        ("node-2", "unable to attach volume v1 to node-2: node node-2 is not ready, reason: KubernetesNodeNotReady"),
    ] {
        let (status, error) = python.action(&volume, "attach", json!({"hostId": node})).await;
        assert_eq!((status, error["message"].as_str()), (StatusCode::INTERNAL_SERVER_ERROR, Some(words)));
    }
    let (status, _, _) = python.send(Method::GET, "http://m:9500/v1/orphans", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn settings_nodes_and_fields_are_changed() {
    let python = Python::connect("admin").await;
    python.node("node-1", "True").await;
    let setting = python.by_id("setting", "auto-salvage").await.unwrap();
    assert_eq!((&setting["value"], &setting["definition"]["type"]), (&json!("true"), &json!("bool")));
    let own = |object: &Value| object["links"]["self"].as_str().unwrap().to_owned();
    let (_, _, changed) = python.send(Method::PUT, &own(&setting), Some(json!({"value": "false"}))).await;
    assert_eq!(changed["value"], "false");
    let (status, _, _) = python.send(Method::PUT, &own(&setting), Some(json!({"value": "x"}))).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let node = python.by_id("node", "node-1").await.unwrap();
    assert_eq!(
        (&node["disks"]["d"]["diskUUID"], &node["conditions"]["Ready"]["status"]),
        (&json!("u1"), &json!("True"))
    );
    let (_, _, node) =
        python.send(Method::PUT, &own(&node), Some(json!({"allowScheduling": true, "tags": ["fast"]}))).await;
    assert_eq!((&node["allowScheduling"], &node["tags"]), (&json!(true), &json!(["fast"])));
    python.create("volume", json!({"name": "v1", "size": "2097152"})).await;
    python.controllers("v1").await;
    let volume = python.by_id("volume", "v1").await.unwrap();
    let (_, volume) = python.action(&volume, "expand", json!({"size": "4194304"})).await;
    assert_eq!(volume["size"], "4194304");
    let (_, volume) = python.action(&volume, "updateDataLocality", json!({"dataLocality": "best-effort"})).await;
    assert_eq!(volume["dataLocality"], "best-effort");
    assert!(volume["actions"].get("updateReplicaCount").is_none(), "not while it is detached");
    python.volume_is("v1", "attached").await;
    let volume = python.by_id("volume", "v1").await.unwrap();
    let (_, volume) = python.action(&volume, "updateReplicaCount", json!({"replicaCount": 2})).await;
    assert_eq!(volume["numberOfReplicas"], 2);
}

#[tokio::test]
async fn somebody_may_do_here_what_they_may_do_there() {
    let python = Python::connect("nobody").await;
    let (status, _, refused) = python.send(Method::GET, "http://m:9500/v1/volumes", None).await;
    assert_eq!((status, &refused["status"]), (StatusCode::FORBIDDEN, &json!(403)));
    let anonymous = Request::builder().uri("/v1/volumes").body(Bytes::new()).unwrap();
    let answer = python.manager.handle(anonymous).await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert!(answer.headers().contains_key("www-authenticate"));
}
