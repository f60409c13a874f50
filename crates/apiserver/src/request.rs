//! What a request asks for: the path and method read as Kubernetes reads them, and the query as typed options.

use std::collections::BTreeMap;

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
        info.read_resource(rest);
        info.verb = info.resource_verb(method, query);
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

    fn resource_verb(&mut self, method: &Method, query: &Query) -> &'static str {
        let collection = self.name.is_empty();
        match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD => {
                let watch = query.flag("watch").unwrap_or(false);
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

/// The query string, decoded once; a parameter given twice keeps its first value, `dryRun` included.
#[derive(Clone, Debug, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn parse(raw: Option<&str>) -> Result<Self, ApiError> {
        let raw = raw.unwrap_or_default();
        if raw.len() > MAX_QUERY_BYTES {
            return Err(ApiError::bad_request(format!("query string is longer than {MAX_QUERY_BYTES} bytes")));
        }
        let mut map = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(raw.as_bytes()) {
            map.entry(key.into_owned()).or_insert(value.into_owned());
        }
        Ok(Self(map))
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// A boolean; `?watch` and `?watch=` count as true, as Kubernetes reads them.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key).map(|v| !matches!(v.as_str(), "false" | "0" | "f" | "F" | "False" | "FALSE"))
    }

    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let wrong =
            || ApiError::bad_request(format!("query parameter {key}: Invalid value: {text:?}: must be a whole number"));
        text.parse().map(Some).map_err(|_| wrong())
    }
}

/// Options of every write: `dryRun`, `fieldManager`, `fieldValidation`, `force`.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    pub validation: FieldValidation,
    pub force: Option<bool>,
}

/// What happens to fields that the schema does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Kubernetes' limit on the name of a field manager.
const MAX_MANAGER_BYTES: usize = 128;

impl WriteOptions {
    /// `agent` is the User-Agent header: its first word is the field manager when none is given.
    pub fn parse(query: &Query, agent: &str) -> Result<Self, ApiError> {
        let dry_run = match query.get("dryRun") {
            None => false,
            Some("All") => true,
            Some(other) => {
                let why = format!("dryRun: Unsupported value: {other:?}: supported values: \"All\"");
                return Err(ApiError::bad_request(why));
            }
        };
        let validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let why = format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                );
                return Err(ApiError::bad_request(why));
            }
        };
        let manager = match query.get("fieldManager") {
            Some(name) if name.len() > MAX_MANAGER_BYTES => {
                let why = format!("fieldManager: Too long: may not be more than {MAX_MANAGER_BYTES} bytes");
                return Err(ApiError::bad_request(why));
            }
            Some(name) => name.to_owned(),
            None => manager_from_agent(agent),
        };
        Ok(Self { dry_run, manager, validation, force: query.flag("force") })
    }
}

fn manager_from_agent(agent: &str) -> String {
    let first = agent.split('/').next().unwrap_or_default().trim();
    let printable: String = first.chars().filter(|c| !c.is_control()).take(MAX_MANAGER_BYTES).collect();
    if printable.is_empty() { "unknown".to_owned() } else { printable }
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

    #[test]
    fn options_name_the_bad_parameter() {
        let query = Query::parse(Some("dryRun=yes")).expect("query");
        let e = WriteOptions::parse(&query, "").expect_err("bad dryRun");
        assert!(e.message.contains("dryRun") && e.message.contains("yes"), "{e}");
        let query = Query::parse(Some("limit=x")).expect("query");
        assert!(query.number::<u64>("limit").expect_err("bad limit").message.contains("limit"));
        let query = Query::parse(Some("")).expect("query");
        let options = WriteOptions::parse(&query, "kubectl/v1.32.4 (linux/amd64)").expect("options");
        assert_eq!(options.manager, "kubectl");
    }
}
