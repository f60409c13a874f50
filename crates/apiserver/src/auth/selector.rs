//! Label selectors of the `matchLabels`/`matchExpressions` form, as roles and webhooks carry them.

use serde_json::{Map, Value};

/// Does a LabelSelector object select these labels? The empty selector selects everything; one that cannot be
/// understood selects nothing.
pub(crate) fn label_selector_matches(selector: &Value, labels: &Map<String, Value>) -> bool {
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    let by_label = wanted.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    by_label && expressions.into_iter().flatten().all(|expression| expression_matches(expression, labels))
}

fn expression_matches(expression: &Value, labels: &Map<String, Value>) -> bool {
    let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
    let value = labels.get(key);
    let listed = || {
        let values = expression.get("values").and_then(Value::as_array);
        values.is_some_and(|values| value.is_some_and(|value| values.contains(value)))
    };
    match expression.get("operator").and_then(Value::as_str) {
        Some("In") => listed(),
        Some("NotIn") => !listed(),
        Some("Exists") => value.is_some(),
        Some("DoesNotExist") => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_select() {
        let labels = json!({"app": "web", "tier": "front"});
        let labels = labels.as_object().unwrap();
        let cases = [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Like"}]}), false),
        ];
        for (selector, expected) in cases {
            assert_eq!(label_selector_matches(&selector, labels), expected, "{selector}");
        }
    }
}
