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

    /// Groups with their versions, the most stable version first. A client that is given a resource's name alone takes the
    /// first group that has it, so that groups come in Kubernetes' order: its own before those of definitions.
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
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(group, _)| std::cmp::Reverse(priority(group)));
        groups
    }
}

/// The priority that Kubernetes gives to a group.
fn priority(group: &str) -> u16 {
    match group {
        "apiregistration.k8s.io" => 20_001,
        "" => 18_000,
        "apps" => 17_800,
        "events.k8s.io" => 17_750,
        "authentication.k8s.io" => 17_700,
        "authorization.k8s.io" => 17_600,
        "autoscaling" => 17_500,
        "batch" => 17_400,
        "certificates.k8s.io" => 17_300,
        "networking.k8s.io" => 17_200,
        "policy" => 17_100,
        "rbac.authorization.k8s.io" => 17_000,
        "storage.k8s.io" => 16_800,
        "admissionregistration.k8s.io" | "apiextensions.k8s.io" => 16_700,
        "scheduling.k8s.io" => 16_600,
        "coordination.k8s.io" => 16_500,
        "node.k8s.io" => 16_300,
        "discovery.k8s.io" | "resource.k8s.io" => 16_200,
        // Those of definitions.
        _ => 1_000,
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

    #[test]
    fn groups_of_kubernetes_come_before_those_of_definitions() {
        let registry = Registry::new(&[]);
        let groups: Vec<String> = registry.groups().into_iter().map(|(group, _)| group).collect();
        let place = |group: &str| groups.iter().position(|held| held == group);
        assert!(place("") < place("events.k8s.io") && place("policy") < place("storage.k8s.io"), "{groups:?}");
        assert!(groups.iter().all(|group| priority(group) > priority("longhorn.io")), "{groups:?}");
    }
}
