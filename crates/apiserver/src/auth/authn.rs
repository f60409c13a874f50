//! Who is asking: client certificate, then bearer token, then nobody.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use jiff::Timestamp;
use tether_machinery::status::ApiError;

use super::token::TokenAuthority;
use super::x509::{CertificateAuthenticator, PeerCertificates};
use super::{GROUP_AUTHENTICATED, User};

/// Tells who sent a request.
pub struct Authenticator {
    certificates: CertificateAuthenticator,
    tokens: Arc<TokenAuthority>,
}

impl Authenticator {
    pub fn new(certificates: CertificateAuthenticator, tokens: Arc<TokenAuthority>) -> Self {
        Self { certificates, tokens }
    }

    /// The user behind a request, before impersonation. Credentials that do not hold are a 401; no credentials are the
    /// anonymous user, whom authorization then lets see very little.
    ///
    /// A request that came through TLS carries [`PeerCertificates`] and is judged by its credentials alone; only one
    /// that never was on a wire may bring its [`User`] along.
    pub fn authenticate(&self, request: &Parts, now: Timestamp) -> Result<User, ApiError> {
        let peer = request.extensions.get::<PeerCertificates>();
        if peer.is_none()
            && let Some(user) = request.extensions.get::<User>()
        {
            return Ok(user.clone());
        }
        let mut refused = false;
        if let Some(peer) = peer {
            match self.certificates.authenticate(peer, now) {
                Ok(Some(user)) => return Ok(user),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "client certificate refused");
                    refused = true;
                }
            }
        }
        if let Some(token) = bearer_token(request) {
            match self.tokens.authenticate(token, &[], now) {
                Ok(verified) => return Ok(authenticated(verified.user)),
                Err(error) => {
                    tracing::debug!(%error, "bearer token refused");
                    refused = true;
                }
            }
        }
        if refused { Err(ApiError::unauthorized()) } else { Ok(User::anonymous()) }
    }
}

fn authenticated(mut user: User) -> User {
    if !user.in_group(GROUP_AUTHENTICATED) {
        user.groups.push(GROUP_AUTHENTICATED.to_owned());
    }
    user
}

/// The token of `Authorization: Bearer TOKEN`. Other schemes are not ours: such a request has no credentials.
fn bearer_token(request: &Parts) -> Option<&str> {
    let mut words = request.headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split(' ');
    let scheme = words.next()?;
    let token = words.next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
