//! Which events are written, and how often: what repeats is counted, what varies without end is combined, and who tells too
//! much is cut short. Names of the rules and their numbers are those of Kubernetes' event recorders.
//!
//! ```text
//!   event ──► told before? ── yes ──► counted; the series is written now or later, seldom and more seldom
//!                 │ no
//!                 ▼
//!         many of its kind, each with other words? ──► one for all of them: "(combined from similar events): …"
//!                 │
//!                 ▼
//!         does its object still have a token? ── no ──► dropped
//!                 │ yes
//!                 ▼
//!             a new event
//! ```

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;

use crate::event::Event;

/// An event that was not seen for so long is a new one when it is seen again.
const SERIES: SignedDuration = SignedDuration::from_mins(30);
/// Between an event's creation and the first write of its count: a decision that is made a few times in a row costs one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// Each pause is so much longer than the one before, up to how often a series is written at the most.
const PAUSE_FACTOR: i32 = 6;
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(6);
/// So many events of one object and reason that differ in words, within so long, are told one by one.
const SIMILAR: usize = 10;
const SIMILAR_FOR: SignedDuration = SignedDuration::from_mins(10);
const COMBINED: &str = "(combined from similar events): ";
/// New events of one object: so many at once, and one more in each such time.
const BURST: u32 = 25;
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// How much is remembered; beyond that what was not seen for longest is forgotten.
const REMEMBERED: usize = 4_096;

/// What events are about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    uid: String,
    namespace: String,
    name: String,
}

/// Events that differ in nothing but their words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    object: Object,
    reason: &'static str,
    warning: bool,
}

/// An event as it is recognized when it is told again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    group: Group,
    /// None: the one that stands for all that are similar.
    note: Option<String>,
}

#[derive(Clone, Debug)]
struct Known {
    /// The object's name; none while it is being created.
    event: Option<String>,
    count: i32,
    written: i32,
    seen: Timestamp,
    next_write: Timestamp,
    pause: SignedDuration,
}

#[derive(Clone, Debug)]
struct Similar {
    notes: BTreeSet<String>,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Tokens {
    left: u32,
    since: Timestamp,
}

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is new. Whoever creates it says how that ended: [`Recorder::created`] or [`Recorder::refused`].
    Create { id: Id, note: String },
    /// It was told before, and is counted.
    Counted,
    /// Too much was told about its object.
    Dropped,
}

/// A count that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub id: Id,
    pub namespace: String,
    pub event: String,
    pub count: i32,
    pub last_seen: Timestamp,
}

/// What one publisher remembers.
#[derive(Debug, Default)]
pub struct Recorder {
    known: BTreeMap<Id, Known>,
    similar: BTreeMap<Group, Similar>,
    tokens: BTreeMap<Object, Tokens>,
}

impl Recorder {
    /// Something is to be told.
    pub fn see(&mut self, event: &Event, now: Timestamp) -> Step {
        let id = self.recognize(event, now);
        if let Some(known) = self.known.get_mut(&id).filter(|known| now < known.seen + SERIES) {
            known.count = known.count.saturating_add(1);
            known.seen = now;
            return Step::Counted;
        }
        if !self.spend(&id.group.object, now) {
            return Step::Dropped;
        }
        forget_oldest(&mut self.known, |known| known.seen);
        let next_write = now + FIRST_PAUSE;
        let new = Known { event: None, count: 1, written: 1, seen: now, next_write, pause: FIRST_PAUSE };
        self.known.insert(id.clone(), new);
        let prefix = if id.note.is_none() { COMBINED } else { "" };
        Step::Create { id, note: format!("{prefix}{}", event.note) }
    }

    /// The event was created, by this name.
    pub fn created(&mut self, id: &Id, event: &str) {
        if let Some(known) = self.known.get_mut(id) {
            known.event = Some(event.to_owned());
        }
    }

    /// The event could not be created, or has expired: the next one of its kind is new.
    pub fn refused(&mut self, id: &Id) {
        self.known.remove(id);
    }

    /// The counts that are to be written now; they count as written.
    pub fn due(&mut self, now: Timestamp) -> Vec<Series> {
        let waiting = self.known.iter_mut().filter(|(_, known)| known.is_behind() && known.next_write <= now);
        let write = |(id, known): (&Id, &mut Known)| {
            known.written = known.count;
            known.pause = known.pause.saturating_mul(PAUSE_FACTOR).min(LONGEST_PAUSE);
            known.next_write = now + known.pause;
            Series {
                id: id.clone(),
                namespace: home(&id.group.object.namespace).to_owned(),
                event: known.event.clone().unwrap_or_default(),
                count: known.count,
                last_seen: known.seen,
            }
        };
        waiting.map(write).collect()
    }

    /// When a count is to be written next, if nothing more is told.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.known.values().filter(|known| known.is_behind()).map(|known| known.next_write).min()
    }

    fn recognize(&mut self, event: &Event, now: Timestamp) -> Id {
        let group = group(event);
        forget_oldest(&mut self.similar, |similar| similar.since);
        let similar =
            self.similar.entry(group.clone()).or_insert_with(|| Similar { notes: BTreeSet::new(), since: now });
        if now >= similar.since + SIMILAR_FOR {
            *similar = Similar { notes: BTreeSet::new(), since: now };
        }
        let is_told = similar.notes.contains(&event.note);
        if !is_told && similar.notes.len() >= SIMILAR {
            return Id { group, note: None };
        }
        similar.notes.insert(event.note.clone());
        Id { group, note: Some(event.note.clone()) }
    }

    /// Takes a token of the object, if it has one left.
    fn spend(&mut self, object: &Object, now: Timestamp) -> bool {
        forget_oldest(&mut self.tokens, |tokens| tokens.since);
        let tokens = self.tokens.entry(object.clone()).or_insert(Tokens { left: BURST, since: now });
        let earned = now.duration_since(tokens.since).as_secs().max(0) / REFILL.as_secs();
        if earned > 0 {
            tokens.left = tokens.left.saturating_add(u32::try_from(earned).unwrap_or(BURST)).min(BURST);
            tokens.since = now;
        }
        let has_one = tokens.left > 0;
        tokens.left = tokens.left.saturating_sub(1);
        has_one
    }
}

impl Known {
    fn is_behind(&self) -> bool {
        self.event.is_some() && self.count > self.written
    }
}

/// Makes room for one more.
fn forget_oldest<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, seen: impl Fn(&V) -> Timestamp) {
    if map.len() >= REMEMBERED
        && let Some(oldest) = map.iter().min_by_key(|(_, value)| seen(value)).map(|(key, _)| key.clone())
    {
        map.remove(&oldest);
    }
}

fn group(event: &Event) -> Group {
    let part = |field: &Option<String>| field.clone().unwrap_or_default();
    let ObjectReference { uid, namespace, name, .. } = &event.about;
    let object = Object { uid: part(uid), namespace: part(namespace), name: part(name) };
    Group { object, reason: event.reason.code(), warning: event.warning }
}

/// The namespace in which events about an object live; those about what has none are in `default`.
pub fn home(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use tether_model::reason::Reason;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn event(pod: &str, note: &str) -> Event {
        let metadata = ObjectMeta {
            name: Some(pod.into()),
            namespace: Some("ns".into()),
            uid: Some(format!("uid-{pod}")),
            ..Default::default()
        };
        Event::warning(&Pod { metadata, ..Default::default() }, Reason::FailedScheduling, note)
    }

    fn tell(recorder: &mut Recorder, event: &Event, seconds: i64) -> Step {
        let step = recorder.see(event, at(seconds));
        if let Step::Create { id, .. } = &step {
            recorder.created(id, &format!("event-{seconds}"));
        }
        step
    }

    fn written(recorder: &mut Recorder, seconds: i64) -> Vec<(String, i32)> {
        recorder.due(at(seconds)).into_iter().map(|series| (series.event, series.count)).collect()
    }

    #[test]
    fn what_is_told_again_is_counted_and_the_count_is_written_seldom() {
        let (mut recorder, told) = (Recorder::default(), event("web", "no room"));
        assert!(matches!(tell(&mut recorder, &told, 0), Step::Create { note, .. } if note == "no room"));
        assert_eq!(recorder.wake_at(), None, "there is nothing to write");
        for second in [1, 2, 3] {
            assert_eq!(tell(&mut recorder, &told, second), Step::Counted);
            assert_eq!(written(&mut recorder, second), []);
        }
        assert_eq!(recorder.wake_at(), Some(at(10)));
        assert_eq!(written(&mut recorder, 10), [("event-0".to_owned(), 4)]);
        assert_eq!(recorder.wake_at(), None, "at rest nothing is written");
        let mut writes = 0;
        for second in 11..1_700 {
            tell(&mut recorder, &told, second);
            writes += written(&mut recorder, second).len();
        }
        assert_eq!(writes, 1 + 4, "after one minute, then every six");
        assert!(matches!(tell(&mut recorder, &told, 1_700 + 1_800), Step::Create { .. }), "it is another story now");
    }

    #[test]
    fn a_late_repetition_is_written_at_once() {
        let (mut recorder, told) = (Recorder::default(), event("web", "no room"));
        tell(&mut recorder, &told, 0);
        tell(&mut recorder, &told, 300);
        assert_eq!(written(&mut recorder, 300), [("event-0".to_owned(), 2)]);
    }

    #[test]
    fn what_could_not_be_created_or_expired_is_new_again() {
        let (mut recorder, told) = (Recorder::default(), event("web", "no room"));
        let Step::Create { id, .. } = recorder.see(&told, at(0)) else { panic!("it is new") };
        assert_eq!(recorder.see(&told, at(1)), Step::Counted, "it is being created");
        assert_eq!((recorder.wake_at(), recorder.due(at(60))), (None, vec![]), "nobody knows its name yet");
        recorder.refused(&id);
        assert!(matches!(recorder.see(&told, at(2)), Step::Create { .. }));
    }

    #[test]
    fn many_events_that_differ_in_words_become_one() {
        let mut recorder = Recorder::default();
        for number in 0..10 {
            let step = tell(&mut recorder, &event("web", &format!("try {number}")), number);
            assert!(matches!(step, Step::Create { note, .. } if note == format!("try {number}")));
        }
        let combined = tell(&mut recorder, &event("web", "try 10"), 10);
        let words = "(combined from similar events): try 10";
        assert!(matches!(&combined, Step::Create { note, .. } if note == words), "{combined:?}");
        assert_eq!(tell(&mut recorder, &event("web", "try 11"), 11), Step::Counted);
        assert_eq!(tell(&mut recorder, &event("web", "try 3"), 12), Step::Counted, "it has its own");
        assert!(
            matches!(tell(&mut recorder, &event("web", "try 12"), 700), Step::Create { note, .. } if note == "try 12")
        );
    }

    #[test]
    fn an_object_about_which_too_much_is_told_falls_silent_and_others_do_not() {
        let mut recorder = Recorder::default();
        let reasons = [Reason::Scheduled, Reason::FailedScheduling, Reason::FailedBinding, Reason::Provisioning];
        let mut created = 0;
        for number in 0..40 {
            let mut told = event("web", &format!("try {}", number / 4));
            told.reason = reasons[number % 4];
            created += i32::from(matches!(tell(&mut recorder, &told, 0), Step::Create { .. }));
        }
        assert_eq!(created, 25);
        assert!(matches!(tell(&mut recorder, &event("other", "x"), 0), Step::Create { .. }));
        let mut later = event("web", "later");
        later.reason = Reason::ProvisioningFailed;
        assert_eq!(tell(&mut recorder, &later, 299), Step::Dropped);
        assert!(matches!(tell(&mut recorder, &later, 300), Step::Create { .. }));
    }

    #[test]
    fn memory_is_bounded() {
        let mut recorder = Recorder::default();
        for number in 0..5_000 {
            tell(&mut recorder, &event(&format!("pod-{number}"), "x"), number);
        }
        assert!(recorder.known.len() <= REMEMBERED && recorder.tokens.len() <= REMEMBERED);
        assert!(recorder.similar.len() <= REMEMBERED);
        assert_eq!(tell(&mut recorder, &event("pod-4999", "x"), 5_000), Step::Counted);
    }
}
