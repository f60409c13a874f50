//! Policy rules: what one rule allows, and whether a set of rules covers another (nobody grants what they lack).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::Attributes;

const ALL: &str = "*";

/// One rule of a Role or ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    pub verbs: Vec<String>,
}

fn has(set: &[String], element: &str) -> bool {
    set.iter().any(|e| e == element)
}

fn has_all(set: &[String], elements: &[String]) -> bool {
    elements.iter().all(|e| has(set, e))
}

impl PolicyRule {
    /// Does this rule alone allow the request?
    pub fn allows(&self, request: &Attributes) -> bool {
        let verb = has(&self.verbs, ALL) || has(&self.verbs, &request.verb);
        if !request.is_resource {
            return verb && self.non_resource_urls.iter().any(|url| url_covers(url, &request.path));
        }
        verb && (has(&self.api_groups, ALL) || has(&self.api_groups, &request.group))
            && self.resources.iter().any(|r| resource_matches(r, &request.resource, &request.subresource))
            && (self.resource_names.is_empty() || has(&self.resource_names, &request.name))
    }

    /// Does this rule alone cover `part`, a rule with at most one of everything?
    fn covers(&self, part: &Self) -> bool {
        let names = match part.resource_names.is_empty() {
            true => self.resource_names.is_empty(),
            false => self.resource_names.is_empty() || has_all(&self.resource_names, &part.resource_names),
        };
        names
            && (has(&self.verbs, ALL) || has_all(&self.verbs, &part.verbs))
            && (has(&self.api_groups, ALL) || has_all(&self.api_groups, &part.api_groups))
            && part.resources.iter().all(|r| covers_resource(&self.resources, r))
            && part.non_resource_urls.iter().all(|url| self.non_resource_urls.iter().any(|own| url_covers(own, url)))
    }

    /// The same permissions as rules with one verb, group, resource and name (or URL) each.
    fn parts(&self) -> Vec<Self> {
        let mut parts = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = Self {
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        verbs: vec![verb.clone()],
                        ..Self::default()
                    };
                    if self.resource_names.is_empty() {
                        parts.push(part);
                    } else {
                        let named = |n: &String| Self { resource_names: vec![n.clone()], ..part.clone() };
                        parts.extend(self.resource_names.iter().map(named));
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            for verb in &self.verbs {
                parts.push(Self { non_resource_urls: vec![url.clone()], verbs: vec![verb.clone()], ..Self::default() });
            }
        }
        parts
    }

    /// The rule as errors show it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    fn compact(&self) -> String {
        let mut text = String::from("{");
        let fields = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        for (name, values) in fields {
            if !values.is_empty() {
                let separator = if text.len() > 1 { ", " } else { "" };
                write!(text, "{separator}{name}:{}", quoted_list(values)).expect("writing to a String must succeed");
            }
        }
        text.push('}');
        text
    }
}

/// A list of strings as Go's `%q` prints it: `["a" "b"]`.
pub(crate) fn quoted_list(values: &[String]) -> String {
    let quoted: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((ALL, sub)) => !subresource.is_empty() && sub == subresource,
        Some((name, sub)) => !subresource.is_empty() && name == resource && sub == subresource,
    }
}

fn covers_resource(own: &[String], resource: &str) -> bool {
    if has(own, ALL) || has(own, resource) {
        return true;
    }
    resource.split_once('/').is_some_and(|(_, sub)| has(own, &format!("*/{sub}")))
}

fn url_covers(own: &str, url: &str) -> bool {
    own == url || (own.ends_with(ALL) && url.starts_with(own.trim_end_matches('*')))
}

/// The parts of `wanted` that no rule of `held` covers.
pub fn missing(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let parts = wanted.iter().flat_map(PolicyRule::parts);
    parts.filter(|part| !held.iter().any(|rule| rule.covers(part))).collect()
}

/// Missing rules as an error lists them: one line each, verbs of the same resource together, sorted.
pub fn describe(missing: Vec<PolicyRule>) -> String {
    let mut lines = BTreeSet::new();
    let mut by_resource: BTreeMap<(String, String, Vec<String>), PolicyRule> = BTreeMap::new();
    for rule in missing {
        let (Some(group), Some(resource)) = (rule.api_groups.first(), rule.resources.first()) else {
            lines.insert(rule.compact());
            continue;
        };
        let key = (group.clone(), resource.clone(), rule.resource_names.clone());
        match by_resource.get_mut(&key) {
            Some(same) => same.verbs.extend(rule.verbs),
            None => drop(by_resource.insert(key, rule)),
        }
    }
    lines.extend(by_resource.values().map(PolicyRule::compact));
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &str) -> Vec<String> {
        list.split_whitespace().map(|w| if w == "core" { String::new() } else { w.to_owned() }).collect()
    }

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> PolicyRule {
        PolicyRule {
            verbs: words(verbs),
            api_groups: words(groups),
            resources: words(resources),
            resource_names: words(names),
            ..PolicyRule::default()
        }
    }

    fn urls(verbs: &str, urls: &str) -> PolicyRule {
        PolicyRule { verbs: words(verbs), non_resource_urls: words(urls), ..PolicyRule::default() }
    }

    fn request(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn a_rule_allows_what_it_names() {
        let pods = rule("get list", "core", "pods pods/log", "");
        let cases = [
            (&pods, request("get", "", "pods", "a"), true),
            (&pods, request("get", "", "pods/log", "a"), true),
            (&pods, request("get", "", "pods/status", "a"), false),
            (&pods, request("delete", "", "pods", "a"), false),
            (&pods, request("get", "apps", "pods", "a"), false),
            (&rule("*", "*", "*", ""), request("fly", "x.y", "things/wings", ""), true),
            (&rule("*", "*", "*/scale", ""), request("update", "apps", "deployments/scale", "d"), true),
            (&rule("*", "*", "*/scale", ""), request("update", "apps", "scale", "d"), false),
            (&rule("*", "*", "*/scale", ""), request("update", "apps", "deployments/noscale", "d"), false),
            (&rule("*", "*", "pods/*", ""), request("get", "", "pods/log", "d"), false),
            (&rule("get", "core", "secrets", "a b"), request("get", "", "secrets", "b"), true),
            (&rule("get", "core", "secrets", "a b"), request("get", "", "secrets", "c"), false),
            (&rule("list", "core", "secrets", "a"), request("list", "", "secrets", ""), false),
        ];
        for (rule, request, expected) in cases {
            assert_eq!(rule.allows(&request), expected, "{rule:?} {request:?}");
        }
    }

    #[test]
    fn paths_match_exactly_or_by_their_star() {
        let path = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        assert!(urls("get", "/healthz").allows(&path("/healthz")));
        assert!(!urls("get", "/healthz").allows(&path("/healthz/etcd")));
        assert!(urls("get", "/healthz/*").allows(&path("/healthz/etcd")));
        assert!(urls("get", "*").allows(&path("/anything")));
        assert!(!urls("post", "*").allows(&path("/anything")));
        assert!(!rule("*", "*", "*", "").allows(&path("/anything")), "resources do not grant paths");
        assert!(!urls("*", "*").allows(&request("get", "", "pods", "")), "paths do not grant resources");
    }

    #[test]
    fn covering_is_by_parts() {
        let covered = |held: &[PolicyRule], wanted: &[PolicyRule]| missing(held, wanted).is_empty();
        let held = [rule("get", "core", "pods", ""), rule("list", "core", "pods", "")];
        assert!(covered(&held, &[rule("get list", "core", "pods", "")]), "two rules together cover one");
        assert!(covered(&held, &[rule("get", "core", "pods", "a")]), "all names cover one name");
        assert!(!covered(&[rule("get", "core", "pods", "a")], &[rule("get", "core", "pods", "")]));
        assert!(covered(&[rule("*", "*", "*", "")], &[rule("*", "*", "pods */scale", "x")]));
        assert!(!covered(&[rule("get list", "core", "*", "")], &[rule("*", "core", "pods", "")]));
        assert!(covered(&[rule("get", "core", "*/status", "")], &[rule("get", "core", "pods/status", "")]));
        assert!(!covered(&[rule("get", "core", "pods/*", "")], &[rule("get", "core", "pods/status", "")]));
        assert!(covered(&[urls("get", "/a/*")], &[urls("get", "/a/b /a/*")]));
        assert!(!covered(&[urls("get", "/a/*")], &[urls("get", "/a")]));
        assert!(covered(&[], &[]));
    }

    #[test]
    fn what_is_missing_reads_as_in_kubernetes() {
        let wanted = [rule("get list", "core", "pods", ""), rule("get", "apps", "deployments", "a"), urls("get", "/x")];
        assert_eq!(
            describe(missing(&[], &wanted)),
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\"]}\n\
             {APIGroups:[\"apps\"], Resources:[\"deployments\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}\n\
             {NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"
        );
    }

    mod properties {
        use proptest::prelude::*;
        use proptest::sample::{select, subsequence};

        use super::*;

        fn some_of(words: &'static [&'static str], least: usize) -> impl Strategy<Value = Vec<String>> {
            subsequence(words, least..=2).prop_map(|list| list.into_iter().map(str::to_owned).collect())
        }

        fn any_rule() -> impl Strategy<Value = PolicyRule> {
            let resources = (
                some_of(&["get", "list", "*"], 1),
                some_of(&["", "apps", "*"], 1),
                some_of(&["pods", "pods/scale", "*/scale", "scale", "*"], 1),
                some_of(&["a", "b"], 0),
            );
            let resources = resources.prop_map(|(verbs, api_groups, resources, resource_names)| PolicyRule {
                api_groups,
                resource_names,
                resources,
                verbs,
                ..PolicyRule::default()
            });
            let paths = (some_of(&["get", "*"], 1), some_of(&["/a", "/a/*", "/a/b", "/*", "*"], 1));
            let paths = paths.prop_map(|(verbs, non_resource_urls)| PolicyRule {
                non_resource_urls,
                verbs,
                ..PolicyRule::default()
            });
            prop_oneof![3 => resources, 1 => paths]
        }

        fn any_request() -> impl Strategy<Value = Attributes> {
            let resource = (
                select(&["get", "list", "watch"][..]),
                select(&["", "apps", "batch"][..]),
                select(&["pods", "pods/scale", "jobs", "jobs/scale", "scale"][..]),
                select(&["", "a", "b", "c"][..]),
            );
            let resource = resource.prop_map(|(verb, group, resource, name)| request(verb, group, resource, name));
            let path = (select(&["get", "post"][..]), select(&["/", "/a", "/a/b", "/a/b/c", "/b"][..]));
            let path = path.prop_map(|(verb, path)| Attributes {
                verb: verb.into(),
                path: path.into(),
                ..Attributes::default()
            });
            prop_oneof![3 => resource, 1 => path]
        }

        proptest! {
            /// Whoever grants only what is covered grants nothing that they cannot do themselves.
            #[test]
            fn what_is_covered_is_held(
                held in prop::collection::vec(any_rule(), 0..4),
                wanted in prop::collection::vec(any_rule(), 0..3),
                requests in prop::collection::vec(any_request(), 1..40),
            ) {
                let allowed = |rules: &[PolicyRule], request: &Attributes| rules.iter().any(|r| r.allows(request));
                let lacking = missing(&held, &wanted);
                for request in requests.iter().filter(|request| allowed(&wanted, request)) {
                    prop_assert!(allowed(&held, request) || allowed(&lacking, request), "{request:?}");
                }
            }

            /// Rules cover themselves, in whatever company.
            #[test]
            fn rules_cover_themselves(rules in prop::collection::vec(any_rule(), 1..4)) {
                prop_assert!(missing(&rules, &rules[..1]).is_empty());
            }
        }
    }
}
