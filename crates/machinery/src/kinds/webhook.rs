//! Validating and mutating webhook configurations.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{bump_generation, fill, items_mut, same_at, set_in};

pub(super) const VALIDATING: Strategy = Strategy {
    default: |configuration| default_webhooks(configuration, false),
    prepare_create,
    prepare_update,
    ..Strategy::PLAIN
};

pub(super) const MUTATING: Strategy =
    Strategy { default: |configuration| default_webhooks(configuration, true), ..VALIDATING };

/// Seconds that a webhook gets to answer.
const TIMEOUT_SECONDS: i64 = 10;
const HTTPS_PORT: i64 = 443;

fn default_webhooks(configuration: &mut Value, mutating: bool) {
    for webhook in items_mut(configuration, "/webhooks") {
        for rule in items_mut(webhook, "/rules").iter_mut().filter_map(Value::as_object_mut) {
            fill(rule, "scope", "*");
        }
        if let Some(service) = webhook.pointer_mut("/clientConfig/service").and_then(Value::as_object_mut) {
            fill(service, "port", HTTPS_PORT);
        }
        if let Some(webhook) = webhook.as_object_mut() {
            fill(webhook, "failurePolicy", "Fail");
            fill(webhook, "matchPolicy", "Equivalent");
            fill(webhook, "namespaceSelector", json!({}));
            fill(webhook, "objectSelector", json!({}));
            fill(webhook, "timeoutSeconds", TIMEOUT_SECONDS);
            if mutating {
                fill(webhook, "reinvocationPolicy", "Never");
            }
        }
    }
}

fn prepare_create(configuration: &mut Value, _now: Timestamp) {
    set_in(configuration, "metadata", "generation", 1.into());
}

fn prepare_update(new: &mut Value, old: &Value) {
    if !same_at(new, old, "/webhooks") {
        bump_generation(new, old);
    }
}
