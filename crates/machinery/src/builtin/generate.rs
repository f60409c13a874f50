//! From the schemas that `k8s-openapi` describes its types with to [`Schema`] nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::SchemaGenerator;
use serde_json::{Map, Value};

use super::kinds::{KINDS, Kind};
use super::{enums, overlay};
use crate::schema::{Schema, Type};

const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Definitions that were asked for, by name. They live as long as the process, so that nodes which contain
/// themselves can be followed without counting references.
type Cache = BTreeMap<String, &'static Arc<Schema>>;

static CACHE: Mutex<Cache> = Mutex::new(Cache::new());

fn cache() -> MutexGuard<'static, Cache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn definition(name: &str) -> Option<&'static Arc<Schema>> {
    // A schema or a truth value, a schema or a list: what has fields to know is the schema.
    let name = match name.strip_prefix(EXTENSIONS) {
        Some(".JSONSchemaPropsOrBool" | ".JSONSchemaPropsOrArray" | ".JSONSchemaPropsOrStringArray") => {
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
        }
        _ => name,
    };
    if let Some(found) = cache().get(name) {
        return Some(found);
    }
    if let Some(kind) = KINDS.iter().find(|kind| kind.definition == name) {
        return generate(kind, name);
    }
    let item = name.strip_suffix("List").and_then(|item| KINDS.iter().find(|kind| kind.definition == item));
    if let Some(kind) = item.filter(|kind| kind.listable) {
        return list_of(kind, name);
    }
    // Part of some kind: whichever of the same package comes first.
    let package = name.rsplit_once('.').map_or(name, |(package, _)| package);
    let (near, far): (Vec<&Kind>, Vec<&Kind>) = KINDS.iter().partition(|kind| kind.definition.starts_with(package));
    near.into_iter().chain(far).find_map(|kind| generate(kind, name))
}

/// Generates a kind with everything it refers to; returns the definition that was wanted, if it is among them.
fn generate(kind: &Kind, wanted: &str) -> Option<&'static Arc<Schema>> {
    let mut generator = SchemaGenerator::default();
    (kind.generate)(&mut generator);
    let definitions = generator.take_definitions(false);
    let mut cache = cache();
    let mut builder = Builder { definitions: &definitions, cache: &mut cache, open: Vec::new() };
    for name in definitions.keys() {
        builder.definition(name);
    }
    cache.get(wanted).copied()
}

fn list_of(kind: &Kind, name: &str) -> Option<&'static Arc<Schema>> {
    let item = definition(kind.definition)?;
    let list_meta = definition(&format!("{META}.ListMeta"))?;
    let mut schema = Schema {
        ty: Type::Object,
        description: format!("{}List is a list of {}", kind.kind, kind.kind),
        required: vec!["items".to_owned()],
        definition: Some(name.to_owned()),
        ..Schema::default()
    };
    for field in ["apiVersion", "kind"] {
        let known = item.properties.get(field)?;
        schema.properties.insert(field.to_owned(), Arc::clone(known));
    }
    let items = Schema { ty: Type::Array, items: Some(Arc::clone(item)), ..Schema::default() };
    schema.properties.insert("items".to_owned(), Arc::new(items));
    schema.properties.insert("metadata".to_owned(), Arc::clone(list_meta));
    Some(keep(&mut cache(), name, schema))
}

fn keep(cache: &mut Cache, name: &str, schema: Schema) -> &'static Arc<Schema> {
    cache.entry(name.to_owned()).or_insert_with(|| Box::leak(Box::new(Arc::new(schema))))
}

struct Builder<'a> {
    definitions: &'a Map<String, Value>,
    cache: &'a mut Cache,
    /// Definitions that are being built: a reference to one of them is where it contains itself.
    open: Vec<String>,
}

impl Builder<'_> {
    fn definition(&mut self, name: &str) -> Option<Arc<Schema>> {
        if let Some(known) = self.cache.get(name) {
            return Some(Arc::clone(known));
        }
        if self.open.iter().any(|open| open == name) {
            return Some(Arc::new(contains_itself(name)));
        }
        let description = self.definitions.get(name)?;
        self.open.push(name.to_owned());
        let mut schema = special(name).unwrap_or_else(|| self.node(description));
        self.open.pop();
        schema.description = text(description, "description");
        schema.definition = Some(name.to_owned());
        overlay::apply(name, &mut schema);
        enums::apply(name, &mut schema);
        Some(Arc::clone(keep(self.cache, name, schema)))
    }

    /// A property, an item, a value of a map: a reference, or spelled out.
    fn shared(&mut self, value: &Value) -> Arc<Schema> {
        let reference = value.get("$ref").and_then(Value::as_str);
        let Some(name) = reference.and_then(|path| path.rsplit('/').next()) else {
            return Arc::new(self.node(value));
        };
        let definition = self.definition(name).unwrap_or_else(|| Arc::new(Schema::anything()));
        match text(value, "description") {
            none if none.is_empty() => definition,
            description => Arc::new(Schema { description, ..Schema::clone(&definition) }),
        }
    }

    fn node(&mut self, value: &Value) -> Schema {
        let mut schema = Schema {
            ty: type_of(value),
            format: value.get("format").and_then(Value::as_str).map(str::to_owned),
            description: text(value, "description"),
            ..Schema::default()
        };
        for (name, property) in value.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let property = self.shared(property);
            schema.properties.insert(name.clone(), property);
        }
        schema.items = value.get("items").map(|items| self.shared(items));
        schema.additional = value.get("additionalProperties").map(|values| self.shared(values));
        let required = value.get("required").and_then(Value::as_array).into_iter().flatten();
        schema.required = required.filter_map(Value::as_str).map(str::to_owned).collect();
        schema
    }
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn type_of(value: &Value) -> Type {
    if value.get("x-kubernetes-int-or-string").is_some() {
        return Type::IntOrString;
    }
    match value.get("type").and_then(Value::as_str) {
        Some("object") => Type::Object,
        Some("array") => Type::Array,
        Some("string") => Type::String,
        Some("integer") => Type::Integer,
        Some("number") => Type::Number,
        Some("boolean") => Type::Boolean,
        _ => Type::Any,
    }
}

fn contains_itself(name: &str) -> Schema {
    Schema {
        ty: Type::Object,
        preserve_unknown: true,
        definition: Some(name.to_owned()),
        recursive: true,
        ..Schema::default()
    }
}

/// Types whose JSON is not what their description says.
fn special(name: &str) -> Option<Schema> {
    let free = Schema { preserve_unknown: true, ..Schema::anything() };
    let (package, short) = name.rsplit_once('.')?;
    match short {
        "JSON" if package == EXTENSIONS => Some(free),
        "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" => {
            Some(Schema { recursive: true, ..free })
        }
        "FieldsV1" if package == META => Some(Schema { ty: Type::Object, ..free }),
        "RawExtension" => Some(Schema { ty: Type::Object, ..free }),
        _ => None,
    }
}
