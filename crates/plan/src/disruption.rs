//! Disruption budgets: how many pods of a group may be evicted now. Kubernetes' rule, for pods that nobody scales.
//!
//! Kubernetes takes the number of pods that there should be from their controllers (Deployment, …). The embedded cluster
//! has none: the pods that the selector finds are those that there should be.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::object::{Target, is_deleting, name, subject};
use crate::pod::{condition, is_finished};
use crate::selector::matches_labels;

const BUDGET: Rule = Rule("disruption-budget");
/// An eviction that was allowed but has not shown by then did not happen; Kubernetes' time.
const FORGET_EVICTION: SignedDuration = SignedDuration::from_mins(2);
const ALLOWED: &str = "DisruptionAllowed";

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    SetStatus { budget: Target, status: Box<PodDisruptionBudgetStatus> },
}

/// Decides what a budget allows, given the pods of its namespace.
pub fn decide(budget: &PodDisruptionBudget, pods: &[&Pod], now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    if is_deleting(budget) {
        return plan;
    }
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let meant: Vec<&Pod> = pods
        .iter()
        .copied()
        .filter(|pod| !is_finished(pod))
        .filter(|pod| selector.is_some_and(|selector| matches_labels(selector, pod.metadata.labels.as_ref())))
        .collect();
    let (status, wake_at) = status(budget, &meant, now);
    if let Some(until) = wake_at {
        plan.waits(BUDGET, subject(budget), Reason::BackOff, "An eviction that was allowed has not shown yet.", until);
    }
    if budget.status.as_ref() == Some(&status) {
        plan.rests(BUDGET, subject(budget), Reason::UpToDate, "The status tells what is allowed.");
    } else {
        let words = format!("{} evictions are allowed.", status.disruptions_allowed);
        let change = Change::SetStatus { budget: Target::of(budget), status: Box::new(status) };
        plan.acts(BUDGET, subject(budget), Reason::StatusFollows, words, change);
    }
    plan
}

fn status(
    budget: &PodDisruptionBudget,
    meant: &[&Pod],
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Timestamp>) {
    let old = budget.status.clone().unwrap_or_default();
    // Evictions that show, because their pods are going or gone, need not be remembered.
    let disrupted: std::collections::BTreeMap<String, Time> = old
        .disrupted_pods
        .into_iter()
        .flatten()
        .filter(|(pod, at)| {
            let is_here = meant.iter().any(|held| name(*held) == pod && !is_deleting(*held));
            is_here && now < at.0 + FORGET_EVICTION
        })
        .collect();
    let wake_at = disrupted.values().map(|at| at.0 + FORGET_EVICTION).min();
    let is_healthy = |pod: &&&Pod| {
        !is_deleting(**pod)
            && !disrupted.contains_key(name(**pod))
            && condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
    };
    let expected = meant.len() as i32;
    let healthy = meant.iter().filter(is_healthy).count() as i32;
    let desired = desired(budget, expected);
    let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
    let generation = budget.metadata.generation;
    let status = PodDisruptionBudgetStatus {
        conditions: Some(vec![allowance(old.conditions.as_deref().unwrap_or_default(), allowed > 0, generation, now)]),
        current_healthy: healthy,
        desired_healthy: desired,
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: allowed,
        expected_pods: expected,
        observed_generation: generation,
    };
    (status, wake_at)
}

/// How many pods have to stay.
fn desired(budget: &PodDisruptionBudget, expected: i32) -> i32 {
    let spec = budget.spec.as_ref();
    // Kubernetes rounds up, in favour of the pods that stay for one and of those that go for the other.
    let amount = |given: &IntOrString| match given {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((i64::from(expected) * percent + 99) / 100).unwrap_or(i32::MAX)
        }
    };
    if let Some(most) = spec.and_then(|spec| spec.max_unavailable.as_ref()) {
        (expected - amount(most)).max(0)
    } else {
        spec.and_then(|spec| spec.min_available.as_ref()).map_or(0, amount)
    }
}

fn allowance(old: &[Condition], allowed: bool, generation: Option<i64>, now: Timestamp) -> Condition {
    let (word, reason) = if allowed { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let before = old.iter().find(|held| held.type_ == ALLOWED && held.status == word);
    Condition {
        type_: ALLOWED.to_owned(),
        status: word.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        observed_generation: generation,
        last_transition_time: before.map_or(Time(now), |held| held.last_transition_time.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(name: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": "db"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn budget(spec: Value) -> PodDisruptionBudget {
        let mut spec = spec;
        spec["selector"] = json!({"matchLabels": {"app": "db"}});
        serde_json::from_value(json!({"metadata": {"name": "b", "generation": 3}, "spec": spec})).unwrap()
    }

    fn step(budget: &mut PodDisruptionBudget, pods: &[Pod], now: i64) -> Plan<Change> {
        let plan = decide(budget, &pods.iter().collect::<Vec<_>>(), at(now));
        for Change::SetStatus { status, .. } in &plan.changes {
            budget.status = Some((**status).clone());
        }
        plan
    }

    fn allowed(spec: Value, pods: &[Pod]) -> i32 {
        let mut budget = budget(spec);
        step(&mut budget, pods, 0);
        assert_eq!(step(&mut budget, pods, 9).changes, [], "deciding twice changes nothing");
        budget.status.unwrap().disruptions_allowed
    }

    #[test]
    fn a_budget_allows_what_is_left_when_enough_stay() {
        let three = [pod("a", "True"), pod("b", "True"), pod("c", "True")];
        let one_down = [pod("a", "True"), pod("b", "True"), pod("c", "False")];
        for (spec, of_three, with_one_down) in [
            (json!({"minAvailable": 2}), 1, 0),
            (json!({"minAvailable": 3}), 0, 0),
            (json!({"minAvailable": "50%"}), 1, 0),
            (json!({"maxUnavailable": 1}), 1, 0),
            (json!({"maxUnavailable": 2}), 2, 1),
            (json!({"maxUnavailable": "100%"}), 3, 2),
            (json!({}), 3, 2),
        ] {
            assert_eq!(
                (allowed(spec.clone(), &three), allowed(spec.clone(), &one_down)),
                (of_three, with_one_down),
                "{spec}"
            );
        }
        assert_eq!(allowed(json!({"minAvailable": 1}), &[]), 0, "nobody may be evicted where nobody is");
    }

    #[test]
    fn an_eviction_that_was_allowed_counts_until_it_shows_or_is_forgotten() {
        let pods = [pod("a", "True"), pod("b", "True")];
        let mut budget = budget(json!({"minAvailable": 1}));
        step(&mut budget, &pods, 0);
        let status = budget.status.as_mut().unwrap();
        assert_eq!(status.disruptions_allowed, 1);
        status.disruptions_allowed = 0;
        status.disrupted_pods = Some([("a".to_owned(), Time(at(0)))].into());
        let plan = step(&mut budget, &pods, 10);
        assert_eq!(plan.wake_at(), Some(at(120)));
        assert_eq!(budget.status.as_ref().unwrap().disruptions_allowed, 0);
        step(&mut budget, &pods, 120);
        assert_eq!(budget.status.as_ref().unwrap().disruptions_allowed, 1, "it did not happen");
    }
}
