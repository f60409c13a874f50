//! The object that a change begins with, and who manages its fields.
//!
//! Notes on managers are half of many an object. Most writes leave it to the server to keep them, and nothing on their way looks at
//! them: then they stay text, apart from the object, from the store and back to it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tether_machinery::apply::{Retracked, retrack, same_but_times};
use tether_machinery::field::Path;
use tether_machinery::status::ApiError;
use tether_machinery::{apart, meta};

use super::Context;
use super::write::Tracking;
use crate::definitions;
use crate::object;
use crate::options::WriteOptions;
use crate::store::Entry;

/// One state of an object, as a change begins with it.
pub(super) struct Live {
    pub(super) entry: Entry,
    pub(super) object: Arc<Value>,
    pub(super) managers: Managers,
}

/// Where an object's `managedFields` are.
#[derive(Clone, Debug)]
pub(super) enum Managers {
    Within,
    /// Not in the object: as text, if there are any.
    Apart(Option<Bytes>),
}

impl Managers {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Apart(Some(text)) => {
                Some(std::str::from_utf8(text).expect("managedFields must be text: they were read as such"))
            }
            Self::Apart(None) | Self::Within => None,
        }
    }

    /// The object as a client sees it.
    pub(super) fn within(&self, mut object: Value) -> Value {
        if let Self::Apart(_) = self {
            apart::put_back(&mut object, self.text());
        }
        object
    }
}

impl Live {
    /// The object whole.
    pub(super) fn whole(cx: &Context<'_>) -> Result<Self, ApiError> {
        let entry = cx.existing()?;
        let object = Arc::new(cx.resource.read(&entry));
        Ok(Self { entry, object, managers: Managers::Within })
    }

    /// The object without its managers, if it may be changed so.
    fn apart(cx: &Context<'_>, options: &WriteOptions) -> Result<Option<Self>, ApiError> {
        let entry = cx.existing()?;
        let may = cx.resource.is_as_stored(&entry)
            && cx.resource.storage != definitions::STORAGE
            && matches!(cx.info.subresource.as_str(), "" | "status")
            // What is added of them is in order, so that nobody has to look.
            && meta::field_manager(&options.manager, &Path::root()).is_empty()
            && !cx.server.admission().asks_others();
        let text = std::str::from_utf8(&entry.value).ok().filter(|_| may);
        let Some((object, managers)) = text.and_then(apart::read) else { return Ok(None) };
        let managers = Managers::Apart(managers.map(|text| entry.value.slice_ref(text.as_bytes())));
        Ok(Some(Self { entry, object: Arc::new(object), managers }))
    }

    /// The object as it is, and what `compute` makes of it.
    pub(super) fn changed(
        cx: &Context<'_>,
        options: &WriteOptions,
        tracking: Tracking,
        compute: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<(Self, Value), ApiError> {
        if tracking == Tracking::Apart
            && let Some(live) = Self::apart(cx, options)?
            // An error may show the object, which is then to be whole.
            && let Ok(mut wished) = compute(&live.object)
            && live.leaves_managers(cx, &mut wished)
        {
            return Ok((live, wished));
        }
        let live = Self::whole(cx)?;
        let wished = compute(&live.object)?;
        Ok((live, wished))
    }

    /// Whether the wished object says nothing about managers that matters; what does not is taken out.
    fn leaves_managers(&self, cx: &Context<'_>, wished: &mut Value) -> bool {
        let Some(sent) = object::metadata(wished).remove("managedFields") else { return true };
        !cx.info.subresource.is_empty() || sent.is_null() || self.managers.text() == Some(sent.to_string().as_str())
    }

    /// Who manages which fields when this object has become `wished`.
    pub(super) fn track(&self, cx: &Context<'_>, options: &WriteOptions, wished: &mut Value) -> Managers {
        let Managers::Apart(kept) = &self.managers else {
            cx.track(options, Some(&self.object), wished);
            return Managers::Within;
        };
        let (api_version, reset) = (cx.resource.api_version(), cx.resource.reset_fields(&cx.info.subresource));
        let ownership = cx.ownership(options, &api_version, &reset);
        Managers::Apart(match retrack(&self.object, self.managers.text(), wished, &ownership) {
            Retracked::Kept => kept.clone(),
            Retracked::Changed(text) => Some(text.into()),
            Retracked::Gone => None,
        })
    }

    /// Whether `wished` is this object still. Managers that differ in times alone are then what they were.
    pub(super) fn is_still(&self, wished: &Value, managers: &Managers) -> bool {
        if *wished != *self.object {
            return false;
        }
        let (old, new) = (self.managers.text(), managers.text());
        let entries =
            |text: Option<&str>| text.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
        old == new || same_but_times(&entries(new), &entries(old))
    }
}
