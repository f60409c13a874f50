//! Of several candidates one leads, and another when it is gone.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::Api;
use tether_controllers::leader::Settings;

use crate::harness::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_candidate_leads_and_the_other_takes_over() {
    let mut cluster = Cluster::without_controllers().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    let accounts: Api<ServiceAccount> = cluster.in_default();
    let holder = |l: &Lease| l.spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
    let candidate = |identity: &'static str| {
        move |options: &mut tether_controllers::Options| {
            options.identity = identity.into();
            options.leader_election = Some(Settings::default());
        }
    };
    let first = cluster.run_controllers(candidate("first"));
    until(&leases, "tether-controllers", "held by the first", |l| holder(l) == "first").await;
    until(&accounts, "default", "there", |_| true).await;
    cluster.run_controllers(candidate("second"));
    // As long as the first renews, the second stays back.
    let renewed = |l: &Lease| l.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|t| t.0);
    for _ in 0..10 {
        let before = renewed(&leases.get("tether-controllers").await.unwrap());
        cluster.clock.advance(jiff::SignedDuration::from_secs(3));
        until(&leases, "tether-controllers", "renewed", |l| renewed(l) > before).await;
    }
    assert_eq!(holder(&leases.get("tether-controllers").await.unwrap()), "first");

    first.cancel();
    delete(&accounts, "default", kube::api::DeleteParams::default()).await;
    let advance = async {
        loop {
            cluster.clock.advance(jiff::SignedDuration::from_secs(1));
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = advance => {}
        lease = until(&leases, "tether-controllers", "held by the second", |l| holder(l) == "second") => {
            assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
        }
    }
    until(&accounts, "default", "there again", |_| true).await;
}
