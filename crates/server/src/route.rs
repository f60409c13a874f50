//! Which resource a request is about, and what is to be done with it.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::error::RequestError;

/// The collections that are provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collection {
    Volumes,
    Nodes,
    Settings,
    VolumeAttachments,
}

impl Collection {
    pub(crate) const ALL: [Self; 4] = [Self::Volumes, Self::Nodes, Self::Settings, Self::VolumeAttachments];

    /// As it is written in paths.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::Nodes => "nodes",
            Self::Settings => "settings",
            Self::VolumeAttachments => "volumeattachments",
        }
    }

    /// The type of its members.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Volumes => "volume",
            Self::Nodes => "node",
            Self::Settings => "setting",
            Self::VolumeAttachments => "volumeAttachment",
        }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Versions,
    Root,
    Schemas,
    Schema(String),
    List(Collection),
    Get(Collection, String),
    CreateVolume,
    DeleteVolume(String),
    VolumeAction(String, String),
    UpdateSetting(String),
    UpdateNode(String),
}

/// Finds the route; `query` is that of the URL.
pub(crate) fn route(method: &Method, path: &str, query: &str) -> Result<Route, RequestError> {
    let nowhere = || RequestError::Nowhere { method: method.to_string(), path: path.to_owned() };
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let Some(("v1", rest)) = segments.split_first().map(|(first, rest)| (*first, rest)) else { return Err(nowhere()) };
    let name = |segment: &str| percent_decode_str(segment).decode_utf8_lossy().into_owned();
    let action = || {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(key, _)| key == "action").map(|(_, value)| value.into_owned())
    };
    let collection = |word: &str| Collection::ALL.into_iter().find(|collection| collection.plural() == word);
    let found = match (method, rest) {
        (&Method::GET, [] | ["apiversions", "v1"]) => Some(Route::Root),
        (&Method::GET, ["apiversions"]) => Some(Route::Versions),
        (&Method::GET, ["schemas"]) => Some(Route::Schemas),
        (&Method::GET, ["schemas", id]) => Some(Route::Schema(name(id))),
        (&Method::GET, [word]) => collection(word).map(Route::List),
        (&Method::GET, [word, id]) => collection(word).map(|collection| Route::Get(collection, name(id))),
        (&Method::POST, ["volumes"]) => Some(Route::CreateVolume),
        (&Method::DELETE, ["volumes", id]) => Some(Route::DeleteVolume(name(id))),
        (&Method::POST, ["volumes", id]) => action().map(|action| Route::VolumeAction(name(id), action)),
        (&Method::PUT, ["settings", id]) => Some(Route::UpdateSetting(name(id))),
        (&Method::PUT, ["nodes", id]) => Some(Route::UpdateNode(name(id))),
        _ => None,
    };
    found.ok_or_else(nowhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_routes() {
        let action = Route::VolumeAction("v1".to_owned(), "attach".to_owned());
        for (method, path, query, found) in [
            (Method::GET, "/v1", "", Some(Route::Root)),
            (Method::GET, "/v1/", "", Some(Route::Root)),
            (Method::GET, "/v1/schemas/volume", "", Some(Route::Schema("volume".to_owned()))),
            (Method::GET, "/v1/volumes", "", Some(Route::List(Collection::Volumes))),
            (Method::GET, "/v1/nodes/node%2D1", "", Some(Route::Get(Collection::Nodes, "node-1".to_owned()))),
            (Method::POST, "/v1/volumes/v1", "action=attach", Some(action)),
            (Method::POST, "/v1/volumes/v1", "", None),
            (Method::GET, "/v2/volumes", "", None),
            (Method::GET, "/v1/backupvolumes", "", None),
            (Method::DELETE, "/v1/settings/x", "", None),
        ] {
            assert_eq!(route(&method, path, query).ok(), found, "{method} {path}");
        }
    }
}
