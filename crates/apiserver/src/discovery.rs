//! Discovery: which groups, versions and resources exist, in the old form and the aggregated one.

use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use crate::registry::Registry;
use crate::resource::Resource;
use crate::response::{self, Body};

/// The Kubernetes version that the served API follows.
pub const API_MAJOR: &str = "1";
/// See [`API_MAJOR`].
pub const API_MINOR: &str = "35";

/// Answers a discovery path, if it is one; `address` is where this server can be reached.
pub fn answer(registry: &Registry, address: &str, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let body = match parts.as_slice() {
        ["api" | "apis"] if wants_aggregated(headers) => {
            let document = aggregated(registry, parts[0] == "api");
            let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Some(response::document(content_type, document.to_string()));
        }
        ["api"] => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }),
        ["apis"] => {
            let groups: Vec<Value> = named_groups(registry).map(|(g, v)| group(&g, &v, false)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["apis", name] => {
            let (name, versions) = named_groups(registry).find(|(group, _)| group == name)?;
            group(&name, &versions, true)
        }
        ["api", version] => resource_list(registry, "", version)?,
        ["apis", group, version] => resource_list(registry, group, version)?,
        _ => return None,
    };
    Some(response::json(StatusCode::OK, &body))
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|range| {
        let has = |param: &str| range.split(';').any(|p| p.trim() == param);
        has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList") && range.contains("json")
    })
}

/// The groups under `/apis`, which is all but the core group.
fn named_groups(registry: &Registry) -> impl Iterator<Item = (String, Vec<String>)> {
    registry.groups().into_iter().filter(|(group, _)| !group.is_empty())
}

fn group(name: &str, versions: &[String], standalone: bool) -> Value {
    let versions: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v})).collect();
    let mut group = json!({"name": name, "versions": versions, "preferredVersion": versions[0]});
    if standalone {
        group["kind"] = "APIGroup".into();
        group["apiVersion"] = "v1".into();
    }
    group
}

fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let resources = registry.group_version(group, version);
    if resources.is_empty() {
        return None;
    }
    let listed: Vec<Value> = resources.into_iter().flat_map(|r| entries(r)).collect();
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": listed});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// A resource and its subresources as `APIResource`s.
fn entries(resource: &Resource) -> Vec<Value> {
    let mut entry = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if resource.verbs.contains(&"list") {
        entry["storageVersionHash"] = storage_version_hash(resource).into();
    }
    let mut all = vec![entry];
    for sub in &resource.subresources {
        let mut entry = json!({
            "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
            "namespaced": resource.namespaced, "kind": sub.kind, "verbs": sub.verbs,
        });
        if sub.group != resource.group {
            entry["group"] = sub.group.as_str().into();
            entry["version"] = sub.version.as_str().into();
        }
        all.push(entry);
    }
    all
}

/// A stable mark of how objects are stored; clients only compare it.
fn storage_version_hash(resource: &Resource) -> String {
    use base64::Engine;
    use sha2::Digest;
    let digest = sha2::Sha256::digest(format!("{}/{}/{}", resource.group, resource.version, resource.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| group.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        registry.group_version(&group, version).into_iter().map(|r| aggregated_resource(r)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if core {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subs = resource.subresources.iter().map(|sub| {
            json!({
                "subresource": sub.name, "verbs": sub.verbs,
                "responseKind": kind(&sub.group, &sub.version, &sub.kind),
            })
        });
        entry["subresources"] = subs.collect();
    }
    entry
}

/// The version as `kubectl version` prints it.
pub fn git_version() -> String {
    format!("v{API_MAJOR}.{API_MINOR}.0+tether-{}", env!("CARGO_PKG_VERSION"))
}

/// `/version`.
pub fn version() -> Value {
    json!({
        "major": API_MAJOR, "minor": API_MINOR,
        "gitVersion": git_version(),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, go_arch()),
    })
}

/// The architecture in the words of Kubernetes.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_agree_on_what_is_served() {
        let registry = Registry::new(&[]);
        let old = resource_list(&registry, "", "v1").expect("core");
        let names: Vec<&str> =
            old["resources"].as_array().expect("list").iter().filter_map(|r| r["name"].as_str()).collect();
        assert!(names.contains(&"pods") && names.contains(&"pods/eviction"), "{names:?}");
        let new = aggregated(&registry, true);
        let count = new["items"][0]["versions"][0]["resources"].as_array().expect("list").len();
        assert_eq!(count, names.iter().filter(|n| !n.contains('/')).count());
    }

    #[test]
    fn unknown_groups_are_not_found() {
        let registry = Registry::new(&[]);
        for path in ["/apis/nope", "/apis/nope/v1", "/api/v2", "/elsewhere"] {
            assert!(answer(&registry, "", path, &HeaderMap::new()).is_none(), "{path}");
        }
    }
}
