//! GET of one object or of a collection.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tether_machinery::status::ApiError;

use super::Context;
use super::filter::Filter;
use super::view;
use crate::options::check_list;
use crate::response::{self, Body, View};
use crate::store::{Entry, ListError, ListQuery, Listing};

/// Objects looked at per step when a selector and a limit are combined.
const FILTER_STEP: usize = 500;

/// Where a list goes on. Opaque to clients.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Token {
    v: String,
    /// The revision of the first page; -1 once that is gone and the client accepted an inconsistent rest.
    rv: i64,
    /// `namespace/name` of the last object that was shown.
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";
/// A longer token cannot have come from this server.
const MAX_TOKEN_BYTES: usize = 2048;

impl Token {
    fn after(rv: i64, (namespace, name): &(String, String)) -> Self {
        Self { v: TOKEN_VERSION.to_owned(), rv, start: format!("{namespace}/{name}") }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token must serialise"))
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let wrong =
            |why: &str| ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        if text.len() > MAX_TOKEN_BYTES {
            return Err(wrong("too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|e| wrong(&go_base64_words(&e)))?;
        let fields: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(&e.to_string()))?;
        match fields.get("v").and_then(Value::as_str).unwrap_or_default() {
            TOKEN_VERSION => {}
            other => return Err(wrong(&format!("server does not recognize this encoded version {other}"))),
        }
        let rv = fields.get("rv").and_then(Value::as_i64).unwrap_or_default();
        if rv < -1 || rv == 0 {
            return Err(wrong(&format!("incorrect encoded start resourceVersion (version {TOKEN_VERSION})")));
        }
        let start = fields.get("start").and_then(Value::as_str).unwrap_or_default();
        if start.is_empty() {
            return Err(wrong(&format!("encoded start key empty (version {TOKEN_VERSION})")));
        }
        Ok(Self { v: TOKEN_VERSION.to_owned(), rv, start: start.to_owned() })
    }

    /// Namespace and name to go on after.
    fn position(&self) -> (String, String) {
        let (namespace, name) = self.start.split_once('/').unwrap_or(("", &self.start));
        (namespace.to_owned(), name.to_owned())
    }
}

/// Go's words for text that is not base64; it counts an incomplete group from its first byte.
fn go_base64_words(error: &base64::DecodeError) -> String {
    use base64::DecodeError::{InvalidByte, InvalidLastSymbol, InvalidLength, InvalidPadding};
    let at = match error {
        InvalidByte(at, _) | InvalidLastSymbol(at, _) => *at,
        InvalidLength(length) => length.saturating_sub(1),
        InvalidPadding => 0,
    };
    format!("illegal base64 data at input byte {at}")
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
    check_list(cx.query)?;
    refuse_future(cx)?;
    let filter = Filter::parse(&cx.resource, cx.query, &cx.info)?;
    let page = page(cx, &filter)?;
    if cx.accepted.view != View::Object || cx.accepted.yaml {
        return view::list(cx, &page);
    }
    let head = list_head(&cx.resource.api_version(), &cx.resource.list_kind, &page);
    let resource = cx.resource.clone();
    let items = page.entries.into_iter().map(move |entry| resource.present_item(&entry));
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
    let limit = limit(cx)?;
    let token = cx.query.get("continue").map(Token::decode).transpose()?;
    let mut at = exact_revision(cx, token.as_ref())?;
    let mut after = token.as_ref().map(Token::position);
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
            if filter.matches_entry(&cx.resource, &entry) {
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
            page.continue_token = Some(Token::after(page.revision as i64, &after.unwrap_or_default()).encode());
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
        ListError::Compacted { .. } => ApiError::expired("The resourceVersion for the provided list is too old."),
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
    error.continue_token = after.map(|position| Token::after(-1, position).encode());
    error
}

/// The exact revision to list at, if the request fixes one.
fn exact_revision(cx: &Context<'_>, token: Option<&Token>) -> Result<Option<u64>, ApiError> {
    let given = cx.query.revision()?.filter(|rv| *rv != 0);
    if let Some(token) = token {
        return match given {
            Some(_) => Err(ApiError::bad_request("specifying resource version is not allowed when using continue")),
            None => Ok(u64::try_from(token.rv).ok()),
        };
    }
    let exact = match cx.query.get("resourceVersionMatch") {
        Some(matching) => matching == "Exact",
        None => limit(cx)?.is_some(),
    };
    Ok(given.filter(|_| exact))
}

fn limit(cx: &Context<'_>) -> Result<Option<usize>, ApiError> {
    Ok(cx.query.number("limit")?.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0))
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
    match cx.query.revision()? {
        Some(asked) if asked > current => Err(too_large(asked, current)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_reject_what_is_foreign() {
        for position in [("a".to_owned(), "b".to_owned()), (String::new(), "b".to_owned())] {
            let token = Token::after(7, &position);
            assert_eq!(Token::decode(&token.encode()).expect("token"), token);
            assert_eq!(token.position(), position);
        }
        let cases = [
            ("", "EOF while parsing"),
            ("x", "illegal base64 data at input byte 0"),
            ("eyJ2IjoiMSJ9", "server does not recognize this encoded version 1"),
            ("eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MX0", "encoded start key empty (version meta.k8s.io/v1)"),
            (&"A".repeat(5000), "too long"),
        ];
        for (bad, why) in cases {
            let error = Token::decode(bad).expect_err("foreign");
            assert_eq!(error.code, 400, "{bad}");
            assert!(error.message.starts_with("invalid continue token: continue key is not valid: "), "{error}");
            assert!(error.message.contains(why), "{error}");
        }
    }
}
