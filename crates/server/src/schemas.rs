//! What clients may ask for, as they find out themselves: one schema for each type.

use serde_json::{Map, Value, json};

use crate::actions::ACTIONS;
use crate::resources::Links;
use crate::route::Collection;

/// Name and type of a field; the methods that take it.
type Field = (&'static str, &'static str, &'static str);

const VOLUME: &[Field] = &[
    ("name", "string", "create"),
    ("size", "string", "create"),
    ("frontend", "string", "create"),
    ("numberOfReplicas", "int", "create"),
    ("staleReplicaTimeout", "int", "create"),
    ("dataLocality", "string", "create"),
    ("accessMode", "string", "create"),
    ("migratable", "boolean", "create"),
    ("encrypted", "boolean", "create"),
    ("diskSelector", "array[string]", "create"),
    ("nodeSelector", "array[string]", "create"),
    ("fromBackup", "string", "create"),
    ("dataSource", "string", "create"),
    ("standby", "boolean", "create"),
    ("dataEngine", "string", "create"),
    ("state", "string", ""),
    ("robustness", "string", ""),
    ("disableFrontend", "boolean", ""),
    ("lastAttachedBy", "string", ""),
    ("ready", "boolean", ""),
    ("notReadyMessage", "string", ""),
    ("created", "string", ""),
    ("conditions", "map[volumeCondition]", ""),
    ("kubernetesStatus", "kubernetesStatus", ""),
    ("replicas", "array[replica]", ""),
    ("controllers", "array[controller]", ""),
    ("volumeAttachment", "volumeAttachment", ""),
];
const NODE: &[Field] = &[
    ("name", "string", ""),
    ("allowScheduling", "boolean", "update"),
    ("evictionRequested", "boolean", "update"),
    ("tags", "array[string]", "update"),
    ("conditions", "map[nodeCondition]", ""),
    ("disks", "map[diskInfo]", ""),
    ("region", "string", ""),
    ("zone", "string", ""),
];
const SETTING: &[Field] = &[
    ("name", "string", ""),
    ("value", "string", "update"),
    ("applied", "boolean", ""),
    ("definition", "settingDefinition", ""),
];
const VOLUME_ATTACHMENT: &[Field] = &[("volume", "string", ""), ("attachments", "map[attachment]", "")];
const ATTACH_INPUT: &[Field] = &[
    ("hostId", "string", "create"),
    ("disableFrontend", "boolean", "create"),
    ("attachedBy", "string", "create"),
    ("attacherType", "string", "create"),
    ("attachmentID", "string", "create"),
];
const DETACH_INPUT: &[Field] =
    &[("attachmentID", "string", "create"), ("hostId", "string", "create"), ("forceDetach", "boolean", "create")];
const EXPAND_INPUT: &[Field] = &[("size", "string", "create")];
const ERROR: &[Field] =
    &[("status", "int", ""), ("code", "string", ""), ("message", "string", ""), ("detail", "string", "")];

/// Every schema.
pub(crate) fn all(links: &Links) -> Vec<Value> {
    let mut schemas: Vec<Value> =
        Collection::ALL.into_iter().map(|collection| of_collection(links, collection)).collect();
    for (id, fields) in [
        ("attachInput", ATTACH_INPUT),
        ("detachInput", DETACH_INPUT),
        ("expandInput", EXPAND_INPUT),
        ("error", ERROR),
        ("apiVersion", &[]),
        ("schema", &[]),
    ] {
        let plural = if id == "schema" { "schemas".to_owned() } else { format!("{}s", id.to_lowercase()) };
        schemas.push(schema(links, id, &plural, [&[], &[]], fields, json!({})));
    }
    schemas
}

fn of_collection(links: &Links, collection: Collection) -> Value {
    let (methods, fields): ([&[&str]; 2], _) = match collection {
        Collection::Volumes => ([&["GET", "POST"], &["GET", "DELETE"]], VOLUME),
        Collection::Nodes => ([&["GET"], &["GET", "PUT"]], NODE),
        Collection::Settings => ([&["GET"], &["GET", "PUT"]], SETTING),
        Collection::VolumeAttachments => ([&["GET"], &["GET"]], VOLUME_ATTACHMENT),
    };
    let mut actions: Map<String, Value> = Map::new();
    if collection == Collection::Volumes {
        for (action, input) in ACTIONS {
            actions.insert((*action).to_owned(), json!({"input": input, "output": "volume"}));
        }
    }
    schema(links, collection.kind(), collection.plural(), methods, fields, actions.into())
}

fn schema(links: &Links, id: &str, plural: &str, methods: [&[&str]; 2], fields: &[Field], actions: Value) -> Value {
    let field = |&(name, kind, taken): &Field| {
        let fields = json!({"type": kind, "create": taken == "create", "update": taken == "update", "nullable": true});
        (name.to_owned(), fields)
    };
    let fields: Map<String, Value> = fields.iter().map(field).collect();
    json!({
        "id": id,
        "type": "schema",
        "pluralName": plural,
        "links": {"self": format!("{}/{id}", links.schemas()), "collection": links.to(plural)},
        "actions": {},
        "collectionMethods": methods[0],
        "resourceMethods": methods[1],
        "resourceFields": fields,
        "resourceActions": actions,
        "collectionFields": {},
        "collectionActions": {},
        "collectionFilters": {},
    })
}
