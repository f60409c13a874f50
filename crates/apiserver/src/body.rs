//! Request bodies: bounded, in any format that Kubernetes' clients send, as one JSON value.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tether_machinery::status::ApiError;
use tether_machinery::{json, proto};

/// Kubernetes' own limit; etcd's objects are at most half of it.
pub const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// How a complaint about YAML begins where the reader wanted YAML and nothing else.
pub const YAML_ERROR: &str = "error decoding YAML: error converting YAML to JSON: ";

/// A decoded body, with what a strict reader would object to.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    /// `duplicate field "spec.x"`, one for each.
    pub complaints: Vec<String>,
}

/// Reads the whole body, or fails with 413.
pub async fn collect<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let error = match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(collected) => return Ok(collected.to_bytes()),
        Err(error) => error,
    };
    if error.downcast_ref::<LengthLimitError>().is_some() {
        return Err(ApiError::too_large(format!("Request entity too large: limit is {MAX_BODY_BYTES}")));
    }
    Err(ApiError::bad_request(format!("could not read the request body: {error}")))
}

/// The media type of a request, without parameters; JSON if the client gave none.
pub fn media_type(headers: &HeaderMap) -> &str {
    let full = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    match full.split(';').next().unwrap_or_default().trim() {
        "" => "application/json",
        given => given,
    }
}

/// Whether the body says that it is JSON.
pub fn is_json(headers: &HeaderMap) -> bool {
    matches!(media_type(headers), "application/json" | "application/merge-patch+json" | "text/json")
}

/// Decodes an object by its content type.
pub fn decode(headers: &HeaderMap, bytes: &Bytes) -> Result<Decoded, ApiError> {
    match media_type(headers) {
        _ if is_json(headers) => decode_json(bytes),
        "application/yaml" | "text/yaml" => decode_yaml(bytes),
        "application/vnd.kubernetes.protobuf" => {
            let value = proto::decode(bytes).map_err(|e| ApiError::bad_request(e.to_string()))?;
            Ok(Decoded { value, complaints: Vec::new() })
        }
        _ => Err(unknown_format(&["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"])),
    }
}

/// 415 for a body that is none of the given types.
pub fn unknown_format(accepted: &[&str]) -> ApiError {
    ApiError::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        accepted.join(", ")
    ))
}

/// JSON with duplicate fields noticed and depth bounded.
pub fn decode_json(bytes: &[u8]) -> Result<Decoded, ApiError> {
    let (value, duplicates) = json::parse_strict(bytes).map_err(|e| ApiError::bad_request(e.to_string()))?;
    Ok(Decoded { value, complaints: duplicates.iter().map(|path| json::duplicate_field(path)).collect() })
}

/// YAML, or JSON that is sent as YAML (as `kubectl apply --server-side` does).
pub fn decode_yaml(bytes: &[u8]) -> Result<Decoded, ApiError> {
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
        && let Ok(decoded) = decode_json(bytes)
    {
        return Ok(decoded);
    }
    let document = serde_yaml_ng::Deserializer::from_slice(bytes);
    let (value, duplicates) =
        json::read_strict(document).map_err(|e| ApiError::bad_request(format!("{YAML_ERROR}{}", go_yaml(&e))))?;
    let set_twice = |path: &String| format!("key {:?} already set in map", path.rsplit('.').next().unwrap_or(path));
    Ok(Decoded { value, complaints: duplicates.iter().map(set_twice).collect() })
}

/// What is wrong with a YAML document, in the words of Go's parser. It counts the lines that it has read when it
/// misses something, and names the line when it finds something odd.
fn go_yaml(error: &serde_yaml_ng::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    let line = error.location().map_or(0, |at| at.line());
    match line - usize::from(line > 0 && what.starts_with("did not find expected")) {
        0 => format!("yaml: {what}"),
        line => format!("yaml: line {line}: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_content_type() {
        let mut headers = HeaderMap::new();
        assert_eq!(decode(&headers, &Bytes::from_static(b"{\"a\":1}")).expect("json").value["a"], 1);
        headers.insert(CONTENT_TYPE, "application/yaml; charset=utf-8".parse().expect("header"));
        assert_eq!(decode(&headers, &Bytes::from_static(b"a: 1")).expect("yaml").value["a"], 1);
        let twice = decode(&headers, &Bytes::from_static(b"a: {b: 1, b: 2}")).expect("yaml");
        assert_eq!(twice.value["a"]["b"], 2);
        assert_eq!(twice.complaints, ["key \"b\" already set in map"]);
        let broken = decode(&headers, &Bytes::from_static(b"[1")).expect_err("no yaml").message;
        assert_eq!(broken, format!("{YAML_ERROR}yaml: line 1: did not find expected ',' or ']'"));
        headers.insert(CONTENT_TYPE, "text/plain".parse().expect("header"));
        assert_eq!(decode(&headers, &Bytes::from_static(b"a")).expect_err("text").code, 415);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused() {
        let body = http_body_util::Full::new(Bytes::from(vec![b'x'; MAX_BODY_BYTES + 1]));
        assert_eq!(collect(body).await.expect_err("too large").code, 413);
    }
}
