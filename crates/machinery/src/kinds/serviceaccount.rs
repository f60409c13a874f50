//! ServiceAccounts.

use serde_json::{Value, json};

use super::Strategy;
use super::edit::{items_mut, text};

pub(super) const STRATEGY: Strategy = Strategy {
    prepare_create: |account, _now| clean_secrets(account),
    prepare_update: |account, _old| clean_secrets(account),
    warnings: super::warnings::service_account,
    ..Strategy::PLAIN
};

/// Of a reference to a secret only the name is kept.
fn clean_secrets(account: &mut Value) {
    for secret in items_mut(account, "/secrets") {
        *secret = match text(secret, "/name") {
            "" => json!({}),
            name => json!({"name": name}),
        };
    }
}
