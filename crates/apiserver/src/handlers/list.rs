//! GET of one object or of a collection.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tether_machinery::status::ApiError;

use super::Context;
use super::filter::Filter;
use super::view;
use crate::response::{self, Body, View};
use crate::store::{Entry, ListError, ListQuery, Listing};

/// Objects looked at per step when a selector and a limit are combined.
const FILTER_STEP: usize = 500;

/// Where a list goes on. Opaque to clients.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Token {
    v: String,
    /// The revision of the first page; -1 once that is gone and the client accepted an inconsistent rest.
    rv: i64,
    ns: String,
    name: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";
/// A longer token cannot have come from this server.
const MAX_TOKEN_BYTES: usize = 2048;

impl Token {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token must serialise"))
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let wrong = || ApiError::bad_request("continue key is not valid: start the list again without it");
        if text.len() > MAX_TOKEN_BYTES {
            return Err(wrong());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
        if token.v != TOKEN_VERSION || token.rv < -1 || token.rv == 0 {
            return Err(wrong());
        }
        Ok(token)
    }
}

/// The fuzzers' way in.
pub fn token_is_valid(text: &str) -> bool {
    Token::decode(text).is_ok()
}

/// GET of one object.
pub fn get(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    refuse_future(cx)?;
    let entry = cx.existing()?;
    match (cx.accepted.view, cx.accepted.yaml) {
        (View::Object, false) => Ok(response::json_bytes(StatusCode::OK, cx.resource.present(&entry))),
        _ => view::object(cx, StatusCode::OK, cx.resource.read(&entry)),
    }
}

/// What one page holds.
pub(super) struct Page {
    pub revision: u64,
    pub entries: Vec<Entry>,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

/// GET of a collection.
pub fn list(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    refuse_future(cx)?;
    let filter = Filter::parse(&cx.resource, cx.query, &cx.info)?;
    let page = page(cx, &filter)?;
    if cx.accepted.view != View::Object || cx.accepted.yaml {
        return view::list(cx, &page);
    }
    let head = list_head(&cx.resource.api_version(), &cx.resource.list_kind, &page);
    let resource = cx.resource.clone();
    let items = page.entries.into_iter().map(move |entry| resource.present(&entry));
    Ok(response::json_list(head, items, "]}\n"))
}

fn list_head(api_version: &str, list_kind: &str, page: &Page) -> String {
    let mut head = json!({"kind": list_kind, "apiVersion": api_version, "metadata": list_meta(page)}).to_string();
    head.pop();
    head.push_str(",\"items\":[");
    head
}

pub(super) fn list_meta(page: &Page) -> Value {
    let mut meta = json!({"resourceVersion": page.revision.to_string()});
    if let Some(token) = &page.continue_token {
        meta["continue"] = token.as_str().into();
        if let Some(remaining) = page.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
    }
    meta
}

/// The page that the request asks for, filtered.
pub(super) fn page(cx: &Context<'_>, filter: &Filter) -> Result<Page, ApiError> {
    let limit = cx.query.number::<usize>("limit")?.filter(|n| *n > 0);
    let token = cx.query.get("continue").map(Token::decode).transpose()?;
    let mut at = exact_revision(cx, token.as_ref())?;
    let mut after = token.map(|t| (t.ns, t.name));
    let mut page = Page { revision: 0, entries: Vec::new(), continue_token: None, remaining: None };
    loop {
        let wanted = limit.map_or(0, |n| n - page.entries.len());
        // 0 stands for all; with a selector, more than is wanted may have to be looked at.
        let step = if filter.is_empty() || wanted == 0 { wanted } else { wanted.max(FILTER_STEP) };
        let listing = read_page(cx, at, after.as_ref(), step)?;
        at = Some(listing.revision);
        page.revision = listing.revision;
        let mut remaining = listing.remaining;
        let mut entries = listing.entries.into_iter();
        for entry in entries.by_ref() {
            after = Some((entry.key.namespace.clone(), entry.key.name.clone()));
            if filter.matches_bytes(&cx.resource, &entry.value) {
                page.entries.push(entry);
            }
            if limit == Some(page.entries.len()) {
                break;
            }
        }
        remaining += entries.len();
        if remaining == 0 {
            return Ok(page);
        }
        if limit == Some(page.entries.len()) {
            let (ns, name) = after.unwrap_or_default();
            let token = Token { v: TOKEN_VERSION.to_owned(), rv: page.revision as i64, ns, name };
            page.continue_token = Some(token.encode());
            page.remaining = filter.is_empty().then_some(remaining);
            return Ok(page);
        }
    }
}

fn read_page(
    cx: &Context<'_>,
    at: Option<u64>,
    after: Option<&(String, String)>,
    limit: usize,
) -> Result<Listing, ApiError> {
    let query = ListQuery {
        resource: &cx.resource.storage,
        namespace: cx.namespace(),
        at,
        after: after.map(|(ns, name)| (ns.as_str(), name.as_str())),
        limit,
    };
    cx.server.store().list(query).map_err(|e| match e {
        ListError::Compacted { .. } if after.is_some() => expired_continue(after),
        ListError::Compacted { .. } => ApiError::expired(format!(
            "The resourceVersion for the provided list is too old: {}",
            at.unwrap_or_default()
        )),
        ListError::Future { .. } => too_large(at.unwrap_or_default(), cx.server.store().revision()),
    })
}

/// 410 with a token that continues without the promise of one consistent list, as Kubernetes gives it.
fn expired_continue(after: Option<&(String, String)>) -> ApiError {
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of \
         the results. Continuing with the provided token results in an inconsistent list - objects that were \
         created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    if let Some((ns, name)) = after.cloned() {
        error.continue_token = Some(Token { v: TOKEN_VERSION.to_owned(), rv: -1, ns, name }.encode());
    }
    error
}

/// The exact revision to list at, if the request fixes one.
fn exact_revision(cx: &Context<'_>, token: Option<&Token>) -> Result<Option<u64>, ApiError> {
    let given = cx.query.number::<u64>("resourceVersion")?;
    let matching = cx.query.get("resourceVersionMatch");
    if let Some(token) = token {
        if given.is_some_and(|rv| rv != 0) || matching.is_some() {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        return Ok(u64::try_from(token.rv).ok());
    }
    match (matching, given) {
        (None, Some(rv)) if rv != 0 && cx.query.number::<usize>("limit")?.is_some_and(|n| n > 0) => Ok(Some(rv)),
        (None | Some("NotOlderThan"), Some(_)) | (None, None) => Ok(None),
        (Some("Exact"), Some(rv)) if rv != 0 => Ok(Some(rv)),
        (Some("Exact"), Some(_)) => Err(ApiError::bad_request(
            "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some("Exact" | "NotOlderThan"), None) => Err(ApiError::bad_request(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        (Some(other), _) => Err(ApiError::bad_request(format!(
            "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
        ))),
    }
}

/// 504 for a revision from the future, with the cause that client-go looks for.
pub(super) fn too_large(asked: u64, current: u64) -> ApiError {
    let mut error = ApiError::timeout(format!("Too large resource version: {asked}, current: {current}"));
    error.details = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    });
    error
}

/// A read at `resourceVersion=N` sees at least N. This server is the only one and shows every write at once, so a
/// revision that it has not reached was never handed out: waiting for it would not help.
fn refuse_future(cx: &Context<'_>) -> Result<(), ApiError> {
    let current = cx.server.store().revision();
    match cx.query.number::<u64>("resourceVersion")? {
        Some(asked) if asked > current => Err(too_large(asked, current)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_reject_what_is_foreign() {
        let token = Token { v: TOKEN_VERSION.to_owned(), rv: 7, ns: "a".to_owned(), name: "b".to_owned() };
        assert_eq!(Token::decode(&token.encode()).expect("token"), token);
        for bad in ["", "x", "eyJ2IjoiMSJ9", &"A".repeat(5000)] {
            assert_eq!(Token::decode(bad).expect_err("foreign").code, 400, "{bad}");
        }
    }
}
