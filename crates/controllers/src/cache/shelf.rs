//! Where a cache keeps its objects: those in use as they are, the others packed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::packed::{Error, Packed, Words};

/// How many objects of a kind stay as they are, so that what many look at in turn is not unpacked for each look: as many as
/// some two hundred volumes on their way somewhere have, and one or two MiB of each kind.
const IN_USE: usize = 512;

/// How objects of a kind are packed and unpacked; none: they are few, or looked at all together, and stay as they are.
pub(super) struct Packing<K> {
    pack: fn(&mut Words, &K) -> Result<Packed, Error>,
    unpack: fn(&Words, &[u8]) -> Result<K, Error>,
}

impl<K: Serialize + DeserializeOwned> Packing<K> {
    pub(super) const USUAL: Self = Self { pack: Words::pack::<K>, unpack: Words::unpack::<K> };
}

/// Objects by their [`place`], and the words under which they are found.
pub(super) struct Shelf<K> {
    objects: BTreeMap<Arc<str>, Held<K>>,
    /// Most words have one object or a few: one set of pairs takes a fraction of what a set for each word would.
    by_word: BTreeSet<(Arc<str>, Arc<str>)>,
    packing: Option<Packing<K>>,
    words: Words,
    /// Places of objects that are in use, in the order in which they are asked whether they still are.
    in_use: VecDeque<Arc<str>>,
    limit: usize,
}

struct Held<K> {
    /// None: it is packed.
    object: Option<Arc<K>>,
    /// None: it changed since it was packed last, or never was.
    packed: Option<Packed>,
    /// Somebody looked at it since it was last asked whether it is in use.
    was_looked_at: bool,
}

/// Where an object is: its namespace, which may be empty, and its name. Places are in the order of the former, then of the latter.
pub(super) fn place(namespace: &str, name: &str) -> String {
    let mut place = String::with_capacity(namespace.len() + 1 + name.len());
    place.push_str(namespace);
    place.push('\0');
    place.push_str(name);
    place
}

impl<K> Shelf<K> {
    pub(super) fn new(packing: Option<Packing<K>>) -> Self {
        Self {
            objects: BTreeMap::new(),
            by_word: BTreeSet::new(),
            packing,
            words: Words::default(),
            in_use: VecDeque::new(),
            limit: IN_USE,
        }
    }

    /// The object at a place. One that was packed is in use from now on.
    pub(super) fn get(&mut self, place: &str) -> Option<Arc<K>> {
        let held = self.objects.get_mut(place)?;
        held.was_looked_at = true;
        if let Some(object) = &held.object {
            return Some(object.clone());
        }
        let (packing, packed) = (self.packing.as_ref()?, held.packed.as_ref()?);
        let object = (packing.unpack)(&self.words, packed).expect("what was packed must be an object");
        let object = Arc::new(object);
        held.object = Some(object.clone());
        if let Some((place, _)) = self.objects.get_key_value(place) {
            self.in_use.push_back(place.clone());
        }
        self.put_away();
        Some(object)
    }

    /// The object at a place, for a look at everything: it does not count as being used.
    pub(super) fn glance(&self, place: &str) -> Option<Arc<K>> {
        let held = self.objects.get(place)?;
        if let Some(object) = &held.object {
            return Some(object.clone());
        }
        let (packing, packed) = (self.packing.as_ref()?, held.packed.as_ref()?);
        Some(Arc::new((packing.unpack)(&self.words, packed).expect("what was packed must be an object")))
    }

    pub(super) fn places(&self) -> Vec<Arc<str>> {
        self.objects.keys().cloned().collect()
    }

    /// Puts an object where it belongs, in the place of what was there.
    pub(super) fn put(&mut self, place: &str, object: Arc<K>) {
        let place: Arc<str> = match self.objects.get_key_value(place) {
            Some((held, _)) => held.clone(),
            None => place.into(),
        };
        let held = Held { object: Some(object), packed: None, was_looked_at: true };
        let before = self.objects.insert(place.clone(), held);
        if self.packing.is_some() && before.is_none_or(|before| before.object.is_none()) {
            self.in_use.push_back(place);
            self.put_away();
        }
    }

    pub(super) fn remove(&mut self, place: &str) {
        self.objects.remove(place);
    }

    /// Packs those that were not looked at for longest, as many as are too many.
    fn put_away(&mut self) {
        while self.in_use.len() > self.limit {
            let Some(place) = self.in_use.pop_front() else { return };
            // One that is gone, or is here a second time because it went and came, is asked once.
            let Some(held) = self.objects.get_mut(&place) else { continue };
            let (Some(object), Some(packing)) = (&held.object, &self.packing) else { continue };
            if std::mem::take(&mut held.was_looked_at) {
                self.in_use.push_back(place);
                continue;
            }
            if held.packed.is_none() {
                held.packed = Some((packing.pack)(&mut self.words, object).expect("an object must have a form"));
            }
            held.object = None;
        }
    }

    /// Finds an object under `is` from now on, and no longer under `was`.
    pub(super) fn reindex(&mut self, place: &str, was: Vec<String>, is: Vec<String>) {
        // Most changes leave an object where it is found; that it is new or gone is none of them.
        if was == is {
            return;
        }
        let place: Arc<str> = match self.objects.get_key_value(place) {
            Some((held, _)) => held.clone(),
            None => place.into(),
        };
        for word in was {
            self.by_word.remove(&(word.into(), place.clone()));
        }
        for word in is {
            let shared = self.under(&word).next().map(|(held, _)| held.clone());
            self.by_word.insert((shared.unwrap_or_else(|| word.into()), place.clone()));
        }
    }

    fn under<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a (Arc<str>, Arc<str>)> {
        let first: (Arc<str>, Arc<str>) = (word.into(), Arc::default());
        self.by_word.range(first..).take_while(move |(under, _)| **under == *word)
    }

    /// Where the objects under a word are.
    pub(super) fn found(&self, word: &str) -> Vec<Arc<str>> {
        self.under(word).map(|(_, place)| place.clone()).collect()
    }

    #[cfg(test)]
    pub(super) fn limit_to(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many are as they are, and how many are packed.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let as_they_are = self.objects.values().filter(|held| held.object.is_some()).count();
        (as_they_are, self.objects.len() - as_they_are)
    }
}
