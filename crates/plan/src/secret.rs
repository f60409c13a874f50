//! Secrets that the parameters of a class name for calls to a driver: two templates, filled in with what is known of the
//! object that the call is for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;
use tether_machinery::names::{dns1123_label, dns1123_subdomain};

/// Parameters that are for Kubernetes, not for the driver.
pub const PREFIX: &str = "csi.storage.k8s.io/";

/// The secret for calls of a kind, such as `provisioner-secret`; none if the class names none. `word` is what may stand in a
/// template: for its name, or for its namespace, in which nothing may be that users choose.
pub fn named(
    parameters: Option<&BTreeMap<String, String>>,
    kind: &str,
    word: impl Fn(Part, &str) -> Option<String>,
) -> Result<Option<SecretReference>, String> {
    let template = |part: &str| parameters.and_then(|all| all.get(&format!("{PREFIX}{kind}-{part}")));
    let (name, namespace) = match (template("name"), template("namespace")) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => (name, namespace),
        _ => return Err(format!("{PREFIX}{kind}-name and {PREFIX}{kind}-namespace have to be given together")),
    };
    let (resolved_name, resolved_namespace) =
        (fill(name, |key| word(Part::Name, key))?, fill(namespace, |key| word(Part::Namespace, key))?);
    check(namespace, &resolved_namespace, "namespace", dns1123_label)?;
    check(name, &resolved_name, "secret", dns1123_subdomain)?;
    Ok(Some(SecretReference { name: Some(resolved_name), namespace: Some(resolved_namespace) }))
}

/// Which of the two templates is filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Name,
    Namespace,
}

fn fill(template: &str, word: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((key, after)) = after.split_once('}') else { break };
        let known =
            word(key).ok_or_else(|| format!("error resolving value {template:?}: invalid tokens: [{key:?}]"))?;
        text.push_str(before);
        text.push_str(&known);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn check(template: &str, value: &str, what: &str, wrong: fn(&str) -> Vec<String>) -> Result<(), String> {
    match (wrong(value).is_empty(), template == value) {
        (true, _) => Ok(()),
        (false, true) => Err(format!("{template:?} is not a valid {what} name")),
        (false, false) => Err(format!("{template:?} resolved to {value:?} which is not a valid {what} name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: Option<&str>, namespace: Option<&str>) -> Result<Option<(String, String)>, String> {
        let given = [("name", name), ("namespace", namespace)];
        let given =
            given.into_iter().filter_map(|(part, value)| Some((format!("{PREFIX}x-{part}"), value?.to_owned())));
        let word = |part: Part, key: &str| match (part, key) {
            (_, "pv.name") => Some("pv-1".to_owned()),
            (Part::Name, "pvc.name") => Some("data".to_owned()),
            (Part::Name, "odd") => Some("Not A Name".to_owned()),
            _ => None,
        };
        let found = named(Some(&given.collect()), "x", word)?;
        Ok(found.map(|found| (found.name.unwrap(), found.namespace.unwrap())))
    }

    #[test]
    fn templates_are_filled_in_and_what_comes_out_is_a_name() {
        let pair = |name: &str, namespace: &str| Ok(Some((name.to_owned(), namespace.to_owned())));
        assert_eq!(found(None, None), Ok(None));
        assert_eq!(found(Some("key"), Some("system")), pair("key", "system"));
        assert_eq!(found(Some("${pv.name}-${pvc.name}"), Some("of-${pv.name}")), pair("pv-1-data", "of-pv-1"));
        for (name, namespace, words) in [
            (Some("key"), None, "together"),
            (None, Some("system"), "together"),
            (Some(""), Some("system"), "together"),
            (Some("${what}"), Some("system"), "invalid tokens: [\"what\"]"),
            (Some("key"), Some("${pvc.name}"), "invalid tokens: [\"pvc.name\"]"),
            (Some("${odd}"), Some("system"), "resolved to \"Not A Name\" which is not a valid secret name"),
            (Some("key"), Some("Sys.tem"), "\"Sys.tem\" is not a valid namespace name"),
            (Some("${open"), Some("system"), "not a valid secret name"),
        ] {
            let error = found(name, namespace).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
