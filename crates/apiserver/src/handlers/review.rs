//! Reviews: questions that are posted, answered and forgotten.

use http::{Response, StatusCode};
use tether_machinery::status::ApiError;

use super::{Context, decode, view};
use crate::response::Body;

/// Answers a POST of an access, rules, token or subject review.
pub fn answer(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let review = decode::object(cx, &cx.write_options()?)?;
    let answered =
        cx.server.security().review(&cx.resource.kind, review, &cx.user, &cx.info.namespace, cx.server.now())?;
    view::object(cx, StatusCode::CREATED, answered)
}
