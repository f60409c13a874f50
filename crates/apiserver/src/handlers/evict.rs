//! `POST …/pods/NAME/eviction`: a deletion that asks the pod's disruption budget first.
//!
//! The budget's status says how many evictions it allows; a controller keeps that up to date. An eviction takes one of them
//! by a write that fails if the budget changed, so that two evictions at once never take the same one.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tether_machinery::selector::LabelSelector;
use tether_machinery::status::ApiError;

use super::write::{self, Tracking};
use super::{Context, delete};
use crate::admission::Operation;
use crate::object::{self, is_deleting, meta_str};
use crate::options::{Write, WriteOptions};
use crate::response::{self, Body};
use crate::store::ListQuery;

const BUDGETS: &str = "poddisruptionbudgets.policy";
/// Kubernetes' bound on evictions that the controller has not seen yet.
const MOST_DISRUPTED: usize = 2_000;
/// What a client that is refused is told to wait.
const RETRY_AFTER_S: u32 = 10;

pub(super) async fn evict(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let eviction = crate::body::decode(cx.headers, &cx.body)?.value;
    let given = meta_str(&eviction, "name");
    if !given.is_empty() && given != cx.info.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = delete::Options::from_value(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
    let pod = cx.resource.read(&cx.existing()?);
    if counts(&pod)
        && let Some(budget) = budget_of(cx, &pod)?
        && !may_go_unhealthy(&pod, &budget)
    {
        take(cx, meta_str(&budget, "name"), options.dry_run).await?;
    }
    let by_eviction = (Operation::Create, eviction);
    delete::delete_named(cx, &cx.info.name, &options, by_eviction).await?;
    Ok(response::json(StatusCode::CREATED, &super::subresource::success()))
}

/// A pod that has ended, has not begun, or is going anyway takes nothing from anybody.
fn counts(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    !is_deleting(pod) && !matches!(phase, "Succeeded" | "Failed" | "Pending")
}

/// The budget that the pod falls under.
fn budget_of(cx: &Context<'_>, pod: &Value) -> Result<Option<Value>, ApiError> {
    let query = ListQuery { resource: BUDGETS, namespace: Some(&cx.info.namespace), ..ListQuery::default() };
    let listing = cx.server.store().list(query).map_err(ApiError::internal)?;
    let labels = pod.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut found = listing.entries.iter().filter_map(|entry| {
        let budget: Value = serde_json::from_slice(&entry.value).ok()?;
        let selector = LabelSelector::from_object(budget.pointer("/spec/selector")?).ok()?;
        selector.matches(&labels).then_some(budget)
    });
    let budget = found.next();
    if found.next().is_some() {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(ApiError::internal(why));
    }
    Ok(budget)
}

/// A pod that is not ready is not one that the budget counts on, as long as the budget is kept without it.
fn may_go_unhealthy(pod: &Value, budget: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
    if ready {
        return false;
    }
    let number = |field: &str| budget.pointer(&format!("/status/{field}")).and_then(Value::as_i64).unwrap_or(0);
    let always = budget.pointer("/spec/unhealthyPodEvictionPolicy").is_some_and(|policy| policy == "AlwaysAllow");
    let is_kept = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    always || is_kept
}

/// Takes one of the evictions that the budget allows, or says why there is none.
async fn take(cx: &Context<'_>, name: &str, dry_run: bool) -> Result<(), ApiError> {
    let mut budgets = cx.of_resource("policy", "v1", "poddisruptionbudgets", name)?;
    "status".clone_into(&mut budgets.info.subresource);
    let options = WriteOptions { dry_run, ..WriteOptions::parse(Write::Create, cx.query, "kube-apiserver")? };
    let (pod, now) = (cx.info.name.as_str(), object::timestamp(cx.server.now()));
    write::change(&budgets, &options, Tracking::Update, |budget| {
        let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        if number("/status/observedGeneration") < number("/metadata/generation") {
            return Err(refused(&format!("The disruption budget {name} is still being processed by the server.")));
        }
        let allowed = number("/status/disruptionsAllowed");
        let disrupted =
            budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, serde_json::Map::len);
        if allowed < 0 {
            return Err(ApiError::forbidden(budgets.resource.named(name), "pdb disruptions allowed is negative"));
        }
        if disrupted > MOST_DISRUPTED {
            let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
            return Err(ApiError::forbidden(budgets.resource.named(name), why));
        }
        if allowed == 0 {
            let (needs, has) = (number("/status/desiredHealthy"), number("/status/currentHealthy"));
            let words = format!("The disruption budget {name} needs {needs} healthy pods and has {has} currently");
            return Err(refused(&words));
        }
        let mut next = budget.clone();
        next["status"]["disruptionsAllowed"] = json!(allowed - 1);
        next["status"]["disruptedPods"][pod] = json!(now);
        Ok(next)
    })
    .await?;
    Ok(())
}

fn refused(cause: &str) -> ApiError {
    let mut error =
        ApiError::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", RETRY_AFTER_S);
    error.details["causes"] = json!([{"reason": "DisruptionBudget", "message": cause}]);
    error
}
