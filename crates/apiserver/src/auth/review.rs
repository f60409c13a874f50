//! Reviews: what would be allowed, to whom, and who is behind a token. They are answered, never stored.
//!
//! Each function takes the object as it was sent and returns it with its status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::{ApiError, Named};

use super::token::{TokenAuthority, TokenError};
use super::{Attributes, Authorizer, GROUP_AUTHENTICATED, User, text};

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    resource_attributes: Option<ResourceAttributes>,
    non_resource_attributes: Option<NonResourceAttributes>,
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceAttributes {
    namespace: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    name: String,
    field_selector: Option<FieldSelectorAttributes>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FieldSelectorAttributes {
    raw_selector: String,
    requirements: Vec<FieldRequirement>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FieldRequirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct NonResourceAttributes {
    path: String,
    verb: String,
}

impl FieldSelectorAttributes {
    /// The selector as a request would carry it. What it cannot say is left out, which asks for more, not for less.
    fn to_text(&self) -> String {
        if !self.raw_selector.is_empty() {
            return self.raw_selector.clone();
        }
        let one = |requirement: &FieldRequirement| match (requirement.operator.as_str(), requirement.values.as_slice())
        {
            ("In", [value]) => Some(format!("{}={value}", requirement.key)),
            ("NotIn", [value]) => Some(format!("{}!={value}", requirement.key)),
            _ => None,
        };
        self.requirements.iter().filter_map(one).collect::<Vec<_>>().join(",")
    }
}

impl Spec {
    fn read(review: &Value, kind: &str) -> Result<Self, ApiError> {
        let spec = review.get("spec").unwrap_or(&Value::Null);
        if spec.is_null() {
            return Ok(Self::default());
        }
        Self::deserialize(spec).map_err(|error| ApiError::bad_request(format!("{kind} cannot be read: {error}")))
    }

    /// The question, asked for `user`.
    fn attributes(self, user: User) -> Attributes {
        match (self.resource_attributes, self.non_resource_attributes) {
            (Some(resource), _) => Attributes {
                user,
                verb: resource.verb,
                group: resource.group,
                version: if resource.version.is_empty() { "*".to_owned() } else { resource.version },
                resource: resource.resource,
                subresource: resource.subresource,
                namespace: resource.namespace,
                name: resource.name,
                path: String::new(),
                is_resource: true,
                field_selector: resource.field_selector.map(|selector| selector.to_text()).unwrap_or_default(),
            },
            (None, other) => {
                let path = other.unwrap_or_default();
                Attributes { user, verb: path.verb, path: path.path, ..Attributes::default() }
            }
        }
    }

    fn take_subject(&mut self) -> User {
        User {
            name: std::mem::take(&mut self.user),
            uid: std::mem::take(&mut self.uid),
            groups: std::mem::take(&mut self.groups),
            extra: std::mem::take(&mut self.extra),
        }
    }

    fn errors(&self) -> Vec<FieldError> {
        let wrong = match (&self.resource_attributes, &self.non_resource_attributes) {
            (Some(_), None) | (None, Some(_)) => return Vec::new(),
            (Some(_), Some(both)) => {
                let shown = json!({"Path": both.path, "Verb": both.verb});
                let words = "cannot be specified in combination with resourceAttributes";
                FieldError::invalid(Path::new("spec.nonResourceAttributes"), shown, words)
            }
            (None, None) => {
                let words = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
                FieldError::invalid(Path::new("spec.resourceAttributes"), Value::Null, words)
            }
        };
        vec![wrong]
    }

    fn subject_errors(&self) -> Option<FieldError> {
        let words = "at least one of user or group must be specified";
        (self.user.is_empty() && self.groups.is_empty()).then(|| FieldError::invalid(Path::new("spec.user"), "", words))
    }
}

/// Kubernetes has lost the kind at this point; clients then speak of the request.
fn check(errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(Named { group: AUTHORIZATION, resource: "", name: "" }, errors))
}

/// Reviews have no metadata of their own; `allowed` fields aside, any that is given is an error.
fn metadata_error(review: &Value, allowed: &[&str], words: &str) -> Option<FieldError> {
    let metadata = review.get("metadata")?;
    let given = metadata.as_object()?.iter().any(|(field, value)| {
        let known = allowed.contains(&field.as_str()) || field == "managedFields";
        !known && !value.is_null()
    });
    given.then(|| FieldError::invalid(Path::new("metadata"), metadata.clone(), words))
}

fn answered(mut review: Value, authorizer: &Authorizer, question: &Attributes) -> Value {
    let decision = authorizer.authorize(question);
    let mut status = json!({"allowed": decision.is_allowed()});
    if !decision.reason().is_empty() {
        status["reason"] = decision.reason().into();
    }
    review["status"] = status;
    if review["metadata"].is_null() {
        review["metadata"] = json!({});
    }
    review
}

/// `SelfSubjectAccessReview`: may I?
pub fn self_subject_access_review(authorizer: &Authorizer, user: &User, review: Value) -> Result<Value, ApiError> {
    const KIND: &str = "SelfSubjectAccessReview";
    let spec = Spec::read(&review, KIND)?;
    let mut errors = spec.errors();
    errors.extend(metadata_error(&review, &[], "must be empty"));
    check(&errors)?;
    Ok(answered(review, authorizer, &spec.attributes(user.clone())))
}

/// `SubjectAccessReview`: may they?
pub fn subject_access_review(authorizer: &Authorizer, review: Value) -> Result<Value, ApiError> {
    const KIND: &str = "SubjectAccessReview";
    let mut spec = Spec::read(&review, KIND)?;
    let mut errors = spec.errors();
    errors.extend(spec.subject_errors());
    errors.extend(metadata_error(&review, &[], "must be empty"));
    check(&errors)?;
    let subject = spec.take_subject();
    Ok(answered(review, authorizer, &spec.attributes(subject)))
}

/// `LocalSubjectAccessReview`: may they, in this namespace?
pub fn local_subject_access_review(
    authorizer: &Authorizer,
    namespace: &str,
    mut review: Value,
) -> Result<Value, ApiError> {
    const KIND: &str = "LocalSubjectAccessReview";
    if text(&review, "/metadata/namespace").is_empty() {
        review["metadata"]["namespace"] = namespace.into();
    }
    let mut spec = Spec::read(&review, KIND)?;
    let mut errors = spec.errors();
    errors.extend(spec.subject_errors());
    errors.extend(metadata_error(&review, &["namespace"], "must be empty except for namespace"));
    let own = text(&review, "/metadata/namespace");
    if let Some(attributes) = spec.resource_attributes.as_ref().filter(|attributes| attributes.namespace != own) {
        let path = Path::new("spec.resourceAttributes.namespace");
        errors.push(FieldError::invalid(path, attributes.namespace.as_str(), "must match metadata.namespace"));
    }
    if let Some(attributes) = &spec.non_resource_attributes {
        let path = Path::new("spec.nonResourceAttributes");
        errors.push(FieldError::invalid(path, json!(attributes), "disallowed on this kind of request"));
    }
    check(&errors)?;
    if own != namespace {
        let words = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(ApiError::bad_request(words));
    }
    let subject = spec.take_subject();
    Ok(answered(review, authorizer, &spec.attributes(subject)))
}

/// `SelfSubjectRulesReview`: everything that I may in a namespace.
pub fn self_subject_rules_review(authorizer: &Authorizer, user: &User, review: &Value) -> Result<Value, ApiError> {
    let namespace = text(review, "/spec/namespace");
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let (rules, error) = authorizer.rules_for(user, namespace);
    let mut errors: Vec<String> = error.into_iter().collect();
    let is_node = user.node_name().is_some();
    if is_node {
        errors.insert(0, "node authorizer does not support user rule resolution".to_owned());
    }
    let resource_rules: Vec<Value> = rules
        .iter()
        .filter(|rule| !rule.resources.is_empty())
        .map(|rule| {
            let mut shown = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            shown
        })
        .collect();
    let non_resource_rules: Vec<Value> = rules
        .iter()
        .filter(|rule| !rule.non_resource_urls.is_empty())
        .map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}))
        .collect();
    let mut status = json!({
        "resourceRules": resource_rules,
        "nonResourceRules": non_resource_rules,
        "incomplete": is_node,
    });
    match errors.len() {
        0 => {}
        1 => status["evaluationError"] = errors.remove(0).into(),
        _ => status["evaluationError"] = format!("[{}]", errors.join(", ")).into(),
    }
    Ok(json!({
        "kind": "SelfSubjectRulesReview",
        "apiVersion": format!("{AUTHORIZATION}/v1"),
        "metadata": {},
        "spec": {},
        "status": status,
    }))
}

/// A user as reviews and webhooks show it.
pub(crate) fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.groups.is_empty() {
        info["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

/// `SelfSubjectReview`: who am I?
pub fn self_subject_review(user: &User, now: Timestamp) -> Value {
    json!({
        "kind": "SelfSubjectReview",
        "apiVersion": format!("{AUTHENTICATION}/v1"),
        "metadata": {"creationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()},
        "status": {"userInfo": user_info(user)},
    })
}

/// `TokenReview`: who is behind this token?
pub fn token_review(tokens: &TokenAuthority, mut review: Value, now: Timestamp) -> Result<Value, ApiError> {
    let token = text(&review, "/spec/token");
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = review.pointer("/spec/audiences").and_then(|list| Vec::<String>::deserialize(list).ok());
    let status = match tokens.authenticate(token, &audiences.unwrap_or_default(), now) {
        Ok(verified) => {
            let mut user = verified.user;
            if !user.in_group(GROUP_AUTHENTICATED) {
                user.groups.push(GROUP_AUTHENTICATED.to_owned());
            }
            json!({"authenticated": true, "user": user_info(&user), "audiences": verified.audiences})
        }
        Err(error @ TokenError::NotOurs) => json!({"user": {}, "error": error.to_string()}),
        Err(error) => json!({"user": {}, "error": format!("[{}, {error}]", TokenError::NotOurs)}),
    };
    review["status"] = status;
    Ok(review)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::Memory;
    use crate::auth::token::{Bindings, DEFAULT_ISSUER, Reference};
    use crate::auth::{bootstrap, token};

    fn authorizer() -> Authorizer {
        let objects = Memory::with(bootstrap::objects());
        objects.put(
            crate::auth::rbac::ROLE_BINDINGS,
            json!({
                "metadata": {"namespace": "a", "name": "viewers"},
                "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "name": "ann"}],
            }),
        );
        Authorizer::new(objects)
    }

    fn question(namespace: &str, verb: &str) -> Value {
        json!({"resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "pods"}})
    }

    #[test]
    fn may_i() {
        let ann = User::new("ann", [""; 0]);
        let ask = |spec: Value| self_subject_access_review(&authorizer(), &ann, json!({"spec": spec}));
        let yes = ask(question("a", "list")).unwrap();
        assert_eq!(
            yes["status"],
            json!({
                "allowed": true,
                "reason": "RBAC: allowed by RoleBinding \"viewers/a\" of ClusterRole \"view\" to User \"ann\"",
            })
        );
        assert_eq!(ask(question("b", "list")).unwrap()["status"], json!({"allowed": false}));
        let path = ask(json!({"nonResourceAttributes": {"path": "/api", "verb": "get"}})).unwrap();
        assert_eq!(path["status"]["allowed"], true);
        assert_eq!(
            ask(json!({})).unwrap_err().message,
            ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of \
             nonResourceAttributes or resourceAttributes must be specified"
        );
        assert_eq!(ask(json!({"resourceAttributes": 1})).unwrap_err().code, 400);
    }

    #[test]
    fn may_they() {
        let mut spec = question("a", "get");
        spec["user"] = "ann".into();
        let review = subject_access_review(&authorizer(), json!({"spec": spec})).unwrap();
        assert_eq!(review["status"]["allowed"], true);
        let error = subject_access_review(&authorizer(), json!({"spec": question("a", "get")})).unwrap_err();
        assert!(
            error.message.ends_with("spec.user: Invalid value: \"\": at least one of user or group must be specified")
        );

        let local = local_subject_access_review(&authorizer(), "a", json!({"spec": spec})).unwrap();
        assert_eq!(local["status"]["allowed"], true);
        let error = local_subject_access_review(&authorizer(), "b", json!({"spec": spec})).unwrap_err();
        assert!(
            error
                .message
                .contains("spec.resourceAttributes.namespace: Invalid value: \"a\": must match metadata.namespace")
        );

        let node = json!({
            "user": "system:node:n1", "groups": ["system:nodes"],
            "resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {
                "requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}],
            }},
        });
        let review = subject_access_review(&authorizer(), json!({"spec": node})).unwrap();
        assert_eq!(review["status"]["allowed"], true);
    }

    #[test]
    fn all_that_i_may() {
        let ann = User::new("ann", [""; 0]);
        let review = self_subject_rules_review(&authorizer(), &ann, &json!({"spec": {"namespace": "a"}})).unwrap();
        let rules = review["status"]["resourceRules"].as_array().unwrap();
        assert!(rules.iter().any(|rule| rule["resources"][0] == "pods"));
        assert!(rules.iter().any(|rule| rule["resources"][0] == "selfsubjectreviews"));
        assert!(!review["status"]["nonResourceRules"].as_array().unwrap().is_empty());
        assert_eq!(review["status"]["incomplete"], false);
        let none = self_subject_rules_review(&authorizer(), &ann, &json!({})).unwrap_err();
        assert_eq!(none.message, "no namespace on request");
    }

    #[test]
    fn whose_token() {
        let account = json!({"metadata": {"namespace": "a", "name": "sa", "uid": "1"}});
        let objects = Memory::with([("serviceaccounts", account.clone())]);
        let tokens = TokenAuthority::new(&token::tests::key(), DEFAULT_ISSUER, objects).unwrap();
        let bindings =
            Bindings { namespace: "a".into(), serviceaccount: Reference::to(&account), ..Bindings::default() };
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let token = tokens.issue(bindings, tokens.audiences(), 600, "id", now).unwrap();
        let review = |token: &str| token_review(&tokens, json!({"spec": {"token": token}}), now);
        let status = review(&token).unwrap()["status"].clone();
        assert_eq!(status["authenticated"], true);
        assert_eq!(status["user"]["username"], "system:serviceaccount:a:sa");
        assert_eq!(status["audiences"], json!([DEFAULT_ISSUER]));
        let bad = review("x").unwrap()["status"].clone();
        assert_eq!(bad, json!({"user": {}, "error": "invalid bearer token"}));
        let late = token_review(&tokens, json!({"spec": {"token": token}}), now + jiff::SignedDuration::from_hours(1));
        assert_eq!(late.unwrap()["status"]["error"], "[invalid bearer token, service account token has expired]");
        assert_eq!(review("").unwrap_err().code, 400);
    }

    #[test]
    fn who_am_i() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let review = self_subject_review(&User::new("ann", ["devs"]), now);
        assert_eq!(review["metadata"]["creationTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(
            review["status"]["userInfo"],
            json!({"username": "ann", "groups": ["devs", "system:authenticated"]})
        );
    }
}
