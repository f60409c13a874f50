//! What is known to run in the instance manager.
//!
//! News come two ways: as answers to requests, and as a stream. They may cross: the stream may tell of the past of
//! something that was just started or stopped by request. An answer counts at once; what the stream says of a run that is
//! known to be over, or of one before the present, is not news.

use std::collections::BTreeMap;

use tether_engine::control::proto;
use tether_plan::instance::Manager;

/// The instances, by name.
#[derive(Debug, Default)]
pub(super) struct View {
    manager: Known,
    instances: BTreeMap<String, Entry>,
    /// The uids of runs that ended by request, until the stream has told so.
    over: BTreeMap<String, String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Known {
    #[default]
    Nothing,
    /// The stream began, and has yet to tell everything.
    Listing,
    Everything,
    Down,
}

#[derive(Debug)]
struct Entry {
    instance: proto::Instance,
    /// The stream has told of this run.
    confirmed: bool,
}

impl View {
    pub fn manager(&self) -> Manager {
        match self.manager {
            Known::Nothing | Known::Listing => Manager::Unknown,
            Known::Everything => Manager::Known,
            Known::Down => Manager::Down,
        }
    }

    pub fn get(&self, name: &str) -> Option<&proto::Instance> {
        self.instances.get(name).map(|entry| &entry.instance)
    }

    /// A new stream begins: what was known may be of another process.
    pub fn begin(&mut self) {
        *self = Self { manager: Known::Listing, ..Self::default() };
    }

    /// The stream has told everything.
    pub fn listed(&mut self) {
        self.manager = Known::Everything;
    }

    /// Nobody answers: nothing runs.
    pub fn down(&mut self) {
        *self = Self { manager: Known::Down, ..Self::default() };
    }

    /// The stream broke, and why is not known yet.
    pub fn lost(&mut self) {
        self.manager = Known::Nothing;
    }

    /// The stream tells of an instance.
    pub fn told(&mut self, instance: proto::Instance) {
        if self.over.get(&instance.name) == Some(&instance.uid) {
            return;
        }
        if let Some(known) = self.instances.get(&instance.name)
            && !known.confirmed
            && known.instance.uid != instance.uid
        {
            return;
        }
        self.instances.insert(instance.name.clone(), Entry { instance, confirmed: true });
    }

    /// The stream tells that an instance is gone.
    pub fn told_removed(&mut self, name: &str) {
        self.over.remove(name);
        if self.instances.get(name).is_some_and(|entry| entry.confirmed) {
            self.instances.remove(name);
        }
    }

    /// A request started it.
    pub fn started(&mut self, instance: proto::Instance) {
        let confirmed = self.get(&instance.name).is_some_and(|known| known.uid == instance.uid);
        if !confirmed {
            self.instances.insert(instance.name.clone(), Entry { instance, confirmed: false });
        }
    }

    /// It was asked how it is.
    pub fn asked(&mut self, name: &str, info: proto::EngineInfo) {
        if let Some(entry) = self.instances.get_mut(name) {
            entry.instance.engine = Some(info);
        }
    }

    /// A request stopped it.
    pub fn stopped(&mut self, name: &str) {
        if let Some(entry) = self.instances.remove(name) {
            self.over.insert(name.to_owned(), entry.instance.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(uid: &str, state: &str) -> proto::Instance {
        proto::Instance { name: "e".into(), uid: uid.into(), state: state.into(), ..proto::Instance::default() }
    }

    fn uid(view: &View) -> Option<&str> {
        view.get("e").map(|instance| instance.uid.as_str())
    }

    #[test]
    fn the_past_of_what_was_just_started_or_stopped_is_no_news() {
        let mut view = View::default();
        assert_eq!(view.manager(), Manager::Unknown);
        view.begin();
        view.told(run("1", "running"));
        view.listed();
        assert_eq!((view.manager(), uid(&view)), (Manager::Known, Some("1")));
        view.stopped("e");
        view.told(run("1", "running"));
        assert_eq!(uid(&view), None, "it was stopped after that");
        view.started(run("2", "running"));
        view.told(run("1", "stopped"));
        view.told_removed("e");
        assert_eq!(uid(&view), Some("2"), "this was about the run before");
        view.told(run("2", "error"));
        assert_eq!(view.get("e").unwrap().state, "error");
        view.told_removed("e");
        assert_eq!(uid(&view), None);
    }

    #[test]
    fn a_manager_that_is_gone_takes_everything_with_it() {
        let mut view = View::default();
        view.begin();
        view.told(run("1", "running"));
        view.listed();
        view.lost();
        assert_eq!((view.manager(), uid(&view)), (Manager::Unknown, Some("1")));
        view.down();
        assert_eq!((view.manager(), uid(&view)), (Manager::Down, None));
    }
}
