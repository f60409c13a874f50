//! Paths and operations, before they are written in either version of OpenAPI.

use serde_json::{Value, json};

use super::schemas::gvk;
use super::{Resource, Subresource};

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const RESOURCE_LIST: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";

/// Bodies of PATCH, by what they do.
pub(super) const PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// One path with everything that can be done there.
pub(super) struct PathDoc {
    pub path: String,
    pub parameters: Vec<Parameter>,
    pub operations: Vec<Operation>,
}

pub(super) struct Operation {
    /// HTTP method, lower case.
    pub method: &'static str,
    /// `x-kubernetes-action`
    pub action: &'static str,
    pub id: String,
    pub description: String,
    pub tag: String,
    pub gvk: Option<Value>,
    pub parameters: Vec<Parameter>,
    /// Definition and whether it must be there.
    pub body: Option<(String, bool)>,
    /// Definition and the codes that it comes with.
    pub answer: (String, &'static [(&'static str, &'static str)]),
}

impl Operation {
    pub(super) fn is_patch(&self) -> bool {
        self.method == "patch"
    }
}

#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub ty: &'static str,
    pub in_path: bool,
    pub description: &'static str,
}

const fn query(name: &'static str, ty: &'static str, description: &'static str) -> Parameter {
    Parameter { name, ty, in_path: false, description }
}

const NAME: Parameter = Parameter { name: "name", ty: "string", in_path: true, description: "name of the object" };
const NAMESPACE: Parameter =
    Parameter { name: "namespace", ty: "string", in_path: true, description: "namespace of the object" };
const PRETTY: Parameter = query("pretty", "string", "Indent the answer if 'true'.");
const DRY_RUN: Parameter = query("dryRun", "string", "'All': everything happens but the write.");
const FIELD_MANAGER: Parameter = query("fieldManager", "string", "Who owns the fields that are set.");
const FIELD_VALIDATION: Parameter =
    query("fieldValidation", "string", "What to do about unknown and duplicate fields: Ignore, Warn or Strict.");
const FORCE: Parameter = query("force", "boolean", "Take over fields that others own (server-side apply).");

const WRITE: [Parameter; 3] = [DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
const PATCHING: [Parameter; 4] = [DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
const DELETE: [Parameter; 4] = [
    DRY_RUN,
    query("gracePeriodSeconds", "integer", "Seconds before the object is deleted; 0 deletes at once."),
    query("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    query("propagationPolicy", "string", "What becomes of dependents: Orphan, Background or Foreground."),
];
const LIST: [Parameter; 10] = [
    query("allowWatchBookmarks", "boolean", "Send bookmarks in a watch."),
    query("continue", "string", "Where the last page ended."),
    query("fieldSelector", "string", "Only objects whose fields match."),
    query("labelSelector", "string", "Only objects whose labels match."),
    query("limit", "integer", "Objects on one page."),
    query("resourceVersion", "string", "The version to read at or watch from."),
    query("resourceVersionMatch", "string", "How resourceVersion is meant: Exact or NotOlderThan."),
    query("sendInitialEvents", "boolean", "Begin a watch with the objects that exist."),
    query("timeoutSeconds", "integer", "Seconds after which the request ends."),
    query("watch", "boolean", "Stay, and send changes as they happen."),
];

const READ: &[(&str, &str)] = &[("200", "OK")];
const CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];
const UPDATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
const DELETED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];

/// The paths of a group and version: the list of its resources, then each of them.
pub(super) fn of_group(group: &str, version: &str, resources: &[&Resource]) -> Vec<PathDoc> {
    let prefix = format!("/{}", super::group_version_path(group, version));
    let names = Names::new(group, version);
    let mut paths = vec![PathDoc {
        path: format!("{prefix}/"),
        parameters: Vec::new(),
        operations: vec![Operation {
            method: "get",
            action: "",
            id: format!("get{}APIResources", names.camel),
            description: "get available resources".to_owned(),
            tag: names.tag.clone(),
            gvk: None,
            parameters: Vec::new(),
            body: None,
            answer: (RESOURCE_LIST.to_owned(), READ),
        }],
    }];
    for resource in resources {
        of_resource(resource, &prefix, &names, &mut paths);
    }
    paths
}

/// What a group and version is called in operation ids and tags.
struct Names {
    camel: String,
    tag: String,
}

impl Names {
    fn new(group: &str, version: &str) -> Self {
        let short = match group.strip_suffix(".k8s.io") {
            _ if group.is_empty() => "core",
            Some(short) => short,
            None => group,
        };
        let camel: String = short.split(['.', '-']).map(capital).collect();
        let mut tag = camel.clone();
        tag[..1].make_ascii_lowercase();
        Self { camel: format!("{camel}{}", capital(version)), tag: format!("{tag}_{version}") }
    }
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn of_resource(resource: &Resource, prefix: &str, names: &Names, paths: &mut Vec<PathDoc>) {
    let has = |verb: &str| resource.verbs.iter().any(|v| v == verb);
    let plural = &resource.plural;
    let scoped = if resource.namespaced { "Namespaced" } else { "" };
    let kind_value = gvk(&resource.group, &resource.version, &resource.kind);
    let make = Maker { names, gvk: kind_value, kind: &resource.kind };
    let object = resource.definition();
    let base = if resource.namespaced {
        format!("{prefix}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{prefix}/{plural}")
    };
    let scope: &[Parameter] = if resource.namespaced { &[NAMESPACE] } else { &[] };
    let kind = &resource.kind;
    let mut collection = Vec::new();
    if has("list") {
        collection.push(make.list(&format!("{scoped}{kind}"), resource));
    }
    if has("create") {
        let id = format!("{scoped}{kind}");
        collection.push(make.write("post", "create", &id, &object, &object, CREATED));
    }
    if has("deletecollection") {
        let mut op = make.op("delete", "deletecollection", &format!("Collection{scoped}{kind}"));
        op.parameters = DELETE.iter().chain(&LIST).copied().collect();
        op.body = Some((DELETE_OPTIONS.to_owned(), false));
        op.answer = (STATUS.to_owned(), READ);
        collection.push(op);
    }
    push(paths, base.clone(), scope, collection);
    if resource.namespaced && has("list") {
        let all = make.list(&format!("{kind}ForAllNamespaces"), resource);
        push(paths, format!("{prefix}/{plural}"), &[], vec![all]);
    }
    let mut item = Vec::new();
    let id = format!("{scoped}{kind}");
    if has("get") {
        item.push(make.read(&id, &object));
    }
    if has("update") {
        item.push(make.write("put", "replace", &id, &object, &object, UPDATED));
    }
    if has("patch") {
        item.push(make.write("patch", "patch", &id, PATCH, &object, UPDATED));
    }
    if has("delete") {
        let mut op = make.op("delete", "delete", &id);
        op.parameters = DELETE.to_vec();
        op.body = Some((DELETE_OPTIONS.to_owned(), false));
        op.answer = (STATUS.to_owned(), DELETED);
        item.push(op);
    }
    let named: Vec<Parameter> = [NAME].iter().chain(scope).copied().collect();
    push(paths, format!("{base}/{{name}}"), &named, item);
    for sub in &resource.subresources {
        let operations = of_subresource(sub, resource, names, scoped);
        push(paths, format!("{base}/{{name}}/{}", sub.name), &named, operations);
    }
}

fn of_subresource(sub: &Subresource, resource: &Resource, names: &Names, scoped: &str) -> Vec<Operation> {
    let has = |verb: &str| sub.verbs.iter().any(|v| v == verb);
    let make = Maker { names, gvk: gvk(&sub.group, &sub.version, &sub.kind), kind: &resource.kind };
    let object = match &sub.schema.definition {
        Some(name) => name.clone(),
        None => resource.definition(),
    };
    let id = format!("{scoped}{}{}", resource.kind, capital(&sub.name));
    let mut operations = Vec::new();
    if has("get") {
        operations.push(make.read(&id, &object));
    }
    if has("create") {
        operations.push(make.write("post", "create", &id, &object, &object, CREATED));
    }
    if has("update") {
        operations.push(make.write("put", "replace", &id, &object, &object, UPDATED));
    }
    if has("patch") {
        operations.push(make.write("patch", "patch", &id, PATCH, &object, UPDATED));
    }
    operations
}

fn push(paths: &mut Vec<PathDoc>, path: String, parameters: &[Parameter], operations: Vec<Operation>) {
    if !operations.is_empty() {
        let parameters = parameters.iter().chain([&PRETTY]).copied().collect();
        paths.push(PathDoc { path, parameters, operations });
    }
}

/// Makes the operations on one kind.
struct Maker<'a> {
    names: &'a Names,
    gvk: Value,
    kind: &'a str,
}

impl Maker<'_> {
    fn op(&self, method: &'static str, verb: &'static str, rest: &str) -> Operation {
        let action = match verb {
            "create" => "post",
            "replace" => "put",
            "read" => "get",
            other => other,
        };
        let id_verb = if verb == "deletecollection" { "delete" } else { verb };
        let article = if verb == "list" || verb == "deletecollection" { "objects of kind" } else { "a" };
        Operation {
            method,
            action,
            id: format!("{id_verb}{}{rest}", self.names.camel),
            description: format!("{id_verb} {article} {}", self.kind),
            tag: self.names.tag.clone(),
            gvk: Some(self.gvk.clone()),
            parameters: Vec::new(),
            body: None,
            answer: (String::new(), READ),
        }
    }

    fn list(&self, rest: &str, resource: &Resource) -> Operation {
        let mut op = self.op("get", "list", rest);
        op.parameters = LIST.to_vec();
        op.answer = (resource.list_definition(), READ);
        op
    }

    fn read(&self, rest: &str, object: &str) -> Operation {
        let mut op = self.op("get", "read", rest);
        op.answer = (object.to_owned(), READ);
        op
    }

    fn write(
        &self,
        method: &'static str,
        verb: &'static str,
        rest: &str,
        body: &str,
        answer: &str,
        codes: &'static [(&'static str, &'static str)],
    ) -> Operation {
        let mut op = self.op(method, verb, rest);
        op.parameters = if method == "patch" { PATCHING.to_vec() } else { WRITE.to_vec() };
        op.body = Some((body.to_owned(), true));
        op.answer = (answer.to_owned(), codes);
        op
    }
}

/// What both versions say about an operation in the same words.
pub(super) fn common(op: &Operation) -> Value {
    let mut out = json!({"description": op.description, "operationId": op.id, "tags": [op.tag]});
    if !op.action.is_empty() {
        out["x-kubernetes-action"] = op.action.into();
    }
    if let Some(gvk) = &op.gvk {
        out["x-kubernetes-group-version-kind"] = gvk.clone();
    }
    out
}
