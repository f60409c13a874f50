//! An object and a patch of each kind. Input: two JSON documents, one after the other.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tether_machinery::{builtin, patch};

fuzz_target!(|data: &[u8]| {
    let mut documents = serde_json::Deserializer::from_slice(data).into_iter::<Value>();
    let (Some(Ok(object)), Some(Ok(change))) = (documents.next(), documents.next()) else { return };
    let pod = builtin::schema("", "v1", "Pod").expect("pods must be known");
    let _ = patch::json(&object, &change);
    let mut merged = object.clone();
    patch::merge(&mut merged, &change);
    let _ = patch::strategic(&object, &change, &pod);
});
