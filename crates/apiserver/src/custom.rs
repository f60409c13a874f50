//! Custom objects between the versions of their definition: as they are stored, and as a version shows them.

use serde_json::{Value, json};
use tether_machinery::crd::{CrdInfo, CrdVersion};
use tether_machinery::json::go_kind;
use tether_machinery::schema::{self, Schema};
use tether_machinery::{builtin, proto};

/// A custom resource: its definition and which of its versions this is.
#[derive(Debug)]
pub struct Custom {
    pub info: CrdInfo,
    pub version: usize,
    /// The revision at which the definition last changed. Objects written later are in its shape already.
    pub changed_at: u64,
    /// The definition is being deleted: nothing new may come.
    pub terminating: bool,
}

impl Custom {
    pub fn version(&self) -> &CrdVersion {
        &self.info.versions[self.version]
    }

    /// The version in which objects are kept.
    fn storage(&self) -> &CrdVersion {
        self.info.storage_version().unwrap_or(self.version())
    }

    /// An object of the store, written at `revision`, as this version shows it. The definition may have changed since.
    pub fn present(&self, object: &mut Value, revision: u64) {
        let kept_in = object["apiVersion"].as_str().and_then(|v| self.info.version(v.rsplit('/').next()?));
        let kept_in = kept_in.unwrap_or_else(|| self.storage());
        if revision < self.changed_at {
            shape(object, &kept_in.schema);
        }
        self.convert(object, self.version());
    }

    /// An object of this version as it is stored.
    pub fn store(&self, object: &mut Value) {
        self.convert(object, self.storage());
    }

    /// Only the name of the version changes, and what the other one does not know is lost.
    fn convert(&self, object: &mut Value, to: &CrdVersion) {
        let api_version = format!("{}/{}", self.info.group, to.name);
        if object["apiVersion"] != api_version {
            object["apiVersion"] = api_version.into();
            schema::prune(object, &to.schema);
        }
    }
}

/// Reads a custom object as a client sent it: its metadata is typed, the rest is what the schema says. Returns the
/// paths of unknown fields, or what has the wrong type.
pub fn clean(object: &mut Value, schema: &Schema) -> Result<Vec<String>, String> {
    let mistaken =
        |value: &Value, ty: &str| Err(format!("json: cannot unmarshal {} into Go value of type {ty}", go_kind(value)));
    if !object.is_object() {
        return mistaken(object, "map[string]interface {}");
    }
    match object.get("metadata") {
        None | Some(Value::Null) => object["metadata"] = json!({}),
        Some(Value::Object(_)) => {}
        Some(other) => return mistaken(other, "v1.ObjectMeta"),
    }
    let unknown = shape(object, schema);
    let mut unknown_meta = schema::prune(&mut object["metadata"], builtin::object_meta());
    schema::decode(&mut object["metadata"], builtin::object_meta())?;
    proto::trim_metadata(object);
    for path in &mut unknown_meta {
        path.insert_str(0, "metadata.");
    }
    unknown_meta.extend(unknown);
    Ok(unknown_meta)
}

/// Prunes and defaults a custom object; returns the paths of what was pruned.
fn shape(object: &mut Value, schema: &Schema) -> Vec<String> {
    let unknown = schema::prune(object, schema);
    schema::apply_defaults(object, schema);
    unknown
}

#[cfg(test)]
mod tests {
    use tether_machinery::crd;

    use super::*;

    /// `v1` is stored and knows a mayor; `v2` does not, but has a default.
    fn towns(version: usize) -> Custom {
        let version_of = |name: &str, storage: bool, spec: Value| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}})
        };
        let definition = json!({"spec": {"group": "g.io", "scope": "Cluster", "names": {"kind": "Town", "plural": "towns"},
        "versions": [
            version_of("v1", true, json!({"size": {"type": "integer", "default": 1}, "mayor": {"type": "string"}})),
            version_of("v2", false, json!({"size": {"type": "integer"}, "river": {"type": "string", "default": "r"}})),
        ]}});
        let info = crd::parse(&definition).expect("definition");
        Custom { info, version, changed_at: 7, terminating: false }
    }

    fn shown(version: usize, mut object: Value, revision: u64) -> Value {
        towns(version).present(&mut object, revision);
        object
    }

    #[test]
    fn a_version_shows_what_it_knows() {
        let stored = json!({"apiVersion": "g.io/v1", "spec": {"mayor": "m"}});
        assert_eq!(shown(0, stored.clone(), 9), stored, "written since the definition changed");
        assert_eq!(shown(0, stored.clone(), 5)["spec"], json!({"mayor": "m", "size": 1}), "written before");
        let other = json!({"apiVersion": "g.io/v2", "spec": {"size": 1}});
        assert_eq!(shown(1, stored, 5), other, "the defaults are those of the version that was stored");
        let old = json!({"apiVersion": "g.io/v0", "spec": {"mayor": "m"}});
        assert_eq!(shown(0, old, 9)["apiVersion"], "g.io/v1", "a version that is gone");
    }

    #[test]
    fn objects_are_stored_in_one_version() {
        let mut object = json!({"apiVersion": "g.io/v2", "spec": {"size": 2, "river": "x"}});
        towns(1).store(&mut object);
        assert_eq!(object, json!({"apiVersion": "g.io/v1", "spec": {"size": 2}}));
    }
}
