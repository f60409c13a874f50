//! Why a request fails, and how that is said in HTTP.

use http::StatusCode;
use serde_json::{Value, json};

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// Nobody is named whose rights would count.
    #[error(
        "the request names nobody: send a token as `Authorization: Bearer`, or as the password of basic authentication"
    )]
    Anonymous,
    /// The path or method leads nowhere.
    #[error("{method} {path} is not provided")]
    Nowhere { method: String, path: String },
    /// There is no such object.
    #[error("{kind} {name:?} does not exist")]
    Missing { kind: &'static str, name: String },
    /// The body cannot be understood.
    #[error("the body cannot be understood: {0}")]
    Body(String),
    /// The request makes no sense as things are.
    #[error("{0}")]
    Refused(String),
    /// The Kubernetes API refused, or did not answer.
    #[error("{}", words(.0))]
    Api(#[from] kube::Error),
}

/// The API server's own words, without the client's around them.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl RequestError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Anonymous => StatusCode::UNAUTHORIZED,
            Self::Nowhere { .. } | Self::Missing { .. } => StatusCode::NOT_FOUND,
            Self::Body(_) => StatusCode::BAD_REQUEST,
            // Longhorn answers 500 to whatever is not possible now, and its clients know it.
            Self::Refused(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Api(kube::Error::Api(status)) => match status.code {
                code @ (401 | 403 | 404 | 409 | 422) => StatusCode::from_u16(code).expect("a code of HTTP"),
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Api(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// The body that clients look for the reason in.
    pub(crate) fn body(&self) -> Value {
        let status = self.status();
        json!({
            "type": "error",
            "status": status.as_u16(),
            "code": status.canonical_reason().unwrap_or_default(),
            "message": self.to_string(),
            "detail": "",
            "links": {},
            "actions": {},
        })
    }
}
