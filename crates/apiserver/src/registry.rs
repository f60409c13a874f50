//! Everything that is served at the moment: built-in kinds, and what the custom resource definitions add.

use std::collections::BTreeMap;
use std::sync::Arc;

use tether_machinery::crd::CrdInfo;
use tether_machinery::{kinds, version};

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
            versions.sort_by_key(|v| std::cmp::Reverse(version::rank(v)));
        }
        groups.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_kinds_are_served() {
        let registry = Registry::new(&[]);
        assert!(registry.get("", "v1", "pods").is_some_and(|r| r.namespaced));
        assert!(registry.get("storage.k8s.io", "v1", "volumeattachments").is_some());
        assert!(registry.get("apps", "v1", "deployments").is_none());
    }
}
