//! Tokens on request: the `token` subresource of service accounts.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::{ApiError, Named};

use super::token::{Bindings, Reference, TokenAuthority};
use super::{Objects, text};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
/// What a request gets that does not say how long.
const DEFAULT_LIFETIME_S: i64 = 60 * 60;
/// Shorter tokens would be renewed all the time.
const MIN_LIFETIME_S: i64 = 10 * 60;
/// Kubernetes' number.
const MAX_LIFETIME_S: i64 = 1 << 32;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    audiences: Option<Vec<String>>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<BoundObject>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BoundObject {
    kind: String,
    api_version: String,
    name: String,
    uid: String,
}

/// The request filled in (but for its audiences) and checked, ready for admission. Nothing is issued yet.
pub fn prepare(
    objects: &dyn Objects,
    namespace: &str,
    name: &str,
    request: &Value,
    now: Timestamp,
) -> Result<Value, ApiError> {
    let unreadable = |error| ApiError::bad_request(format!("{KIND} cannot be read: {error}"));
    let spec = match request.get("spec") {
        None | Some(Value::Null) => Spec::default(),
        Some(spec) => Spec::deserialize(spec).map_err(unreadable)?,
    };
    let at = |name| Named { group: GROUP, resource: KIND, name };
    for (field, own, what) in [("name", name, "name"), ("namespace", namespace, "namespace")] {
        let given = request.pointer(&format!("/metadata/{field}")).and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != own {
            let words = format!("must match the service account {what} if specified");
            let error = FieldError::invalid(Path::new("metadata").child(field), given, words);
            return Err(ApiError::invalid(at(name), &[error]));
        }
    }
    let account = account(objects, namespace, name)?;
    let uid = text(&account, "/metadata/uid");
    let given = text(request, "/metadata/uid");
    if !given.is_empty() && given != uid {
        let words =
            format!("the UID in the token request ({given}) does not match the UID of the service account ({uid})");
        return Err(ApiError::conflict(at(name), words));
    }
    let lifetime_s = spec.expiration_seconds.unwrap_or(DEFAULT_LIFETIME_S);
    let range_error = match lifetime_s {
        ..MIN_LIFETIME_S => Some("may not specify a duration less than 10 minutes"),
        MIN_LIFETIME_S..=MAX_LIFETIME_S => None,
        _ => Some("may not specify a duration larger than 2^32 seconds"),
    };
    if let Some(words) = range_error {
        let error = FieldError::invalid(Path::new("spec.expirationSeconds"), lifetime_s, words);
        return Err(ApiError::invalid(at(""), &[error]));
    }
    // Left as they are, so that admission can tell what was asked for from what is filled in.
    let audiences = spec.audiences.unwrap_or_default();
    Ok(json!({
        "kind": KIND,
        "apiVersion": format!("{GROUP}/v1"),
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": rfc3339(now)},
        "spec": {
            "audiences": audiences,
            "expirationSeconds": lifetime_s,
            "boundObjectRef": request.pointer("/spec/boundObjectRef").unwrap_or(&Value::Null),
        },
        "status": {"token": "", "expirationTimestamp": null},
    }))
}

/// Issues the token that a prepared request asks for; `id` becomes the token's own id.
pub fn issue(
    tokens: &TokenAuthority,
    objects: &dyn Objects,
    mut request: Value,
    id: &str,
    now: Timestamp,
) -> Result<Value, ApiError> {
    let unreadable = |error| ApiError::bad_request(format!("{KIND} cannot be read: {error}"));
    let spec = Spec::deserialize(&request["spec"]).map_err(unreadable)?;
    let (namespace, name) = (text(&request, "/metadata/namespace"), text(&request, "/metadata/name"));
    let account = account(objects, namespace, name)?;
    let mut bindings =
        Bindings { namespace: namespace.to_owned(), serviceaccount: Reference::to(&account), ..Bindings::default() };
    if let Some(bound) = &spec.bound_object_ref {
        bind(&mut bindings, bound, objects)?;
    }
    let lifetime_s = spec.expiration_seconds.unwrap_or(DEFAULT_LIFETIME_S);
    let audiences = spec.audiences.filter(|list| !list.is_empty()).unwrap_or_else(|| tokens.audiences().to_vec());
    let token = tokens
        .issue(bindings, &audiences, lifetime_s, id, now)
        .map_err(|error| ApiError::internal(format!("failed to generate token: {error}")))?;
    let expires = now.saturating_add(SignedDuration::from_secs(lifetime_s)).unwrap_or(Timestamp::MAX);
    request["spec"]["audiences"] = json!(audiences);
    request["status"] = json!({"token": token, "expirationTimestamp": rfc3339(expires)});
    Ok(request)
}

fn account(objects: &dyn Objects, namespace: &str, name: &str) -> Result<std::sync::Arc<Value>, ApiError> {
    objects
        .get("serviceaccounts", namespace, name)
        .ok_or_else(|| ApiError::not_found(Named { group: "", resource: "serviceaccounts", name }))
}

/// Ties the token to an object: it holds only as long as that one exists.
fn bind(bindings: &mut Bindings, bound: &BoundObject, objects: &dyn Objects) -> Result<(), ApiError> {
    let (group, version) = bound.api_version.split_once('/').unwrap_or(("", &bound.api_version));
    let (resource, namespace) = match (group, bound.kind.as_str()) {
        ("", "Pod") => ("pods", bindings.namespace.as_str()),
        ("", "Secret") => ("secrets", bindings.namespace.as_str()),
        ("", "Node") => ("nodes", ""),
        (group, kind) => {
            let words = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(ApiError::bad_request(words));
        }
    };
    let object = objects
        .get(resource, namespace, &bound.name)
        .ok_or_else(|| ApiError::not_found(Named { group: "", resource, name: &bound.name }))?;
    let reference = Reference::to(&object);
    let uid = reference.uid.clone();
    match resource {
        "secrets" => bindings.secret = Some(reference),
        "nodes" => bindings.node = Some(reference),
        _ => {
            let account = &bindings.serviceaccount.name;
            if text(&object, "/spec/serviceAccountName") != account {
                let words = format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                );
                return Err(ApiError::bad_request(words));
            }
            bindings.pod = Some(reference);
            bindings.node = node_of(&object, objects);
        }
    }
    if !bound.uid.is_empty() && bound.uid != uid {
        let words = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            bound.uid
        );
        return Err(ApiError::conflict(Named { group: "", resource: &bound.kind, name: &bound.name }, words));
    }
    Ok(())
}

/// The node of a pod, by name alone if its object is gone.
fn node_of(pod: &Value, objects: &dyn Objects) -> Option<Reference> {
    let name = text(pod, "/spec/nodeName");
    if name.is_empty() {
        return None;
    }
    let node = objects.get("nodes", "", name);
    Some(node.map_or_else(|| Reference { name: name.to_owned(), uid: String::new() }, |node| Reference::to(&node)))
}

fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::tests::Memory;
    use crate::auth::token::{self, DEFAULT_ISSUER};

    fn cluster() -> (Arc<Memory>, TokenAuthority) {
        let objects = Memory::with([
            ("serviceaccounts", json!({"metadata": {"namespace": "a", "name": "sa", "uid": "sa-1"}})),
            (
                "pods",
                json!({"metadata": {"namespace": "a", "name": "web", "uid": "pod-1"},
                       "spec": {"serviceAccountName": "sa", "nodeName": "n1"}}),
            ),
            (
                "pods",
                json!({"metadata": {"namespace": "a", "name": "db", "uid": "pod-2"},
                       "spec": {"serviceAccountName": "other"}}),
            ),
            ("nodes", json!({"metadata": {"name": "n1", "uid": "node-1"}})),
        ]);
        let tokens = TokenAuthority::new(&token::tests::key(), DEFAULT_ISSUER, objects.clone()).unwrap();
        (objects, tokens)
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    fn request(spec: Value) -> Result<Value, ApiError> {
        let (objects, tokens) = cluster();
        let prepared = prepare(&*objects, "a", "sa", &json!({"spec": spec}), now())?;
        let issued = issue(&tokens, &*objects, prepared, "id", now())?;
        let token = text(&issued, "/status/token").to_owned();
        let audiences: Vec<String> = Vec::deserialize(&issued["spec"]["audiences"]).unwrap();
        let user = tokens.authenticate(&token, &audiences, now()).unwrap().user;
        let mut shown = issued;
        shown["status"]["token"] = user.name.into();
        shown["status"]["pod"] = json!(user.extra.get("authentication.kubernetes.io/pod-name"));
        shown["status"]["node"] = json!(user.extra.get("authentication.kubernetes.io/node-uid"));
        Ok(shown)
    }

    #[test]
    fn defaults_are_an_hour_for_the_api_server() {
        let answer = request(json!({})).unwrap();
        assert_eq!(answer["spec"]["audiences"], json!([DEFAULT_ISSUER]));
        assert_eq!(answer["spec"]["expirationSeconds"], 3600);
        assert_eq!(answer["status"]["expirationTimestamp"], "2023-11-14T23:13:20Z");
        assert_eq!(answer["status"]["token"], "system:serviceaccount:a:sa");
        assert_eq!(answer["metadata"]["uid"], "sa-1");
    }

    #[test]
    fn a_pods_token_names_pod_and_node() {
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": "pod-1"});
        let answer = request(json!({"boundObjectRef": bound, "audiences": ["vault"]})).unwrap();
        assert_eq!(answer["status"]["pod"], json!(["web"]));
        assert_eq!(answer["status"]["node"], json!(["node-1"]));
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let bound = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}});
        let cases = [
            (
                json!({"expirationSeconds": 599}),
                422,
                "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not \
                 specify a duration less than 10 minutes",
            ),
            (
                json!({"expirationSeconds": (1_i64 << 32) + 1}),
                422,
                "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 4294967297: \
                 may not specify a duration larger than 2^32 seconds",
            ),
            (bound("Pod", "none", ""), 404, "pods \"none\" not found"),
            (
                bound("Pod", "db", ""),
                400,
                "cannot bind token for serviceaccount \"sa\" to pod running with different serviceaccount name.",
            ),
            (
                bound("Pod", "web", "old"),
                409,
                "Operation cannot be fulfilled on Pod \"web\": the UID in the bound object reference (old) does not \
                 match the UID in record. The object might have been deleted and then recreated",
            ),
            (bound("ConfigMap", "c", ""), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
        ];
        for (spec, code, message) in cases {
            let error = request(spec).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (code, message));
        }
        let (objects, _) = cluster();
        let nobody = prepare(&*objects, "a", "ghost", &json!({}), now()).unwrap_err();
        assert_eq!(nobody.message, "serviceaccounts \"ghost\" not found");
        let other = json!({"metadata": {"name": "x"}});
        assert_eq!(prepare(&*objects, "a", "sa", &other, now()).unwrap_err().code, 422);
    }
}
