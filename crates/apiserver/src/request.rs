//! What a request asks for: the path and method read as Kubernetes reads them, and the query as typed options.

use std::collections::BTreeMap;
use std::num::{IntErrorKind, ParseIntError};

use http::Method;
use tether_machinery::status::ApiError;

use crate::auth::{Attributes, User};

/// The most bytes of a query string that is looked at; selectors are the only long parameters.
const MAX_QUERY_BYTES: usize = 64 * 1024;

/// A request line, understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Kubernetes' verb (`get`, `list`, `watch`, …), or the lower-case method for non-resource paths.
    pub verb: &'static str,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub path: String,
}

impl RequestInfo {
    /// Reads method, path and query. Never fails: what is not a resource path is a non-resource path.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { verb: lower(method), path: path.to_owned(), ..Self::default() };
        let parts: Vec<String> = path.split('/').filter(|p| !p.is_empty()).map(percent_decode).collect();
        let rest = match parts.first().map(String::as_str) {
            Some("api") if parts.len() >= 3 => {
                info.version.clone_from(&parts[1]);
                &parts[2..]
            }
            Some("apis") if parts.len() >= 4 => {
                info.group.clone_from(&parts[1]);
                info.version.clone_from(&parts[2]);
                &parts[3..]
            }
            _ => return info,
        };
        info.is_resource = true;
        // `/api/v1/watch/pods` is the old way to say `/api/v1/pods?watch=true`.
        let old_watch = rest.len() > 1 && rest[0] == "watch";
        info.read_resource(if old_watch { &rest[1..] } else { rest });
        info.verb = info.resource_verb(method, query, old_watch);
        info
    }

    fn read_resource(&mut self, parts: &[String]) {
        let get = |i: usize| parts.get(i).cloned().unwrap_or_default();
        // `namespaces/x/pods` is a namespaced resource; `namespaces/x/status` is a part of the namespace itself.
        let namespaced =
            parts[0] == "namespaces" && parts.len() > 2 && !matches!(parts[2].as_str(), "status" | "finalize");
        if namespaced {
            self.namespace = get(1);
            self.resource = get(2);
            self.name = get(3);
            self.subresource = parts.get(4..).unwrap_or_default().join("/");
        } else {
            self.resource = get(0);
            self.name = get(1);
            self.subresource = parts.get(2..).unwrap_or_default().join("/");
            if self.resource == "namespaces" {
                self.namespace.clone_from(&self.name);
            }
        }
    }

    fn resource_verb(&mut self, method: &Method, query: &Query, old_watch: bool) -> &'static str {
        let collection = self.name.is_empty();
        match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD => {
                let watch = old_watch || query.flag("watch").unwrap_or(false);
                if collection || watch {
                    self.name_from_selector(query);
                }
                match (watch, collection) {
                    (true, _) => "watch",
                    (false, true) => "list",
                    (false, false) => "get",
                }
            }
            _ => lower(method),
        }
    }

    /// `fieldSelector=metadata.name=x` names the one object, so that RBAC's resourceNames apply to it.
    fn name_from_selector(&mut self, query: &Query) {
        let selector = query.get("fieldSelector").unwrap_or_default();
        for term in selector.split(',') {
            let value = term.strip_prefix("metadata.name==").or_else(|| term.strip_prefix("metadata.name="));
            if let Some(name) = value
                && self.name.is_empty()
                && !name.is_empty()
            {
                name.clone_into(&mut self.name);
            }
        }
    }

    /// What authorization decides on.
    pub fn attributes(&self, user: User, query: &Query) -> Attributes {
        Attributes {
            user,
            verb: self.verb.to_owned(),
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            subresource: self.subresource.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            path: self.path.clone(),
            is_resource: self.is_resource,
            field_selector: query.get("fieldSelector").unwrap_or_default().to_owned(),
        }
    }
}

fn lower(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

fn percent_decode(part: &str) -> String {
    percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned()
}

fn go_words(error: &ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    }
}

/// The query string, decoded once. Of a parameter given twice the first value counts, unless it is a list.
#[derive(Clone, Debug, Default)]
pub struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    pub fn parse(raw: Option<&str>) -> Result<Self, ApiError> {
        let raw = raw.unwrap_or_default();
        if raw.len() > MAX_QUERY_BYTES {
            return Err(ApiError::bad_request(format!("query string is longer than {MAX_QUERY_BYTES} bytes")));
        }
        let mut map: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(raw.as_bytes()) {
            map.entry(key.into_owned()).or_default().push(value.into_owned());
        }
        Ok(Self(map))
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.all(key).first().map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Every value of a parameter that is a list.
    pub fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// A boolean; `?watch` and `?watch=` count as true, as Kubernetes reads them.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.all(key).first().map(|v| !matches!(v.as_str(), "false" | "0" | "f" | "F" | "False" | "FALSE"))
    }

    /// A whole number; what Go says about others, for scripts that look for it.
    pub fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|e: ParseIntError| {
            ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {}", go_words(&e)))
        })
    }

    /// The `resourceVersion` of a read.
    pub fn revision(&self) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get("resourceVersion") else { return Ok(None) };
        text.parse().map(Some).map_err(|e: ParseIntError| {
            let why = format!("strconv.ParseUint: parsing {text:?}: {}", go_words(&e));
            ApiError::bad_request(format!("invalid resource version: resourceVersion: Invalid value: {text:?}: {why}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: Method, path: &str, query: &str) -> RequestInfo {
        RequestInfo::parse(&method, path, &Query::parse(Some(query)).expect("query"))
    }

    #[test]
    fn resource_paths() {
        let cases = [
            (Method::GET, "/api/v1/pods", "", "list", "", "pods", "", "", ""),
            (Method::GET, "/api/v1/namespaces", "", "list", "", "namespaces", "", "", ""),
            (Method::GET, "/api/v1/namespaces/a", "", "get", "", "namespaces", "", "a", "a"),
            (Method::PUT, "/api/v1/namespaces/a/finalize", "", "update", "", "namespaces", "finalize", "a", "a"),
            (Method::GET, "/api/v1/namespaces/a/pods", "watch=1", "watch", "", "pods", "", "a", ""),
            (Method::GET, "/api/v1/watch/namespaces/a/pods/b", "", "watch", "", "pods", "", "a", "b"),
            (Method::DELETE, "/api/v1/namespaces/a/pods", "", "deletecollection", "", "pods", "", "a", ""),
            (Method::POST, "/api/v1/namespaces/a/pods/b/eviction", "", "create", "", "pods", "eviction", "a", "b"),
            (Method::PATCH, "/apis/g.io/v1/things/t/status", "", "patch", "g.io", "things", "status", "", "t"),
            (Method::GET, "/api/v1/nodes", "fieldSelector=metadata.name%3Dn1", "list", "", "nodes", "", "", "n1"),
        ];
        for (method, path, query, verb, group, resource, subresource, namespace, name) in cases {
            let info = parse(method, path, query);
            assert!(info.is_resource, "{path}");
            let got = (info.verb, &*info.group, &*info.resource, &*info.subresource, &*info.namespace, &*info.name);
            assert_eq!(got, (verb, group, resource, subresource, namespace, name), "{path}?{query}");
        }
    }

    #[test]
    fn other_paths_are_not_resources() {
        for path in ["/", "/api", "/apis", "/api/v1", "/apis/g", "/apis/g/v1", "/livez", "/openapi/v3/api/v1"] {
            let info = parse(Method::GET, path, "");
            assert!(!info.is_resource, "{path}");
            assert_eq!(info.verb, "get");
        }
    }
}
