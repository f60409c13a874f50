//! Values in the text form that Go gives them, which is part of many messages of Kubernetes.

use serde_json::Value;

/// A value as the verb `%v` prints it: `map[a:1 b:[x y]]`.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::String(s) => s.clone(),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (None, Some(f)) => float(f),
            _ => n.to_string(),
        },
        Value::Array(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}:{}", shown(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}

/// A number that is not whole, or not small: with an exponent below -4 and from 21 on.
pub(crate) fn float(f: f64) -> String {
    if f != 0.0 && (f.abs() < 1e-4 || f.abs() >= 1e21) {
        let text = format!("{f:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        format!("{mantissa}e{sign}{digits:0>2}")
    } else {
        f.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_read_as_go_prints_them() {
        for (value, text) in [
            (json!(null), "<nil>"),
            (json!("a b"), "a b"),
            (json!(7), "7"),
            (json!(1e21), "1e+21"),
            (json!(0.5), "0.5"),
            (json!({"b": [1, true], "a": {"c": null}}), "map[a:map[c:<nil>] b:[1 true]]"),
        ] {
            assert_eq!(shown(&value), text);
        }
    }
}
