//! The security of a server, put together: who asks, whether they may, and what reviews and tokens answer.

use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use jiff::Timestamp;
use serde_json::Value;
use tether_machinery::status::ApiError;

use crate::auth::token::TokenAuthority;
use crate::auth::{Attributes, Authenticator, Authorizer, Objects, User, impersonate, review, token_request};

/// Authentication, impersonation, authorization, reviews and tokens.
pub struct Security {
    authenticator: Authenticator,
    authorizer: Arc<Authorizer>,
    tokens: Arc<TokenAuthority>,
    objects: Arc<dyn Objects>,
}

impl Security {
    pub fn new(
        authenticator: Authenticator,
        authorizer: Arc<Authorizer>,
        tokens: Arc<TokenAuthority>,
        objects: Arc<dyn Objects>,
    ) -> Self {
        Self { authenticator, authorizer, tokens, objects }
    }

    /// Who sent the request; 401 if the credentials do not hold.
    pub(crate) fn authenticate(&self, request: &Parts, now: Timestamp) -> Result<User, ApiError> {
        self.authenticator.authenticate(request, now)
    }

    /// Whom the request acts as and whether that user may do it; 403 if not.
    pub(crate) fn authorize(&self, headers: &HeaderMap, mut attributes: Attributes) -> Result<User, ApiError> {
        attributes.user = impersonate(&self.authorizer, attributes.user, headers)?;
        self.authorizer.check(&attributes)?;
        Ok(attributes.user)
    }

    /// Whether the user may also create what a PUT or an apply would have changed, had it been there; 403 if not.
    pub(crate) fn authorize_create(&self, user: &User, update: Attributes) -> Result<(), ApiError> {
        self.authorizer.check(&Attributes { user: user.clone(), verb: "create".to_owned(), ..update })
    }

    /// The answer to a review of this kind.
    pub(crate) fn review(
        &self,
        kind: &str,
        asked: Value,
        user: &User,
        namespace: &str,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        match kind {
            "SelfSubjectAccessReview" => review::self_subject_access_review(&self.authorizer, user, asked),
            "SubjectAccessReview" => review::subject_access_review(&self.authorizer, asked),
            "LocalSubjectAccessReview" => review::local_subject_access_review(&self.authorizer, namespace, asked),
            "SelfSubjectRulesReview" => review::self_subject_rules_review(&self.authorizer, user, &asked),
            "SelfSubjectReview" => Ok(review::self_subject_review(user, now)),
            "TokenReview" => review::token_review(&self.tokens, asked, now),
            _ => Err(ApiError::no_such_path()),
        }
    }

    /// A token request, filled in and checked.
    pub(crate) fn prepare_token(
        &self,
        namespace: &str,
        account: &str,
        request: &Value,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        token_request::prepare(&*self.objects, namespace, account, request, now)
    }

    /// The token that a prepared request asks for.
    pub(crate) fn issue_token(&self, request: Value, id: &str, now: Timestamp) -> Result<Value, ApiError> {
        token_request::issue(&self.tokens, &*self.objects, request, id, now)
    }

    /// The OpenID documents that let others verify tokens of this cluster.
    pub(crate) fn tokens(&self) -> &TokenAuthority {
        &self.tokens
    }
}
