//! Secrets: `stringData` is written, never read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Strategy;
use super::edit::{child, fill_zero};

pub(super) const STRATEGY: Strategy = Strategy { default, ..Strategy::PLAIN };

fn default(secret: &mut Value) {
    if let Some(map) = secret.as_object_mut() {
        fill_zero(map, "type", "Opaque");
        if let Some(Value::Object(texts)) = map.remove("stringData")
            && let Some(data) = child(secret, "data")
        {
            for (key, text) in texts {
                let text = text.as_str().unwrap_or_default();
                data.insert(key, STANDARD.encode(text).into());
            }
        }
    }
}
