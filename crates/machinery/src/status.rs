//! The `Status` object: how an API server says no.
//!
//! [`ApiError`] carries everything that ends in the body, so that whoever finds the fault also words it;
//! the HTTP layer only serialises.

use std::fmt;

use serde_json::{Value, json};

use crate::field::FieldError;

/// An error as the client will see it: a `v1` Status with code, reason, message and details.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// `details`, or null where Kubernetes sends none.
    pub details: Value,
    /// `metadata.continue`: where an expired list may go on, at the price of consistency.
    pub continue_token: Option<String>,
}

/// A resource as errors name it: `pods "web" not found`, `volumes.longhorn.io "v1" already exists`.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    pub group: &'a str,
    /// Plural (most errors) or kind (validation errors).
    pub resource: &'a str,
    pub name: &'a str,
}

impl Named<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() { self.resource.to_owned() } else { format!("{}.{}", self.resource, self.group) }
    }

    fn details(&self) -> Value {
        let mut details = json!({});
        if !self.name.is_empty() {
            details["name"] = self.name.into();
        }
        if !self.group.is_empty() {
            details["group"] = self.group.into();
        }
        if !self.resource.is_empty() {
            details["kind"] = self.resource.into();
        }
        details
    }
}

impl ApiError {
    /// Any error; the functions below are the ones that Kubernetes has names for.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>, details: Value) -> Self {
        Self { code, reason, message: message.into(), details, continue_token: None }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message, Value::Null)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized", Value::Null)
    }

    pub fn forbidden(at: Named<'_>, why: impl fmt::Display) -> Self {
        let message = match (at.resource, at.name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{} is forbidden: {why}", at.qualified()),
            (_, name) => format!("{} {name:?} is forbidden: {why}", at.qualified()),
        };
        Self::new(403, "Forbidden", message, at.details())
    }

    pub fn not_found(at: Named<'_>) -> Self {
        Self::new(404, "NotFound", format!("{} {:?} not found", at.qualified(), at.name), at.details())
    }

    /// A path outside of every group and version, which is answered in plain text: clients tell it from an object
    /// that is not there.
    pub fn no_such_page() -> Self {
        Self::new(404, "NotFound", "404 page not found", Value::Null)
    }

    /// A path in a group and version that no resource of it is served under.
    pub fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource", json!({}))
    }

    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(405, "MethodNotAllowed", message, json!({}))
    }

    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message, Value::Null)
    }

    pub fn already_exists(at: Named<'_>) -> Self {
        let message = format!("{} {:?} already exists", at.qualified(), at.name);
        Self::new(409, "AlreadyExists", message, at.details())
    }

    pub fn conflict(at: Named<'_>, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {:?}: {why}", at.qualified(), at.name);
        Self::new(409, "Conflict", message, at.details())
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message, Value::Null)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message, json!({}))
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message, Value::Null)
    }

    /// 422: the object is well formed but wrong; one cause for each field. `at.resource` is the kind here.
    pub fn invalid(at: Named<'_>, errors: &[FieldError]) -> Self {
        let qualified = at.qualified();
        let mut texts: Vec<String> = Vec::new();
        for e in errors {
            let text = e.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let list = match texts.len() {
            1 => texts.remove(0),
            _ => format!("[{}]", texts.join(", ")),
        };
        let mut details = at.details();
        details["causes"] = errors
            .iter()
            .map(|e| json!({"reason": e.kind.reason(), "message": e.body(), "field": e.path.to_string()}))
            .collect();
        Self::new(422, "Invalid", format!("{qualified} {:?} is invalid: {list}", at.name), details)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details =
            if retry_after_seconds == 0 { json!({}) } else { json!({"retryAfterSeconds": retry_after_seconds}) };
        Self::new(429, "TooManyRequests", message, details)
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        let details = json!({"causes": [{"message": message.trim_start_matches("Internal error occurred: ")}]});
        Self::new(500, "InternalError", message, details)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message, Value::Null)
    }

    pub fn timeout(message: impl fmt::Display) -> Self {
        Self::new(504, "Timeout", format!("Timeout: {message}"), json!({}))
    }

    /// The body.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status["code"] = self.code.into();
        status
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;

    #[test]
    fn errors_read_as_those_of_kubernetes() {
        let at = Named { group: "longhorn.io", resource: "volumes", name: "v1" };
        assert_eq!(ApiError::not_found(at).message, "volumes.longhorn.io \"v1\" not found");
        let at = Named { group: "", resource: "Pod", name: "web" };
        let e = ApiError::invalid(at, &[FieldError::required(Path::new("spec.containers"), "")]);
        assert_eq!(e.message, "Pod \"web\" is invalid: spec.containers: Required value");
        assert_eq!(e.to_json()["details"]["causes"][0]["field"], "spec.containers");
    }
}
