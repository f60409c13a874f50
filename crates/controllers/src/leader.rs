//! Leader election by a Lease, as Kubernetes' own components do it.
//!
//! The holder renews the Lease; who finds it not renewed for its whole duration, *by its own clock*, takes it. Every
//! write is fenced by the resource version, so two can never both believe that they took it. A holder that cannot renew
//! in time stops before anybody else may start.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::clock::Clock;

/// How the election goes.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    /// How long the others wait after the last renewal.
    pub lease: SignedDuration,
    /// How long the holder tries to renew before it gives up. Shorter than `lease`: the difference is what clocks that
    /// run differently may cost.
    pub renew_deadline: SignedDuration,
    /// Between two attempts.
    pub retry: SignedDuration,
}

impl Default for Settings {
    /// The times that Kubernetes' components use.
    fn default() -> Self {
        Self {
            namespace: "kube-system".into(),
            name: "tether-controllers".into(),
            lease: SignedDuration::from_secs(15),
            renew_deadline: SignedDuration::from_secs(10),
            retry: SignedDuration::from_secs(2),
        }
    }
}

/// One candidate.
pub struct Election {
    api: Api<Lease>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    identity: String,
    /// The Lease as it was last seen, and when it was first seen like that.
    seen: Option<(Lease, SignedDuration)>,
}

impl Election {
    pub fn new(client: Client, clock: Arc<dyn Clock>, settings: Settings, identity: &str) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        Self { api, clock, settings, identity: identity.to_owned(), seen: None }
    }

    /// Returns once this candidate holds the Lease.
    pub async fn acquire(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the leader's lease cannot be had"),
            }
            self.pause().await;
        }
    }

    /// Keeps the Lease; returns when it is lost.
    pub async fn keep(&mut self) {
        let mut renewed = self.clock.elapsed();
        loop {
            self.pause().await;
            // A request that hangs must not let the deadline pass unnoticed.
            let left = self.settings.renew_deadline - (self.clock.elapsed() - renewed);
            let deadline = self.clock.sleep_until(self.clock.now() + left);
            tokio::select! {
                attempt = self.attempt() => match attempt {
                    Ok(true) => renewed = self.clock.elapsed(),
                    Ok(false) => return,
                    Err(error) => tracing::warn!(%error, "the leader's lease cannot be renewed"),
                },
                () = deadline => return,
            }
        }
    }

    /// Gives the Lease up, so that nobody has to wait; failing to do so costs others a wait.
    pub async fn release(&mut self) {
        let Some((mut lease, _)) = self.seen.take() else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(self.clock.now()));
        if let Err(error) = self.api.replace(&self.settings.name, &PostParams::default(), &lease).await {
            tracing::debug!(%error, "the leader's lease was not given up");
        }
    }

    async fn pause(&self) {
        self.clock.sleep_until(self.clock.now() + self.settings.retry).await;
    }

    /// Takes or renews the Lease; false if it is another's.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let found = self.api.get_opt(&self.settings.name).await?;
        let (elapsed, now) = (self.clock.elapsed(), self.clock.now());
        let written = match found {
            None => self.api.create(&PostParams::default(), &self.fresh(now)).await,
            Some(lease) => {
                let since = match &self.seen {
                    Some((seen, since)) if seen.metadata.resource_version == lease.metadata.resource_version => *since,
                    _ => elapsed,
                };
                self.seen = Some((lease.clone(), since));
                let Some(mine) = claim(&lease, &self.identity, elapsed - since, now, &self.settings) else {
                    return Ok(false);
                };
                self.api.replace(&self.settings.name, &PostParams::default(), &mine).await
            }
        };
        match written {
            Ok(lease) => {
                self.seen = Some((lease, elapsed));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn fresh(&self, now: Timestamp) -> Lease {
        Lease {
            metadata: ObjectMeta { name: Some(self.settings.name.clone()), ..Default::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(seconds(self.settings.lease)),
                acquire_time: Some(MicroTime(now)),
                renew_time: Some(MicroTime(now)),
                lease_transitions: Some(0),
                ..Default::default()
            }),
        }
    }
}

fn seconds(duration: SignedDuration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// The Lease with this candidate as its holder, if it may be: it is already, there is none, or the holder did not renew
/// it for the time that the holder itself asked for.
fn claim(
    lease: &Lease,
    identity: &str,
    unchanged_for: SignedDuration,
    now: Timestamp,
    settings: &Settings,
) -> Option<Lease> {
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
    let patience = SignedDuration::from_secs(i64::from(spec.lease_duration_seconds.unwrap_or_default()));
    let free = holder.is_none() || unchanged_for >= patience;
    let mine = holder == Some(identity);
    if !mine && !free {
        return None;
    }
    let transitions = spec.lease_transitions.unwrap_or_default();
    let mut claimed = lease.clone();
    claimed.spec = Some(LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(seconds(settings.lease)),
        acquire_time: if mine { spec.acquire_time.clone() } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if mine { transitions } else { transitions.saturating_add(1) }),
        ..spec
    });
    Some(claimed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: Option<&str>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(Into::into),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            ..Default::default()
        };
        Lease { spec: Some(spec), ..Default::default() }
    }

    #[test]
    fn a_lease_is_taken_only_when_it_is_ours_free_or_not_renewed() {
        let now = Timestamp::from_second(100).unwrap();
        let take = |lease: &Lease, seconds| {
            claim(lease, "me", SignedDuration::from_secs(seconds), now, &Settings::default()).and_then(|l| l.spec)
        };
        assert!(take(&lease(Some("other")), 14).is_none());
        let taken = take(&lease(Some("other")), 15).unwrap();
        assert_eq!((taken.lease_transitions, taken.acquire_time.unwrap().0), (Some(4), now));
        let renewed = take(&lease(Some("me")), 0).unwrap();
        assert_eq!((renewed.lease_transitions, renewed.renew_time.unwrap().0), (Some(3), now));
        assert_eq!(renewed.acquire_time.unwrap().0, Timestamp::UNIX_EPOCH);
        assert!(take(&lease(None), 0).is_some() && take(&lease(Some("")), 0).is_some());
    }
}
