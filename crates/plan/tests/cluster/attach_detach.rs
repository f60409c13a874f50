//! Which volumes are attached where: the tables of Kubernetes' controller, and what must never happen.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    AttachedVolume, CSIPersistentVolumeSource, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStatus, Node, PersistentVolume, Pod,
};
use k8s_openapi::api::storage::v1::{
    VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec, VolumeAttachmentStatus, VolumeError,
};
use proptest::prelude::*;
use tether_plan::Plan;
use tether_plan::attach_detach::*;

use crate::build::*;

const UNIQUE: &str = "kubernetes.io/csi/driver^handle";

fn pv(modes: &[&str]) -> PersistentVolume {
    let mut pv = volume("pv", "1Gi", "");
    let spec = pv.spec.as_mut().unwrap();
    spec.access_modes = Some(modes.iter().map(|m| (*m).to_owned()).collect());
    spec.csi = Some(CSIPersistentVolumeSource {
        driver: "driver".into(),
        volume_handle: "handle".into(),
        ..Default::default()
    });
    pv
}

trait NodeLists {
    fn listing(self, volume: &str) -> Self;
    fn using(self, volume: &str) -> Self;
}

impl NodeLists for Node {
    fn listing(mut self, volume: &str) -> Self {
        let listed = self.status.get_or_insert_default().volumes_attached.get_or_insert_default();
        listed.push(AttachedVolume { name: volume.into(), device_path: String::new() });
        self
    }

    fn using(mut self, volume: &str) -> Self {
        self.status.get_or_insert_default().volumes_in_use.get_or_insert_default().push(volume.into());
        self
    }
}

fn attachment(node: &str, attached: bool) -> VolumeAttachment {
    let source = VolumeAttachmentSource { persistent_volume_name: Some("pv".into()), ..Default::default() };
    let spec = VolumeAttachmentSpec { attacher: "driver".into(), node_name: node.into(), source };
    let status = VolumeAttachmentStatus { attached, ..Default::default() };
    VolumeAttachment { metadata: meta("", &format!("va-{node}")), spec, status: Some(status) }
}

fn site<'a>(node: &'a Node, pods: &'a [Pod], attachment: Option<&'a VolumeAttachment>) -> Site<'a> {
    Site {
        node: node.metadata.name.as_deref().unwrap(),
        place: Place::Here(node),
        pods: pods.iter().collect(),
        attachment,
        unwanted_since: None,
        room: None,
    }
}

fn plan(pv: &PersistentVolume, sites: Vec<Site<'_>>) -> Plan<Change> {
    decide(&Observed { volume: pv, sites }, &Settings::default(), now())
}

/// The changes in a few words.
fn words(plan: &Plan<Change>) -> Vec<String> {
    let word = |change: &Change| match change {
        Change::Create { node, .. } => format!("create {node}"),
        Change::Delete { node, check: true, .. } => format!("delete {node}"),
        Change::Delete { node, forced, .. } => format!("delete {node} forced {}", forced.unwrap_or("never")),
        Change::List { node } => format!("list {node}"),
        Change::Unlist { node } => format!("unlist {node}"),
    };
    plan.changes.iter().map(word).collect()
}

#[test]
fn names_are_those_that_kubernetes_derives() {
    let cases = [
        ("vol1", "driver1", "node1", "csi-277fb9628e864dc71a29d97e84a29d03f19eb560a7cfe7ad08be7306da360ba6"),
        (
            "vol-0abc",
            "ebs.csi.aws.com",
            "ip-10-0-0-1.ec2.internal",
            "csi-d34f1e2932e3736c2023dc94be57bbbb636feeba00aeb091165af5a4bb9263b6",
        ),
    ];
    for (handle, driver, node, name) in cases {
        assert_eq!(attachment_name(handle, driver, node), name);
    }
    assert_eq!(unique_name("ebs.csi.aws.com", "vol-0abc"), "kubernetes.io/csi/ebs.csi.aws.com^vol-0abc");
}

#[test]
fn a_wanted_volume_is_attached_once_then_listed_then_left_alone() {
    let (pv, pods) = (pv(&["ReadWriteOnce"]), [pod("web").on("a")]);
    let a = node("a").ready("True");
    golden(
        &plan(&pv, vec![site(&a, &pods, None)]),
        "acts    attach-volume: Volume pv on node a: VolumeWanted: A pod on the node uses it.
         => Create { name: \"csi-73dde0f6eed2dd8b7ba1aec3b7e3da1a4e8a8bce02b84d6e7f4e5a4b48d2b3bf\", driver: \"driver\", \
            node: \"a\", volume: \"pv\" }"
            .replace(
                "csi-73dde0f6eed2dd8b7ba1aec3b7e3da1a4e8a8bce02b84d6e7f4e5a4b48d2b3bf",
                &attachment_name("handle", "driver", "a"),
            )
            .as_str(),
    );
    let pending = attachment("a", false);
    assert_eq!(words(&plan(&pv, vec![site(&a, &pods, Some(&pending))])), [""; 0]);
    let attached = attachment("a", true);
    assert_eq!(words(&plan(&pv, vec![site(&a, &pods, Some(&attached))])), ["list a"]);
    let listing = a.listing(UNIQUE);
    assert_eq!(words(&plan(&pv, vec![site(&listing, &pods, Some(&attached))])), [""; 0]);
}

#[test]
fn a_failed_attach_is_told_to_every_pod() {
    let (pv, pods) = (pv(&["ReadWriteOnce"]), [pod("web").on("a"), pod("worker").on("a")]);
    let a = node("a").ready("True");
    let mut failed = attachment("a", false);
    let error = VolumeError { message: Some("no such disk".into()), ..Default::default() };
    failed.status.as_mut().unwrap().attach_error = Some(error);
    golden(
        &plan(&pv, vec![site(&a, &pods, Some(&failed))]),
        "blocked attach-volume: Volume pv on node a: FailedAttachVolume: Not yet: no such disk
         !! Warning FailedAttachVolume Pod/web: AttachVolume.Attach failed for volume \"pv\" : no such disk
         !! Warning FailedAttachVolume Pod/worker: AttachVolume.Attach failed for volume \"pv\" : no such disk",
    );
}

/// Mounted, Ready, timer over, force disabled (or either), tainted: what happens to an unwanted volume.
type Case = (bool, &'static [&'static str], bool, Option<bool>, bool, &'static str);

#[test]
fn the_truth_table_of_detaching() {
    let cases: &[Case] = &[
        (false, &["True", "False", "Unknown"], false, None, false, "delete a"),
        // Kubernetes skips the check once the timer is over; here it never does where it need not.
        (false, &["True", "False", "Unknown"], true, None, false, "delete a"),
        (true, &["True"], false, None, false, ""),
        (true, &["True"], true, None, false, ""),
        (true, &["False", "Unknown"], false, None, false, "waits"),
        (true, &["False", "Unknown"], true, Some(false), false, "delete a forced timeout"),
        (true, &["False", "Unknown"], true, Some(true), false, ""),
        (true, &["True", "Unknown"], false, None, true, "delete a forced out-of-service"),
        (true, &["True", "Unknown"], true, Some(true), true, "delete a forced out-of-service"),
        (true, &["True", "Unknown"], true, Some(false), true, "delete a forced timeout"),
        (false, &["True"], false, None, true, "delete a forced out-of-service"),
    ];
    for (mounted, ready, expired, disabled, tainted, expected) in cases {
        for ready in *ready {
            for disabled in disabled.map_or(vec![false, true], |d| vec![d]) {
                let mut a = node("a").ready(ready);
                if *mounted {
                    a = a.using(UNIQUE);
                }
                if *tainted {
                    a = a.tainted("node.kubernetes.io/out-of-service", "NoExecute", 1);
                }
                let held = attachment("a", true);
                let mut site = site(&a, &[], Some(&held));
                site.unwanted_since = Some(after(if *expired { -361 } else { -360 }));
                let settings = Settings { disable_force_detach: disabled, ..Settings::default() };
                let pv = pv(&["ReadWriteOnce"]);
                let plan = decide(&Observed { volume: &pv, sites: vec![site] }, &settings, now());
                let found = words(&plan).join(", ");
                let found = if found.is_empty() && plan.wake_at().is_some() { "waits".to_owned() } else { found };
                let expected = if *expected == "waits" && disabled { "" } else { *expected };
                assert_eq!(found, expected, "mounted {mounted} ready {ready} expired {expired} disabled {disabled}");
            }
        }
    }
}

#[test]
fn a_volume_is_off_the_list_before_it_is_taken_away() {
    let (pv, held) = (pv(&["ReadWriteOnce"]), attachment("a", true));
    let listing = node("a").ready("True").listing(UNIQUE);
    assert_eq!(words(&plan(&pv, vec![site(&listing, &[], Some(&held))])), ["unlist a"]);
    let used = listing.clone().using(UNIQUE);
    assert_eq!(words(&plan(&pv, vec![site(&used, &[], Some(&held))])), [""; 0]);
    let off = node("a").ready("True");
    assert_eq!(words(&plan(&pv, vec![site(&off, &[], Some(&held))])), ["delete a"]);
}

#[test]
fn a_node_that_is_gone_is_waited_for_only_if_it_may_have_used_the_volume() {
    let (pv, held) = (pv(&["ReadWriteOnce"]), attachment("a", true));
    let gone = |mounted, since: Timestamp| {
        let site = Site {
            node: "a",
            place: Place::Gone { mounted },
            pods: vec![],
            attachment: Some(&held),
            unwanted_since: Some(since),
            room: None,
        };
        words(&decide(&Observed { volume: &pv, sites: vec![site] }, &Settings::default(), now()))
    };
    assert_eq!(gone(Some(false), now()), ["delete a"]);
    assert_eq!(gone(Some(true), now()), [""; 0]);
    assert_eq!(gone(None, now()), [""; 0], "nobody saw it go");
    assert_eq!(gone(None, after(-361)), ["delete a forced timeout"]);
}

#[test]
fn one_node_at_a_time_unless_the_volume_can_be_shared() {
    let (a, b) = (node("a").ready("True"), node("b").ready("True"));
    let (first, second) = ([pod("first").on("b").created(20)], [pod("second").on("a").created(10)]);
    let sites = || vec![site(&a, &second, None), site(&b, &first, None)];
    for modes in [&["ReadWriteOnce"][..], &["ReadWriteOncePod"], &["ReadWriteOnce", "ReadWriteOncePod"]] {
        let plan = plan(&pv(modes), sites());
        assert_eq!(words(&plan), ["create b"], "{modes:?}: who came first");
        assert_eq!(plan.events.len(), 1);
    }
    for modes in [&["ReadWriteMany"][..], &["ReadOnlyMany"], &["ReadWriteMany", "ReadWriteOnce"], &[]] {
        assert_eq!(words(&plan(&pv(modes), sites())), ["create b", "create a"], "{modes:?}");
    }
    // An attachment of which nobody knows what became of it counts: it may be attached.
    for held in [attachment("a", true), attachment("a", false)] {
        let sites = vec![site(&a, &second, Some(&held)), site(&b, &first, None)];
        assert!(!words(&plan(&pv(&["ReadWriteOnce"]), sites)).contains(&"create b".to_owned()));
    }
}

#[test]
fn who_waits_is_told_who_has_the_volume_but_not_who_in_other_namespaces() {
    let (a, b) = (node("a").ready("True"), node("b").ready("True"));
    let held = attachment("a", true);
    let foreign = |name: &str| {
        let mut pod = pod(name).on("a");
        pod.metadata.namespace = Some("other".into());
        pod
    };
    let waiting = [pod("waiting").on("b")];
    let cases: [(Vec<Pod>, &str); 4] = [
        (
            vec![],
            "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node",
        ),
        (vec![pod("pod2").on("a")], "Volume is already used by pod(s) pod2"),
        (vec![foreign("pod3")], "Volume is already used by 1 pod(s) in different namespaces"),
        (
            vec![pod("pod3").on("a"), foreign("pod4")],
            "Volume is already used by pod(s) pod3 and 1 pod(s) in different namespaces",
        ),
    ];
    for (users, who) in cases {
        let mounted = a.clone().using(UNIQUE).listing(UNIQUE);
        let sites = vec![site(&mounted, &users, Some(&held)), site(&b, &waiting, None)];
        let plan = plan(&pv(&["ReadWriteOnce"]), sites);
        assert_eq!(plan.events.len(), 1);
        assert_eq!(plan.events[0].note, format!("Waiting for detach for volume \"pv\" {who}"));
        assert_eq!(plan.events[0].about.name.as_deref(), Some("waiting"));
    }
}

#[test]
fn a_full_node_gets_no_further_volume() {
    let (a, pods) = (node("a").ready("True"), [pod("web").on("a")]);
    let with_room = |room| {
        let site = Site { room, ..site(&a, &pods, None) };
        words(&plan(&pv(&["ReadWriteOnce"]), vec![site]))
    };
    assert_eq!(with_room(Some((2, 3))), ["create a"]);
    assert_eq!(with_room(Some((3, 3))), [""; 0]);
    assert_eq!(with_room(None), ["create a"]);
}

#[test]
fn a_deleted_attachment_is_waited_for_even_if_it_is_wanted_again() {
    let (a, pods) = (node("a").ready("True"), [pod("web").on("a")]);
    let mut going = attachment("a", true);
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(words(&plan(&pv(&["ReadWriteOnce"]), vec![site(&a, &pods, Some(&going))])), [""; 0]);
}

#[test]
#[allow(clippy::useless_vec, reason = "an array of pods is large on the stack")]
fn pods_release_their_volumes_when_nothing_of_them_runs() {
    let status = |running: bool| ContainerStatus {
        state: Some(ContainerState {
            running: running.then(ContainerStateRunning::default),
            terminated: (!running).then(ContainerStateTerminated::default),
            waiting: None,
        }),
        ..Default::default()
    };
    let with = |mut pod: Pod, statuses: Vec<ContainerStatus>| {
        pod.status.get_or_insert_default().container_statuses = Some(statuses);
        pod
    };
    for (pod, expected) in vec![
        (pod("p").phase("Running"), false),
        (pod("p").phase("Succeeded"), true),
        (pod("p").phase("Failed"), true),
        (pod("p").phase("Running").deleting(), true),
        (with(pod("p").phase("Running").deleting(), vec![status(true)]), false),
        (with(pod("p").phase("Running").deleting(), vec![status(false)]), true),
        (with(pod("p").phase("Running").deleting(), vec![status(false), status(true)]), false),
        (with(pod("p").phase("Running"), vec![status(false)]), false),
    ] {
        assert_eq!(is_terminated(&pod), expected, "{pod:?}");
    }
}

#[test]
fn a_nodes_list_is_written_in_one_piece_and_others_volumes_stay() {
    let pods = [pod("web").on("a")];
    let a = node("a").listing("kubernetes.io/other/disk").listing("kubernetes.io/csi/driver^old");
    let listed = |name: &str| Listed { unique_name: name.into(), volume: "pv", pods: pods.iter().collect() };
    let observed = NodeObserved {
        node: &a,
        attached: vec![listed("kubernetes.io/csi/driver^new"), listed("kubernetes.io/csi/driver^newer")],
        barred: vec!["kubernetes.io/csi/driver^old".into()],
    };
    let plan = decide_node(&observed);
    let [NodeChange::SetAttached { wanted, .. }] = &plan.changes[..] else { panic!("one write: {plan}") };
    let names: Vec<&str> = wanted.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["kubernetes.io/other/disk", "kubernetes.io/csi/driver^new", "kubernetes.io/csi/driver^newer"]);
    assert_eq!(plan.events[0].note, "AttachVolume.Attach succeeded for volume \"pv\" ");
    let mut done = a.clone();
    done.status.as_mut().unwrap().volumes_attached = Some(wanted.clone());
    assert_eq!(decide_node(&NodeObserved { node: &done, ..observed }).changes, []);
}

proptest! {
    /// Whatever is seen: an exclusive volume that may be attached somewhere is not attached elsewhere, and a volume that
    /// its node uses or lists is not taken away unless by force.
    #[test]
    fn one_writer_and_no_volume_is_taken_from_under_a_mount(
        shapes in prop::collection::vec((any::<bool>(), 0..4_u8, any::<bool>(), any::<bool>(), any::<bool>(), 0..800_i64), 1..5),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut nodes = Vec::new();
        let mut attachments = Vec::new();
        let mut pods = Vec::new();
        for (name, (wanted, held, used, listed, ready, age)) in names.iter().zip(&shapes) {
            let mut node = node(name).ready(if *ready { "True" } else { "Unknown" });
            if *used { node = node.using(UNIQUE); }
            if *listed { node = node.listing(UNIQUE); }
            nodes.push(node);
            attachments.push(match held {
                0 | 1 => None,
                2 => Some(attachment(name, true)),
                _ => Some(attachment(name, false)),
            });
            pods.push(if *wanted { vec![pod(&format!("p-{name}")).on(name).created(*age)] } else { vec![] });
        }
        let pv = pv(&["ReadWriteOnce"]);
        let sites: Vec<Site<'_>> = nodes.iter().zip(&pods).zip(&attachments).zip(&shapes)
            .map(|(((node, pods), held), shape)| Site {
                unwanted_since: Some(after(-shape.5)),
                ..site(node, pods, held.as_ref())
            })
            .collect();
        let plan = plan(&pv, sites);
        let created: Vec<&Change> = plan.changes.iter().filter(|c| matches!(c, Change::Create { .. })).collect();
        prop_assert!(created.len() <= 1);
        prop_assert!(created.is_empty() || attachments.iter().all(Option::is_none), "{plan}");
        for change in &plan.changes {
            let Change::Delete { node, check, forced, .. } = change else { continue };
            let at = names.iter().position(|name| name == node).unwrap();
            let (wanted, _, used, listed, ready, _) = shapes[at];
            prop_assert!(!wanted && !listed, "{plan}");
            prop_assert!(*check || (used && !ready && forced.is_some()), "{plan}");
            prop_assert!(!*check || !used, "{plan}");
        }
    }
}
