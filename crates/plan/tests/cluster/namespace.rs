//! How a namespace, and a definition of custom resources, comes to its end; and what a namespace is born with.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_plan::namespace::{Change, Content, Outcome, decide};
use tether_plan::{crd_cleanup, service_account};

use crate::build::*;

fn terminating() -> Namespace {
    let mut namespace = Namespace { metadata: meta("", "shop"), ..Default::default() };
    namespace.metadata.deletion_timestamp = Some(Time(after(-5)));
    namespace.spec.get_or_insert_default().finalizers = Some(vec!["kubernetes".into()]);
    namespace
}

#[test]
fn the_content_goes_before_the_finalizer() {
    let mut namespace = terminating();
    let plan = decide(&namespace, &Content::Unknown, now());
    let [Change::SetStatus { .. }, Change::DeleteContent { .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    namespace.status.get_or_insert_default().phase = Some("Terminating".into());

    let outcome = Outcome {
        remaining: [("pods.".into(), 2)].into(),
        finalizers: [("example.com/wait".into(), 1)].into(),
        ..Default::default()
    };
    let plan = decide(&namespace, &Content::Deleted(outcome.clone()), now());
    let [Change::SetStatus { conditions, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    let texts: Vec<String> = conditions
        .iter()
        .map(|c| format!("{} {} {} {}", c.type_, c.status, c.reason.as_ref().unwrap(), c.message.as_ref().unwrap()))
        .collect();
    assert_eq!(
        texts,
        [
            "NamespaceDeletionDiscoveryFailure False ResourcesDiscovered All resources successfully discovered",
            "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions All legacy kube types successfully \
             parsed",
            "NamespaceDeletionContentFailure False ContentDeleted All content successfully deleted, may be waiting on \
             finalization",
            "NamespaceContentRemaining True SomeResourcesRemain Some resources are remaining: pods. has 2 resource \
             instances",
            "NamespaceFinalizersRemaining True SomeFinalizersRemain Some content in the namespace has finalizers \
             remaining: example.com/wait in 1 resource instances",
        ]
    );
    namespace.status.as_mut().unwrap().conditions = Some(conditions.clone());
    assert!(decide(&namespace, &Content::Deleted(outcome), after(9)).changes.is_empty(), "nothing new to say");

    let plan = decide(&namespace, &Content::Deleted(Outcome::default()), now());
    let [Change::SetStatus { .. }, Change::Finalize { finalizers, .. }] = plan.changes.as_slice() else {
        panic!("{plan}")
    };
    assert!(finalizers.is_empty());
}

#[test]
fn a_failure_keeps_the_finalizer() {
    let outcome = Outcome { failures: vec!["pods: forbidden".into()], ..Default::default() };
    let plan = decide(&terminating(), &Content::Deleted(outcome), now());
    assert!(plan.changes.iter().all(|c| matches!(c, Change::SetStatus { .. })), "{plan}");
    let live = Namespace { metadata: meta("", "shop"), ..Default::default() };
    assert!(decide(&live, &Content::Unknown, now()).changes.is_empty());
}

#[test]
fn a_definition_waits_for_its_instances() {
    use crd_cleanup::{Change, FINALIZER, Instances};
    let mut definition = CustomResourceDefinition { metadata: meta("", "toys.example.com"), ..Default::default() };
    assert!(crd_cleanup::decide(&definition, &Instances::Unknown, now()).changes.is_empty());
    definition.metadata.deletion_timestamp = Some(Time(after(-5)));
    definition.metadata.finalizers = Some(vec![FINALIZER.into()]);
    let plan = crd_cleanup::decide(&definition, &Instances::Unknown, now());
    let [Change::SetConditions { conditions, .. }, Change::DeleteInstances { .. }] = plan.changes.as_slice() else {
        panic!("{plan}")
    };
    assert_eq!(conditions[0].reason.as_deref(), Some("InstanceDeletionInProgress"));
    let left = crd_cleanup::decide(&definition, &Instances::Deleted { remaining: 3 }, now());
    assert!(left.changes.is_empty() && left.report.findings[0].verdict.word() == "blocked");
    let plan = crd_cleanup::decide(&definition, &Instances::Deleted { remaining: 0 }, now());
    assert!(matches!(plan.changes.as_slice(), [Change::SetConditions { .. }, Change::Finalize { .. }]), "{plan}");
}

#[test]
fn a_namespace_is_born_with_an_account_and_the_certificate_authority() {
    use service_account::{Change, Observed};
    let namespace = Namespace { metadata: meta("", "shop"), ..Default::default() };
    let look = |has_account, root_ca: Option<&ConfigMap>| {
        let observed = Observed { namespace: &namespace, has_account, root_ca, ca_pem: Some("PEM") };
        service_account::decide(&observed).changes
    };
    assert!(matches!(look(false, None).as_slice(), [Change::CreateAccount { .. }, Change::CreateRootCa { .. }]));
    let mut copy = ConfigMap { metadata: meta("shop", "kube-root-ca.crt"), ..Default::default() };
    copy.data = Some([("ca.crt".into(), "PEM".into())].into());
    assert!(look(true, Some(&copy)).is_empty());
    copy.data = Some([("ca.crt".into(), "forged".into())].into());
    assert!(matches!(look(true, Some(&copy)).as_slice(), [Change::RestoreRootCa { .. }]));
}
