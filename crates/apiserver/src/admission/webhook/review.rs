//! AdmissionReview: what a webhook is sent, and what it may answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tether_machinery::status::ApiError;

use super::super::Request;
use super::config::Invocation;
use crate::auth::review::user_info;
use crate::auth::text;

/// Reasons that a Status may carry. Anything else a webhook says is left out.
const REASONS: [&str; 19] = [
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "Gone",
    "Invalid",
    "ServerTimeout",
    "StoreReadError",
    "Timeout",
    "TooManyRequests",
    "BadRequest",
    "MethodNotAllowed",
    "NotAcceptable",
    "RequestEntityTooLarge",
    "UnsupportedMediaType",
    "InternalError",
    "Expired",
    "ServiceUnavailable",
];

/// The review that a webhook is sent.
pub(super) fn request(uid: &str, version: &str, request: &Request, invocation: &Invocation<'_>) -> Value {
    let old = request.old_object.as_deref().unwrap_or(&Value::Null);
    // A namespace lives in itself, also while it is created.
    let is_namespace = request.resource.group.is_empty() && request.resource.resource == "namespaces";
    let namespace = if is_namespace { &request.name } else { &request.namespace };
    let mut fields = json!({
        "uid": uid,
        "kind": {
            "group": invocation.kind.group, "version": invocation.kind.version, "kind": invocation.kind.kind,
        },
        "resource": {
            "group": invocation.resource.group,
            "version": invocation.resource.version,
            "resource": invocation.resource.resource,
        },
        "requestKind": {
            "group": request.kind.group, "version": request.kind.version, "kind": request.kind.kind,
        },
        "requestResource": {
            "group": request.resource.group,
            "version": request.resource.version,
            "resource": request.resource.resource,
        },
        "operation": request.operation.as_str(),
        "userInfo": user_info(&request.user),
        "object": invocation.convert(&request.object),
        "oldObject": invocation.convert(old),
        "dryRun": request.dry_run,
        "options": request.options,
    });
    for (field, value) in [
        ("subResource", &request.subresource),
        ("requestSubResource", &request.subresource),
        ("name", &request.name),
        ("namespace", namespace),
    ] {
        if !value.is_empty() {
            fields[field] = value.as_str().into();
        }
    }
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": fields})
}

/// What a webhook answered.
#[derive(Debug, PartialEq)]
pub(super) struct Response {
    pub(super) allowed: bool,
    pub(super) status: Value,
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
}

/// Reads an answer; only one that fits the question counts.
pub(super) fn response(reply: &[u8], uid: &str, version: &str, mutating: bool) -> Result<Response, String> {
    let review: Value = serde_json::from_slice(reply)
        .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    let response = review.get("response").filter(|response| response.is_object());
    let response = response.ok_or("webhook response was absent")?;
    // v1beta1 never checked who is answered and in which form.
    let strict = version == "v1";
    if strict {
        let answered = text(response, "/uid");
        if answered != uid {
            return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
        }
        let (group_version, kind) = (text(&review, "/apiVersion"), text(&review, "/kind"));
        if (group_version, kind) != ("admission.k8s.io/v1", "AdmissionReview") {
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group_version}, Kind={kind}"
            ));
        }
    }
    let warnings = response.get("warnings").and_then(Value::as_array);
    Ok(Response {
        allowed: response.get("allowed") == Some(&Value::Bool(true)),
        status: response.get("status").cloned().unwrap_or(Value::Null),
        patch: patch(response, mutating, strict)?,
        warnings: warnings.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
    })
}

fn patch(response: &Value, mutating: bool, strict: bool) -> Result<Option<Value>, String> {
    let patch = text(response, "/patch");
    let patch_type = response.get("patchType").and_then(Value::as_str);
    if !mutating {
        if strict && !patch.is_empty() {
            return Err("validating webhook may not return response.patch".to_owned());
        }
        if strict && patch_type.is_some() {
            return Err("validating webhook may not return response.patchType".to_owned());
        }
        return Ok(None);
    }
    match (patch.is_empty(), patch_type) {
        (false, None) if strict => return Err("webhook returned response.patch but not response.patchType".to_owned()),
        (true, Some(_)) if strict => {
            return Err("webhook returned response.patchType but not response.patch".to_owned());
        }
        (true, _) => return Ok(None),
        (false, Some(other)) if strict && other != "JSONPatch" => {
            return Err(format!("webhook returned invalid response.patchType of {other:?}"));
        }
        (false, _) => {}
    }
    let undecodable =
        |error: &dyn std::fmt::Display| format!("received undecodable patch in webhook response: {error}");
    let bytes = STANDARD.decode(patch).map_err(|error| undecodable(&error))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| undecodable(&error))
}

/// The error that a refusal becomes: the webhook's own Status, made into a failure that names the webhook.
pub(super) fn refusal(webhook: &str, status: &Value) -> ApiError {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let (given, reason) = (text(status, "/message"), text(status, "/reason"));
    let message = match (given, reason) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (given, _) => format!("{denied}: {given}"),
    };
    let code = status.get("code").and_then(Value::as_u64).filter(|code| (400..=599).contains(code));
    let mut error = ApiError::bad_request(message);
    error.code = code.map_or(error.code, |code| code as u16);
    error.reason = REASONS.into_iter().find(|known| *known == reason).unwrap_or_default();
    error.details = status.get("details").cloned().unwrap_or(Value::Null);
    error
}
