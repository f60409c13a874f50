//! How objects get from one version to another: not at all, or by a webhook that must be reachable.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::names;

/// Versions of `ConversionReview` that an API server speaks.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const URL_FORM: &str = "; desired format: https://host[/path]";

pub(super) fn validate(conversion: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    if conversion.is_null() {
        return;
    }
    let strategy = conversion["strategy"].as_str().unwrap_or_default();
    let webhook = &conversion["webhook"];
    let client = &webhook["clientConfig"];
    let versions = webhook["conversionReviewVersions"].as_array().map_or(&[][..], Vec::as_slice);
    let (client_path, versions_path) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    match strategy {
        "" => errors.push(FieldError::required(path.child("strategy"), "")),
        "None" | "Webhook" => {}
        other => errors.push(FieldError::not_supported(path.child("strategy"), other, &["None", "Webhook"])),
    }
    if strategy == "Webhook" {
        if client.is_null() {
            errors.push(FieldError::required(client_path, "required when strategy is set to Webhook"));
        } else {
            client_config(client, &client_path, errors);
        }
        review_versions(versions, &versions_path, errors);
        return;
    }
    let why = "should not be set when strategy is not set to Webhook";
    if !client.is_null() {
        errors.push(FieldError::forbidden(client_path, why));
    }
    if !versions.is_empty() {
        errors.push(FieldError::forbidden(versions_path, why));
    }
}

fn client_config(client: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    match (client["url"].as_str(), client["service"].as_object()) {
        (Some(url), None) => webhook_url(url, &path.child("url"), errors),
        (None, Some(_)) => webhook_service(&client["service"], &path.child("service"), errors),
        _ => errors.push(FieldError::required(path.clone(), "exactly one of url or service is required")),
    }
}

fn webhook_url(url: &str, path: &Path, errors: &mut Vec<FieldError>) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let mut invalid = |value: &str, why: &str| errors.push(FieldError::invalid(path.clone(), value, why));
    if scheme != "https" {
        invalid(scheme, &format!("'https' is the only allowed URL scheme{URL_FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if host.is_empty() {
        invalid(host, &format!("host must be specified{URL_FORM}"));
    }
    if let Some(user) = user {
        invalid(user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        invalid(fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        invalid(query, "query parameters are not permitted in the URL");
    }
}

fn webhook_service(service: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    // Kubernetes mixes the two up when it names the one that is missing.
    for (given, named) in [("namespace", "name"), ("name", "namespace")] {
        if service[given].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(path.child(named), ""));
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(path.child("port"), port, why));
    }
    let Some(url_path) = service["path"].as_str().filter(|path| !path.is_empty() && *path != "/") else { return };
    let mut invalid = |why: String| errors.push(FieldError::invalid(path.child("path"), url_path, why));
    if url_path == "//" {
        return invalid("segment[0] may not be empty".to_owned());
    }
    if !url_path.starts_with('/') {
        invalid("must start with a '/'".to_owned());
    }
    let mut steps = url_path.chars();
    steps.next();
    let steps = steps.as_str();
    for (i, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            invalid(format!("segment[{i}] may not be empty"));
            continue;
        }
        for why in names::dns1123_subdomain(step) {
            invalid(format!("segment[{i}]: {why}"));
        }
    }
}

fn review_versions(versions: &[Value], path: &Path, errors: &mut Vec<FieldError>) {
    if versions.is_empty() {
        errors.push(FieldError::required(path.clone(), ""));
        return;
    }
    let mut recognized = false;
    for (i, version) in versions.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if versions[..i].contains(version) {
            errors.push(FieldError::invalid(path.index(i), name, "duplicate version"));
            continue;
        }
        for why in names::dns1035_label(name) {
            errors.push(FieldError::invalid(path.index(i), name, why));
        }
        recognized |= REVIEW_VERSIONS.contains(&name);
    }
    if !recognized {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path.clone(), versions.to_vec(), why));
    }
}
