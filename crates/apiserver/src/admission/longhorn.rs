//! The rules of volumes and what belongs to them, run in process: those that a webhook would run on another cluster.

use std::sync::Arc;

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tether_crd::admission::{self, Refusal, Related, Review};
use tether_crd::settings::Settings;
use tether_crd::volume::DataLocality;
use tether_crd::{GROUP, Setting, Volume};
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::{ApiError, Named};

use super::{Operation, Plugin, Request};
use crate::auth::{Objects, text};

/// The rules over the objects that they compare with.
pub(super) struct Longhorn(pub(super) Arc<dyn Objects>);

impl Longhorn {
    /// The write as the rules see it. Statuses are the controllers' own.
    fn review(request: &Request) -> Option<Review<'_>> {
        let operation = match request.operation {
            Operation::Create => admission::Operation::Create,
            Operation::Update => admission::Operation::Update,
            Operation::Delete => admission::Operation::Delete,
            Operation::Connect => return None,
        };
        (request.resource.group == GROUP && request.subresource.is_empty()).then(|| Review {
            operation,
            resource: &request.resource.resource,
            name: &request.name,
            object: &request.object,
            old: request.old_object.as_deref(),
        })
    }

    fn related(&self, request: &Request, review: &Review<'_>) -> Related {
        let (needs, namespace) = (review.needs(), request.namespace.as_str());
        let volume: Option<Volume> = needs.volume.as_deref().and_then(|name| {
            let object = self.0.get(&resource("volumes"), namespace, name)?;
            Volume::deserialize(&*object).ok()
        });
        // Names of engines and replicas begin with their volume's, and so may those of another volume.
        let of_volume = |wanted: bool, plural: &str, mark: &str| -> Vec<Arc<Value>> {
            let Some(volume) = needs.volume.as_deref().filter(|_| wanted) else { return Vec::new() };
            let mut found = self.0.named(&resource(plural), namespace, &format!("{volume}-{mark}-"));
            found.retain(|object| text(object, "/spec/volumeName") == volume);
            found
        };
        let settings: Vec<Setting> =
            if needs.settings { read_all(&self.0.list(&resource("settings"))) } else { Vec::new() };
        // Where they are matters to tickets of volumes that are bound to them, and otherwise only if one is deleted.
        let may_matter = |volume: Option<&Volume>| {
            let bound = volume.is_none_or(|volume| volume.spec.data_locality == DataLocality::StrictLocal);
            bound || request.operation == Operation::Delete
        };
        let replicas = read_all(&of_volume(needs.replicas && may_matter(volume.as_ref()), "replicas", "r"));
        Related {
            replicas,
            volume,
            engines: read_all(&of_volume(needs.engines, "engines", "e")),
            settings: Settings::of(&settings),
        }
    }
}

impl Plugin for Longhorn {
    fn mutate(&self, request: &mut Request) -> Result<Vec<String>, ApiError> {
        let Some(review) = Self::review(request) else { return Ok(Vec::new()) };
        let related = self.related(request, &review);
        let object = admission::mutate(&review, &related).map_err(|refusal| refused(request, &refusal))?;
        request.object = object;
        Ok(Vec::new())
    }

    fn validate(&self, request: &Request) -> Result<Vec<String>, ApiError> {
        let Some(review) = Self::review(request) else { return Ok(Vec::new()) };
        let related = self.related(request, &review);
        admission::validate(&review, &related).map_err(|refusal| refused(request, &refusal))?;
        Ok(Vec::new())
    }
}

fn resource(plural: &str) -> String {
    format!("{plural}.{GROUP}")
}

fn read_all<K: DeserializeOwned>(objects: &[Arc<Value>]) -> Vec<K> {
    objects.iter().filter_map(|object| K::deserialize(&**object).ok()).collect()
}

fn refused(request: &Request, refusal: &Refusal) -> ApiError {
    if request.operation == Operation::Delete {
        return request.forbidden(&refusal.message);
    }
    let error = FieldError::forbidden(Path::new(refusal.field.as_str()), refusal.message.clone());
    let named = Named { group: GROUP, resource: &request.kind.kind, name: &request.name };
    ApiError::invalid(named, &[error])
}
