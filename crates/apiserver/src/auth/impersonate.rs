//! Acting as somebody else: the `Impersonate-*` headers, each of which needs the permission to impersonate exactly that.

use std::collections::BTreeMap;

use http::HeaderMap;
use tether_machinery::status::ApiError;

use super::{
    Attributes, Authorizer, GROUP_AUTHENTICATED, GROUP_SERVICE_ACCOUNTS, GROUP_UNAUTHENTICATED, USER_ANONYMOUS, User,
    split_service_account_user,
};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// One thing that the headers ask to be.
#[derive(Debug)]
enum Wish<'a> {
    User(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
    Group(&'a str),
    Extra { key: String, value: &'a str },
    Uid(&'a str),
}

impl Wish<'_> {
    /// The permission that this takes.
    fn attributes(&self, requestor: &User) -> Attributes {
        let (group, resource, subresource, namespace, name) = match self {
            Self::User(name) => ("", "users", "", "", *name),
            Self::ServiceAccount { namespace, name } => ("", "serviceaccounts", "", *namespace, *name),
            Self::Group(name) => ("", "groups", "", "", *name),
            Self::Extra { key, value } => (AUTHENTICATION_GROUP, "userextras", key.as_str(), "", *value),
            Self::Uid(uid) => (AUTHENTICATION_GROUP, "uids", "", "", *uid),
        };
        Attributes {
            user: requestor.clone(),
            verb: "impersonate".into(),
            group: group.into(),
            version: if group.is_empty() { String::new() } else { "v1".into() },
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    /// The wish as errors print it, field by field.
    fn describe(&self) -> String {
        let (kind, namespace, name, version, path) = match self {
            Self::User(name) => ("User", "", *name, "", ""),
            Self::ServiceAccount { namespace, name } => ("ServiceAccount", *namespace, *name, "", ""),
            Self::Group(name) => ("Group", "", *name, "", ""),
            Self::Extra { key, value } => ("UserExtra", "", *value, "authentication.k8s.io/v1", key.as_str()),
            Self::Uid(uid) => ("UID", "", *uid, "authentication.k8s.io/v1", ""),
        };
        format!("{{{kind} {namespace} {name}  {version}  {path}}}")
    }
}

/// The user that the rest of the request is made as: `requestor`, or whom its headers ask for, if that is allowed.
pub fn impersonate(authorizer: &Authorizer, requestor: User, headers: &HeaderMap) -> Result<User, ApiError> {
    let wishes = wishes(headers)?;
    if wishes.is_empty() {
        return Ok(requestor);
    }
    for wish in &wishes {
        authorizer.check(&wish.attributes(&requestor))?;
    }
    let user = assume(&wishes);
    tracing::info!(requestor = %requestor.name, user = %user.name, groups = ?user.groups, "impersonation");
    Ok(user)
}

fn wishes(headers: &HeaderMap) -> Result<Vec<Wish<'_>>, ApiError> {
    let malformed = |name: &str| ApiError::bad_request(format!("header {name} is not valid text"));
    let mut wishes = Vec::new();
    let mut has_user = false;
    if let Some(user) = headers.get(USER).filter(|value| !value.is_empty()) {
        let user = user.to_str().map_err(|_| malformed(USER))?;
        has_user = true;
        wishes.push(match split_service_account_user(user) {
            Some((namespace, name)) => Wish::ServiceAccount { namespace, name },
            None => Wish::User(user),
        });
    }
    for group in headers.get_all(GROUP) {
        wishes.push(Wish::Group(group.to_str().map_err(|_| malformed(GROUP))?));
    }
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA_PREFIX) {
            let value = value.to_str().map_err(|_| malformed(name.as_str()))?;
            wishes.push(Wish::Extra { key: percent_decode(key), value });
        }
    }
    if let Some(uid) = headers.get(UID).filter(|value| !value.is_empty()) {
        wishes.push(Wish::Uid(uid.to_str().map_err(|_| malformed(UID))?));
    }
    if !has_user && !wishes.is_empty() {
        let list: Vec<String> = wishes.iter().map(Wish::describe).collect();
        return Err(ApiError::bad_request(format!("requested [{}] without impersonating a user", list.join(" "))));
    }
    Ok(wishes)
}

fn assume(wishes: &[Wish<'_>]) -> User {
    let mut user = User::default();
    let mut groups = Vec::new();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut implied = Vec::new();
    for wish in wishes {
        match wish {
            Wish::User(name) => (*name).clone_into(&mut user.name),
            Wish::ServiceAccount { namespace, name } => {
                user.name = super::service_account_user(namespace, name);
                implied = vec![GROUP_SERVICE_ACCOUNTS.to_owned(), format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}")];
            }
            Wish::Group(name) => groups.push((*name).to_owned()),
            Wish::Extra { key, value } => extra.entry(key.clone()).or_default().push((*value).to_owned()),
            Wish::Uid(uid) => (*uid).clone_into(&mut user.uid),
        }
    }
    // Named groups are the whole truth; only without them do a service account's own groups count.
    user.groups = if groups.is_empty() { implied } else { groups };
    user.extra = extra;
    let anonymous = user.name == USER_ANONYMOUS;
    if anonymous && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_UNAUTHENTICATED.to_owned());
    }
    if !anonymous && !user.in_group(GROUP_AUTHENTICATED) && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_AUTHENTICATED.to_owned());
    }
    user
}

/// Decodes `%2f` and the like; text that is not well encoded stays as it is.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let Some(decoded) = digits.and_then(|hex| u8::from_str_radix(hex, 16).ok()) else {
            return text.to_owned();
        };
        bytes.push(decoded);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::rbac::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES};
    use crate::auth::tests::Memory;

    /// `ann` may become `bob`, the service account `ns/sa`, the group `devs`, and set the extra `scopes` to `view`.
    fn authorizer() -> Authorizer {
        let rule = |group: &str, resource: &str, name: &str| json!({"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": ["impersonate"]});
        let rules = json!([
            rule("", "users", "bob"),
            rule("", "users", "system:anonymous"),
            rule("", "serviceaccounts", "sa"),
            rule("", "groups", "devs"),
            rule("", "groups", "system:unauthenticated"),
            rule(AUTHENTICATION_GROUP, "userextras/acme.com/scopes", "view"),
            rule(AUTHENTICATION_GROUP, "uids", "u-1"),
        ]);
        let role = json!({"kind": "ClusterRole", "name": "actor"});
        let subjects = json!([{"kind": "User", "name": "ann"}]);
        Authorizer::new(Memory::with([
            (CLUSTER_ROLES, json!({"metadata": {"name": "actor"}, "rules": rules})),
            (CLUSTER_ROLE_BINDINGS, json!({"metadata": {"name": "b"}, "roleRef": role, "subjects": subjects})),
        ]))
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn as_ann(pairs: &[(&'static str, &str)]) -> Result<User, String> {
        impersonate(&authorizer(), User::new("ann", [""; 0]), &headers(pairs)).map_err(|e| e.message)
    }

    #[test]
    fn each_wish_needs_its_permission() {
        assert_eq!(as_ann(&[]).unwrap().name, "ann");
        assert_eq!(as_ann(&[(USER, "bob")]).unwrap(), User::new("bob", [""; 0]));
        assert_eq!(
            as_ann(&[(USER, "eve")]).unwrap_err(),
            "users \"eve\" is forbidden: User \"ann\" cannot impersonate resource \"users\" in API group \"\" at the \
             cluster scope"
        );
        assert_eq!(
            as_ann(&[(USER, "bob"), (GROUP, "system:masters")]).unwrap_err(),
            "groups \"system:masters\" is forbidden: User \"ann\" cannot impersonate resource \"groups\" in API group \
             \"\" at the cluster scope"
        );
        assert_eq!(
            as_ann(&[(USER, "system:serviceaccount:other:no")]).unwrap_err(),
            "serviceaccounts \"no\" is forbidden: User \"ann\" cannot impersonate resource \"serviceaccounts\" in API \
             group \"\" in the namespace \"other\""
        );
        let user =
            as_ann(&[(USER, "bob"), (GROUP, "devs"), (UID, "u-1"), ("impersonate-extra-acme.com%2fscopes", "view")])
                .unwrap();
        assert_eq!(user.groups, ["devs", "system:authenticated"]);
        assert_eq!(user.uid, "u-1");
        assert_eq!(user.extra["acme.com/scopes"], ["view"]);
    }

    #[test]
    fn groups_follow_from_who_is_meant() {
        let account = as_ann(&[(USER, "system:serviceaccount:ns:sa")]).unwrap();
        assert_eq!(account.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]);
        let account = as_ann(&[(USER, "system:serviceaccount:ns:sa"), (GROUP, "devs")]).unwrap();
        assert_eq!(account.groups, ["devs", "system:authenticated"]);
        assert_eq!(as_ann(&[(USER, "system:anonymous")]).unwrap(), User::anonymous());
        let nobody = as_ann(&[(USER, "bob"), (GROUP, "system:unauthenticated")]).unwrap();
        assert_eq!(nobody.groups, ["system:unauthenticated"]);
    }

    #[test]
    fn a_group_without_a_user_is_a_bad_request() {
        assert_eq!(
            as_ann(&[(GROUP, "devs")]).unwrap_err(),
            "requested [{Group  devs    }] without impersonating a user"
        );
        assert_eq!(
            as_ann(&[(UID, "u-1")]).unwrap_err(),
            "requested [{UID  u-1  authentication.k8s.io/v1  }] without impersonating a user"
        );
    }

    #[test]
    fn percent_encoding_is_undone_where_it_is_one() {
        for (text, expected) in [("a%2Fb", "a/b"), ("a%zz", "a%zz"), ("a%2", "a%2"), ("%ff", "%ff"), ("plain", "plain")]
        {
            assert_eq!(percent_decode(text), expected);
        }
    }
}
