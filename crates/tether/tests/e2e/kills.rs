//! Every process on the way from a pod to its volume is killed at random while pods come and go.
//!
//! Each claim is used by one pod after the other, on nodes at random. A pod checks what the one before it left, leaves
//! something new, and writes until it is asked to end; an error of any of that ends it with a code that says which. At the end
//! every claim is used once more, everything is deleted, and nothing may be left.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::lab::{Lab, of, phase, until};

/// Checks what is there, leaves more, writes until told to end. 7: not what the pod before left; 8: damaged; 9: an error of
/// reading or writing.
const SCRIPT: &str = r#"
stop=0; trap 'stop=1' TERM
if [ "$WANT" != 0 ]; then
    found=$(cat /data/count) || exit 9
    [ "$found" = "$WANT" ] || { echo "found $found, not $WANT"; exit 7; }
    (cd /data && sha256sum -c sum) || exit 8
fi
head -c 262144 /dev/urandom > /data/blob || exit 9
(cd /data && sha256sum blob > sum) || exit 9
echo $((WANT + 1)) > /data/count && sync /data/blob /data/sum /data/count || exit 9
while [ $stop = 0 ]; do
    echo x >> /data/beats && sync -d /data/beats || exit 9
    sleep 0.2
done
exit 0
"#;
/// The code of a shell that SIGTERM ended.
const TERMINATED: i32 = 128 + 15;
/// Keeps a pod's object until it was looked at.
const KEPT: &str = "tether.test/kept";
/// How long a process that was killed may take to be back, and whoever waits for it to go on.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a pod lives.
const LIFE_MS: (u64, u64) = (1000, 6000);

/// A small generator: what matters is that a seed gives the same order of kills and nodes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn between(&mut self, (low, high): (u64, u64)) -> Duration {
        Duration::from_millis(low + self.next() % (high - low))
    }
}

/// What one claim is doing.
struct Slot {
    claim: String,
    /// What the last pod left.
    count: u64,
    /// Pods so far.
    round: u64,
    state: State,
    since: Instant,
}

enum State {
    Idle,
    Starting {
        pod: String,
    },
    Running {
        pod: String,
        until: Instant,
    },
    /// It was deleted, and is kept until it is known how it ended.
    Ending {
        pod: String,
    },
    Going {
        pod: String,
    },
}

/// Runs `claims` claims for `time` with a kill every so many milliseconds, and checks the end.
pub(crate) fn kills(lab: &Lab, seed: u64, claims: usize, time: Duration, every_ms: (u64, u64)) {
    let mut random = Random(seed);
    let mut slots: Vec<Slot> = (0..claims)
        .map(|number| {
            let claim = format!("k{seed}-{number}");
            lab.claim(&claim, json!({"resources": {"requests": {"storage": "64Mi"}}}));
            Slot { claim, count: 0, round: 0, state: State::Idle, since: Instant::now() }
        })
        .collect();
    let (began, mut next_kill) = (Instant::now(), Instant::now() + Duration::from_secs(3));
    let mut killed: BTreeMap<&str, u32> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    while began.elapsed() < time || slots.iter().any(|slot| !matches!(slot.state, State::Idle)) {
        if Instant::now() >= next_kill && began.elapsed() < time {
            next_kill = Instant::now() + random.between(every_ms);
            *killed.entry(kill_one(lab, &mut random)).or_default() += 1;
        }
        let pods = snapshot(lab);
        for slot in &mut slots {
            let starts = began.elapsed() < time;
            longest = longest.max(step(lab, slot, pods.as_ref(), &mut random, starts));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let rounds: u64 = slots.iter().map(|slot| slot.count).sum();
    eprintln!("seed {seed}: {rounds} pods, kills {killed:?}, longest start {:.1} s", longest.as_secs_f64());
    finish(lab, &slots);
}

/// The pods there are; while the API server is away, nobody knows.
fn snapshot(lab: &Lab) -> Option<BTreeMap<String, Pod>> {
    let all = lab.run(lab.api::<Pod>().list(&ListParams::default())).ok()?;
    Some(all.into_iter().map(|pod| (pod.metadata.name.clone().unwrap_or_default(), pod)).collect())
}

/// Goes on with one claim; how long its pod took to run, if it does now.
fn step(
    lab: &Lab,
    slot: &mut Slot,
    pods: Option<&BTreeMap<String, Pod>>,
    random: &mut Random,
    starts: bool,
) -> Duration {
    let Some(pods) = pods else { return Duration::ZERO };
    assert!(slot.since.elapsed() < PATIENCE, "{} is stuck: {}", slot.claim, describe(lab, slot));
    let mut took = Duration::ZERO;
    let next = match &slot.state {
        State::Idle if !starts => return took,
        State::Idle => {
            let pod = format!("{}-{}", slot.claim, slot.round);
            let node = random.next() as usize % lab.nodes.len();
            start(lab, &pod, node, slot).then(|| {
                slot.round += 1;
                State::Starting { pod }
            })
        }
        State::Starting { pod } | State::Running { pod, .. } if failed(pods.get(pod)) => {
            panic!("{pod} failed: {:#?}\n{}", pods[pod].status, log_of(lab, &pods[pod]))
        }
        State::Starting { pod } => (phase(pods.get(pod)) == Some("Running")).then(|| {
            took = slot.since.elapsed();
            State::Running { pod: pod.clone(), until: Instant::now() + random.between(LIFE_MS) }
        }),
        State::Running { until, .. } if starts && Instant::now() < *until => return took,
        State::Running { pod, .. } => lab
            .run(lab.api::<Pod>().delete(pod, &DeleteParams::default()))
            .is_ok()
            .then(|| State::Ending { pod: pod.clone() }),
        State::Ending { pod } => ended(lab, pods.get(pod)).map(|left| {
            slot.count += u64::from(left);
            State::Going { pod: pod.clone() }
        }),
        State::Going { pod } => (!pods.contains_key(pod)).then_some(State::Idle),
    };
    if let Some(next) = next {
        slot.state = next;
        slot.since = Instant::now();
    }
    took
}

/// Whether a pod that was deleted left something, once it has ended: one that was told to end before it could listen did not.
fn ended(lab: &Lab, pod: Option<&Pod>) -> Option<bool> {
    let pod = pod.filter(|pod| matches!(phase(Some(pod)), Some("Succeeded" | "Failed")))?;
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
    assert!(matches!(code, 0 | TERMINATED), "{:?} ended with {code}\n{}", pod.metadata.name, log_of(lab, pod));
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let name = pod.metadata.name.as_deref()?;
    lab.run(lab.api::<Pod>().patch(name, &PatchParams::default(), &patch)).ok()?;
    Some(code == 0)
}

fn failed(pod: Option<&Pod>) -> bool {
    // A pod that is being deleted may have ended as it was asked to.
    let deleting = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    matches!(phase(pod), Some("Failed")) || (matches!(phase(pod), Some("Succeeded")) && !deleting)
}

/// Creates the pod, once: an answer that was lost may have been a success.
fn start(lab: &Lab, name: &str, node: usize, slot: &Slot) -> bool {
    let finalizers: &[&str] = if name.ends_with("-last") { &[] } else { &[KEPT] };
    let pod = of(json!({"metadata": {"name": name, "finalizers": finalizers}, "spec": {
        "nodeName": lab.nodes[node], "restartPolicy": "Never", "terminationGracePeriodSeconds": 120,
        "containers": [{
            "name": "app", "image": "tether", "command": ["sh", "-c", SCRIPT],
            "env": [{"name": "WANT", "value": slot.count.to_string()}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": slot.claim}}],
    }}));
    match lab.run(lab.api::<Pod>().create(&PostParams::default(), &pod)) {
        Ok(_) => true,
        Err(kube::Error::Api(status)) => status.is_already_exists(),
        Err(_) => false,
    }
}

fn describe(lab: &Lab, slot: &Slot) -> String {
    let pod = match &slot.state {
        State::Idle => return "idle".to_owned(),
        State::Starting { pod } | State::Running { pod, .. } | State::Ending { pod } | State::Going { pod } => pod,
    };
    let found = lab.run(lab.api::<Pod>().get_opt(pod));
    format!("{pod} is {found:#?}\nevents: {:#?}", lab.events(pod))
}

/// What the pod's container wrote.
fn log_of(lab: &Lab, pod: &Pod) -> String {
    let Some(cluster) = &lab.cluster else { return String::new() };
    let (node, uid) = (pod.spec.as_ref().and_then(|spec| spec.node_name.clone()), pod.metadata.uid.clone());
    let path = format!("nodes/{}/pods/{}/containers/app/0/log", node.unwrap_or_default(), uid.unwrap_or_default());
    fs::read_to_string(cluster.dir().join(path)).unwrap_or_default()
}

/// Kills a process of the path; which.
fn kill_one(lab: &Lab, random: &mut Random) -> &'static str {
    let cluster = lab.cluster.as_ref().expect("kills need a cluster of our own");
    let (kind, pid) = match random.next() % 6 {
        0 => ("apiserver", cluster.pid("apiserver")),
        1 => ("controller", cluster.pid("controller")),
        2 => ("csi", cluster.pid("csi")),
        3 | 4 => ("agent", cluster.pid(&lab.nodes[random.next() as usize % lab.nodes.len()])),
        _ => {
            let managers = processes(cluster.dir(), "instance-manager");
            ("instance manager", managers.get(random.next() as usize % managers.len().max(1)).copied())
        }
    };
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    kind
}

/// Processes of the cluster in `dir` whose first argument is `role`.
fn processes(dir: &Path, role: &str) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let is_role = words.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes());
            let ours = format!("@{}", dir.display());
            is_role && String::from_utf8_lossy(&environment).contains(&ours)
        })
        .collect();
    found.sort_unstable();
    found
}

/// Uses every claim once more, deletes everything, and looks for what is left.
fn finish(lab: &Lab, slots: &[Slot]) {
    until("the API server answers", || snapshot(lab));
    for (number, slot) in slots.iter().enumerate() {
        let pod = format!("{}-last", slot.claim);
        until("the last pod is made", || start(lab, &pod, number % lab.nodes.len(), slot).then_some(()));
    }
    for slot in slots {
        lab.running(&format!("{}-last", slot.claim));
    }
    for slot in slots {
        lab.run(lab.api::<Pod>().delete(&format!("{}-last", slot.claim), &DeleteParams::default())).unwrap();
    }
    for slot in slots {
        lab.wait::<Pod>(&format!("{}-last", slot.claim), |pod: Option<&Pod>| pod.is_none());
    }
    lab.nothing_is_left();
    for slot in slots {
        lab.run(lab.api::<PersistentVolumeClaim>().delete(&slot.claim, &DeleteParams::default())).unwrap();
    }
    let volumes: Api<tether_crd::Volume> = Api::namespaced(lab.client.clone(), tether_crd::NAMESPACE);
    until("every volume is deleted", || {
        lab.run(volumes.list(&ListParams::default())).ok()?.items.is_empty().then_some(())
    });
    let Some(cluster) = &lab.cluster else { return };
    until("no loop device is left", || {
        let output = Command::new("losetup").args(["-l", "-n", "-O", "BACK-FILE"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (!text.contains(&cluster.dir().display().to_string())).then_some(())
    });
    // The instance managers run as containers, and nothing else does.
    until("no container is left", || (processes(cluster.dir(), "container-shim").len() <= 3).then_some(()));
}
