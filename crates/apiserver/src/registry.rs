//! Everything that is served at the moment: built-in kinds, and what the custom resource definitions add.

use std::collections::BTreeMap;
use std::sync::Arc;

use tether_machinery::crd::CrdInfo;
use tether_machinery::kinds;

use crate::resource::Resource;

/// A definition as the registry takes it: what it says, and since which revision it says so.
#[derive(Clone, Debug)]
pub struct Definition {
    pub info: CrdInfo,
    pub changed_at: u64,
    /// It is being deleted.
    pub terminating: bool,
}

/// An immutable picture of what is served. A change of definitions makes a new one.
#[derive(Default)]
pub struct Registry {
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
}

impl Registry {
    /// Built-in kinds and the given definitions.
    pub fn new(definitions: &[Definition]) -> Self {
        let mut registry = Self::default();
        for kind in kinds::ALL {
            registry.add(Resource::builtin(kind));
        }
        for definition in definitions {
            for (index, version) in definition.info.versions.iter().enumerate() {
                if version.served {
                    registry.add(Resource::custom(definition, index));
                }
            }
        }
        registry
    }

    fn add(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// All resources, ordered by group, version and plural.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// The resources of one group and version.
    pub fn group_version(&self, group: &str, version: &str) -> Vec<&Arc<Resource>> {
        self.resources.values().filter(|r| r.group == group && r.version == version).collect()
    }

    /// Groups with their versions, the most stable version first.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for resource in self.resources.values() {
            let versions = groups.entry(resource.group.clone()).or_default();
            if !versions.contains(&resource.version) {
                versions.push(resource.version.clone());
            }
        }
        for versions in groups.values_mut() {
            versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        }
        groups.into_iter().collect()
    }
}

/// Kubernetes' order of versions: stable before beta before alpha, higher numbers first, then the rest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionRank {
    follows_the_scheme: bool,
    stability: u8,
    major: u64,
    minor: u64,
    /// Versions outside the scheme come in alphabetical order, so reversed here.
    other: std::cmp::Reverse<String>,
}

pub(crate) fn version_rank(version: &str) -> VersionRank {
    let other = VersionRank {
        follows_the_scheme: false,
        stability: 0,
        major: 0,
        minor: 0,
        other: std::cmp::Reverse(version.to_owned()),
    };
    let Some(rest) = version.strip_prefix('v') else { return other };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..digits].parse() else { return other };
    let (stability, minor) = match &rest[digits..] {
        "" => (2, Some(0)),
        tail if tail.starts_with("beta") => (1, tail[4..].parse().ok()),
        tail if tail.starts_with("alpha") => (0, tail[5..].parse().ok()),
        _ => return other,
    };
    let Some(minor) = minor else { return other };
    VersionRank { follows_the_scheme: true, stability, major, minor, other: std::cmp::Reverse(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = ["foo10", "v1alpha1", "v10", "v2", "v10beta3", "foo1", "v3beta1", "v12alpha1", "v11alpha2"];
        versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        let expected = ["v10", "v2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha1", "foo1", "foo10"];
        assert_eq!(versions, expected);
    }

    #[test]
    fn built_in_kinds_are_served() {
        let registry = Registry::new(&[]);
        assert!(registry.get("", "v1", "pods").is_some_and(|r| r.namespaced));
        assert!(registry.get("storage.k8s.io", "v1", "volumeattachments").is_some());
        assert!(registry.get("apps", "v1", "deployments").is_none());
    }
}
