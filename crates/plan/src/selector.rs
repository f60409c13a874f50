//! Selectors inside objects: which labels, which nodes, which topology.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use tether_machinery::selector::{Operator, Requirement};

use crate::object::name;

type Labels = BTreeMap<String, String>;

/// Whether the labels satisfy the selector; one without requirements matches everything.
pub fn matches_labels(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let exact = selector.match_labels.iter().flatten();
    let mut exact = exact.map(|(key, value)| requirement(key, "In", std::slice::from_ref(value)));
    let expressions = selector.match_expressions.iter().flatten();
    let mut expressions =
        expressions.map(|e| requirement(&e.key, &e.operator, e.values.as_deref().unwrap_or_default()));
    let satisfied = |r: Option<Requirement>| r.is_some_and(|r| r.matches(&labels));
    exact.all(satisfied) && expressions.all(satisfied)
}

/// Whether one of the terms matches the node; a term without requirements matches nothing.
pub fn matches_node_selector(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_node_term(term, node))
}

/// Whether all requirements of the term are met by the node's labels and its name.
pub fn matches_node_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let labels = node.metadata.labels.as_ref();
    let fields_of_node = Labels::from([("metadata.name".to_owned(), name(node).to_owned())]);
    let satisfied = |r: &NodeSelectorRequirement, labels: Option<&Labels>| {
        requirement(&r.key, &r.operator, r.values.as_deref().unwrap_or_default()).is_some_and(|r| r.matches(&labels))
    };
    expressions.iter().all(|r| satisfied(r, labels)) && fields.iter().all(|r| satisfied(r, Some(&fields_of_node)))
}

/// Whether the node is in one of the topologies; no terms mean everywhere.
pub fn matches_topology(terms: &[TopologySelectorTerm], node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let in_term = |term: &TopologySelectorTerm| {
        let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
        let listed =
            |key: &str, values: &[String]| labels.and_then(|l| l.get(key)).is_some_and(|label| values.contains(label));
        !expressions.is_empty() && expressions.iter().all(|e| listed(&e.key, &e.values))
    };
    terms.is_empty() || terms.iter().any(in_term)
}

/// `None` for an operator that does not exist: such a requirement is met by nothing.
fn requirement(key: &str, operator: &str, values: &[String]) -> Option<Requirement> {
    let operator = match operator {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        _ => return None,
    };
    Some(Requirement { key: key.to_owned(), operator, values: values.to_vec() })
}
