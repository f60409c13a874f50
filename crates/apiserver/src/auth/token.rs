//! Service account tokens: signed statements (JWT, ES256) that hold as long as what they are bound to exists.
//!
//! Only ES256 with this cluster's own key is signed and accepted: there is no algorithm to negotiate, hence none to
//! confuse. A token that verifies is then checked against live objects: its service account must still have the uid
//! it was issued for, and so must the pod, secret or node it is bound to.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{EXTRA_CREDENTIAL_ID, Objects, User, service_account_user, text};

/// The issuer and the audience of this API server, as kubeadm sets them.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Clocks of the parties may differ by this much: Kubernetes' own leeway.
const LEEWAY_S: i64 = 60;

/// DER prefix of a P-256 public key (SubjectPublicKeyInfo) before its 65 byte point.
const P256_SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A name and a uid inside a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Reference {
    /// Name and uid of an object.
    pub fn to(object: &Value) -> Self {
        Self { name: text(object, "/metadata/name").to_owned(), uid: text(object, "/metadata/uid").to_owned() }
    }
}

/// Whose token it is, and what it is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bindings {
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    /// From when on the holder should have fetched a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    #[serde(default, deserialize_with = "one_or_many")]
    aud: Vec<String>,
    exp: i64,
    #[serde(default)]
    iat: i64,
    iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bindings,
    #[serde(default)]
    nbf: i64,
    sub: String,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

/// Why a token does not hold. The words are for logs and TokenReviews and name no part of the token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("invalid bearer token")]
    NotOurs,
    #[error("invalid signature, no keys found")]
    UnknownKey,
    #[error("invalid signature")]
    Signature,
    #[error("token audiences {token} is invalid for the target audiences {target}")]
    Audience { token: String, target: String },
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("service account token is issued in the future")]
    Future,
    #[error("serviceaccounts {0:?} not found")]
    NoServiceAccount(String),
    #[error("{what} UID ({now}) does not match {claim} ({claimed})")]
    Uid { what: &'static str, now: String, claim: &'static str, claimed: String },
    #[error("service account {0} has been deleted")]
    Deleted(String),
    #[error("service account token has been invalidated")]
    Invalidated,
}

/// Why a signing key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the service account signing key is not an ECDSA P-256 key in PKCS#8 form")]
    Rejected,
}

/// A token that holds: the user, and the audiences that both sides agree on.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    pub user: User,
    pub audiences: Vec<String>,
}

/// Issues and verifies the tokens of one cluster.
pub struct TokenAuthority {
    key: EcdsaKeyPair,
    key_id: String,
    issuer: String,
    audiences: Vec<String>,
    objects: Arc<dyn Objects>,
    random: SystemRandom,
}

impl fmt::Debug for TokenAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenAuthority")
            .field("key_id", &self.key_id)
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

impl TokenAuthority {
    /// `key` is an ECDSA P-256 key, PKCS#8 in DER form.
    pub fn new(key: &[u8], issuer: &str, objects: Arc<dyn Objects>) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key, &random).map_err(|_| KeyError::Rejected)?;
        // The id of a key is a digest of its public half, so that everybody derives the same.
        let digest = Sha256::new().chain_update(P256_SPKI_PREFIX).chain_update(key.public_key()).finalize();
        let key_id = URL_SAFE_NO_PAD.encode(digest);
        Ok(Self { key, key_id, issuer: issuer.to_owned(), audiences: vec![issuer.to_owned()], objects, random })
    }

    /// What tokens are for if nobody says otherwise: this API server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// A signed token. `id` is its own name in logs and reviews.
    pub fn issue(
        &self,
        bindings: Bindings,
        audiences: &[String],
        lifetime_s: i64,
        id: &str,
        now: Timestamp,
    ) -> Result<String, KeyError> {
        let now = now.as_second();
        let claims = Claims {
            aud: audiences.to_vec(),
            exp: now + lifetime_s,
            iat: now,
            iss: self.issuer.clone(),
            jti: id.to_owned(),
            sub: service_account_user(&bindings.namespace, &bindings.serviceaccount.name),
            kubernetes: bindings,
            nbf: now,
        };
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let body = serde_json::to_vec(&claims).expect("claims must serialize");
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(body));
        let signature = self.key.sign(&self.random, message.as_bytes()).map_err(|_| KeyError::Rejected)?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Checks a token for one of `audiences`, or for this API server if none are given.
    pub fn authenticate(&self, token: &str, audiences: &[String], now: Timestamp) -> Result<Verified, TokenError> {
        let claims = self.verify_signature(token)?;
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let held = if claims.aud.is_empty() { &self.audiences } else { &claims.aud };
        let agreed: Vec<String> = held.iter().filter(|audience| wanted.contains(audience)).cloned().collect();
        if agreed.is_empty() {
            let list = super::rules::quoted_list;
            return Err(TokenError::Audience { token: list(held), target: list(wanted) });
        }
        let now_s = now.as_second();
        if now_s > claims.exp.saturating_add(LEEWAY_S) {
            return Err(TokenError::Expired);
        }
        if now_s < claims.nbf.saturating_sub(LEEWAY_S) {
            return Err(TokenError::NotYet);
        }
        if now_s < claims.iat.saturating_sub(LEEWAY_S) {
            return Err(TokenError::Future);
        }
        self.check_bindings(&claims.kubernetes, now)?;
        Ok(Verified { user: user_of(&claims), audiences: agreed })
    }

    /// The claims, if this cluster signed them.
    fn verify_signature(&self, token: &str) -> Result<Claims, TokenError> {
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::NotOurs)?;
        let (header, body) = message.split_once('.').ok_or(TokenError::NotOurs)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::NotOurs);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::NotOurs)?;
        if header.alg != "ES256" {
            return Err(TokenError::NotOurs);
        }
        if !header.kid.is_empty() && header.kid != self.key_id {
            return Err(TokenError::UnknownKey);
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key())
            .verify(message.as_bytes(), &decode(signature)?)
            .map_err(|_| TokenError::Signature)?;
        let claims: Claims = serde_json::from_slice(&decode(body)?).map_err(|_| TokenError::NotOurs)?;
        if claims.iss == self.issuer { Ok(claims) } else { Err(TokenError::NotOurs) }
    }

    /// What the token speaks of must still be there.
    fn check_bindings(&self, bindings: &Bindings, now: Timestamp) -> Result<(), TokenError> {
        let Bindings { namespace, serviceaccount: account, .. } = bindings;
        let live = self.objects.get("serviceaccounts", namespace, &account.name);
        let live = live.ok_or_else(|| TokenError::NoServiceAccount(account.name.clone()))?;
        same_uid(&live, account, "service account", "claim")?;
        if deleted_before(&live, now) {
            return Err(TokenError::Deleted(format!("{namespace}/{}", account.name)));
        }
        let check = |resource: &str, namespace: &str, bound: &Reference, what, claim| {
            let live = self.objects.get(resource, namespace, &bound.name).ok_or(TokenError::Invalidated)?;
            same_uid(&live, bound, what, claim)?;
            if deleted_before(&live, now) { Err(TokenError::Invalidated) } else { Ok(()) }
        };
        if let Some(secret) = &bindings.secret {
            check("secrets", namespace, secret, "secret", "service account secret ref claim")?;
        }
        if let Some(pod) = &bindings.pod {
            check("pods", namespace, pod, "pod", "service account pod ref claim")?;
        } else if let Some(node) = &bindings.node {
            // With a pod, the node only says where the pod was; the pod is what counts.
            check("nodes", "", node, "node", "service account node ref claim")?;
        }
        Ok(())
    }

    /// The document at `/.well-known/openid-configuration`.
    pub fn openid_configuration(&self, jwks_uri: &str) -> Value {
        json!({
            "issuer": self.issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// The document at `/openid/v1/jwks`: the public key that others verify tokens with.
    pub fn jwks(&self) -> Value {
        // An uncompressed point: 0x04, then both coordinates.
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }]})
    }
}

fn same_uid(live: &Value, bound: &Reference, what: &'static str, claim: &'static str) -> Result<(), TokenError> {
    let now = text(live, "/metadata/uid");
    if now == bound.uid {
        return Ok(());
    }
    Err(TokenError::Uid { what, now: now.to_owned(), claim, claimed: bound.uid.clone() })
}

/// Was the object's deletion due before now, with the leeway that clocks get?
fn deleted_before(object: &Value, now: Timestamp) -> bool {
    let deletion = text(object, "/metadata/deletionTimestamp");
    deletion.parse::<Timestamp>().is_ok_and(|at| at.as_second() < now.as_second() - LEEWAY_S)
}

fn user_of(claims: &Claims) -> User {
    let Bindings { namespace, serviceaccount, pod, node, .. } = &claims.kubernetes;
    let mut user = User::service_account(namespace, &serviceaccount.name, &serviceaccount.uid);
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = pod {
        add("pod-name", &pod.name);
        add("pod-uid", &pod.uid);
    }
    if let Some(node) = node {
        add("node-name", &node.name);
        add("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        user.extra.insert(EXTRA_CREDENTIAL_ID.to_owned(), vec![format!("JTI={}", claims.jti)]);
    }
    user
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::auth::tests::Memory;

    pub(crate) fn key() -> Vec<u8> {
        let random = SystemRandom::new();
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap().as_ref().to_vec()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn object(namespace: &str, name: &str, uid: &str) -> Value {
        json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}})
    }

    fn cluster() -> Arc<Memory> {
        Memory::with([
            ("serviceaccounts", object("ns", "sa", "sa-1")),
            ("pods", object("ns", "web", "pod-1")),
            ("secrets", object("ns", "s", "secret-1")),
            ("nodes", json!({"metadata": {"name": "n1", "uid": "node-1"}})),
        ])
    }

    fn reference(name: &str, uid: &str) -> Reference {
        Reference { name: name.into(), uid: uid.into() }
    }

    fn bindings() -> Bindings {
        Bindings { namespace: "ns".into(), serviceaccount: reference("sa", "sa-1"), ..Bindings::default() }
    }

    fn authority(objects: &Arc<Memory>) -> TokenAuthority {
        TokenAuthority::new(&key(), DEFAULT_ISSUER, objects.clone()).unwrap()
    }

    fn issue(authority: &TokenAuthority, bindings: Bindings) -> String {
        authority.issue(bindings, authority.audiences(), 600, "id-1", at(0)).unwrap()
    }

    #[test]
    fn a_token_names_its_service_account() {
        let authority = authority(&cluster());
        let pod = Some(reference("web", "pod-1"));
        let node = Some(reference("n1", "node-1"));
        let token = issue(&authority, Bindings { node, pod, ..bindings() });
        let verified = authority.authenticate(&token, &[], at(1)).unwrap();
        assert_eq!(verified.user.name, "system:serviceaccount:ns:sa");
        assert_eq!(verified.user.uid, "sa-1");
        assert_eq!(verified.audiences, [DEFAULT_ISSUER]);
        let extra: Vec<_> = verified.user.extra.iter().map(|(k, v)| (k.as_str(), v[0].as_str())).collect();
        assert_eq!(
            extra,
            [
                ("authentication.kubernetes.io/credential-id", "JTI=id-1"),
                ("authentication.kubernetes.io/node-name", "n1"),
                ("authentication.kubernetes.io/node-uid", "node-1"),
                ("authentication.kubernetes.io/pod-name", "web"),
                ("authentication.kubernetes.io/pod-uid", "pod-1"),
            ]
        );
    }

    #[test]
    fn time_is_kept_with_a_minute_of_leeway() {
        let authority = authority(&cluster());
        let token = issue(&authority, bindings());
        for (second, expected) in
            [(-61, Err(TokenError::NotYet)), (-60, Ok(())), (0, Ok(())), (660, Ok(())), (661, Err(TokenError::Expired))]
        {
            assert_eq!(authority.authenticate(&token, &[], at(second)).map(drop), expected, "at {second}");
        }
    }

    #[test]
    fn a_token_that_was_touched_does_not_hold() {
        let authority = authority(&cluster());
        let token = issue(&authority, bindings());
        let parts: Vec<&str> = token.split('.').collect();
        let body = String::from_utf8(URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
        let forged = URL_SAFE_NO_PAD.encode(body.replace("\"sa\"", "\"admin\""));
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let hmac = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
        let other = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"other"}"#);
        let without_id = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
        let cases = [
            (format!("{}.{forged}.{}", parts[0], parts[2]), TokenError::Signature),
            (format!("{}.{}.", parts[0], parts[1]), TokenError::Signature),
            (format!("{none}.{}.", parts[1]), TokenError::NotOurs),
            (format!("{hmac}.{}.{}", parts[1], parts[2]), TokenError::NotOurs),
            (format!("{other}.{}.{}", parts[1], parts[2]), TokenError::UnknownKey),
            (format!("{without_id}.{}.{}", parts[1], parts[2]), TokenError::Signature),
            (String::new(), TokenError::NotOurs),
            ("a.b".into(), TokenError::NotOurs),
            ("....".into(), TokenError::NotOurs),
        ];
        for (token, expected) in cases {
            assert_eq!(authority.authenticate(&token, &[], at(0)).unwrap_err(), expected, "{token}");
        }
        let stranger = super::tests::authority(&cluster());
        assert_eq!(stranger.authenticate(&token, &[], at(0)).unwrap_err(), TokenError::UnknownKey);
    }

    #[test]
    fn audiences_must_meet() {
        let authority = authority(&cluster());
        let vault = vec!["vault".to_owned()];
        let token = authority.issue(bindings(), &vault, 600, "", at(0)).unwrap();
        assert_eq!(authority.authenticate(&token, &vault, at(0)).unwrap().audiences, vault);
        assert_eq!(
            authority.authenticate(&token, &[], at(0)).unwrap_err().to_string(),
            format!("token audiences [\"vault\"] is invalid for the target audiences [{DEFAULT_ISSUER:?}]")
        );
    }

    #[test]
    fn a_token_dies_with_what_it_is_bound_to() {
        type Bind = fn(&mut Bindings);
        let cases: [(&str, &str, &str, Bind, &str); 4] = [
            ("serviceaccounts", "ns", "sa", |_| {}, "serviceaccounts \"sa\" not found"),
            ("pods", "ns", "web", |b| b.pod = Some(reference("web", "pod-1")), "has been invalidated"),
            ("secrets", "ns", "s", |b| b.secret = Some(reference("s", "secret-1")), "has been invalidated"),
            ("nodes", "", "n1", |b| b.node = Some(reference("n1", "node-1")), "has been invalidated"),
        ];
        for (resource, namespace, name, bind, expected) in cases {
            let objects = cluster();
            let authority = authority(&objects);
            let mut bindings = bindings();
            bind(&mut bindings);
            let token = issue(&authority, bindings);
            assert!(authority.authenticate(&token, &[], at(0)).is_ok(), "{resource}");
            let live = objects.get(resource, namespace, name).unwrap();

            let mut doomed = (*live).clone();
            doomed["metadata"]["deletionTimestamp"] = at(0).to_string().into();
            objects.put(resource, doomed);
            assert!(authority.authenticate(&token, &[], at(60)).is_ok(), "{resource} is being deleted");
            assert!(authority.authenticate(&token, &[], at(61)).is_err(), "{resource} should be gone");

            let mut again = (*live).clone();
            again["metadata"]["uid"] = "new".into();
            objects.put(resource, again);
            let error = authority.authenticate(&token, &[], at(0)).unwrap_err().to_string();
            assert!(error.contains("UID (new) does not match"), "{error}");

            objects.delete(resource, namespace, name);
            let error = authority.authenticate(&token, &[], at(0)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_node_of_a_pods_token_may_go() {
        let objects = cluster();
        let authority = authority(&objects);
        let pod = Some(reference("web", "pod-1"));
        let node = Some(reference("n1", "node-1"));
        let token = issue(&authority, Bindings { node, pod, ..bindings() });
        objects.delete("nodes", "", "n1");
        assert!(authority.authenticate(&token, &[], at(0)).is_ok());
    }

    #[test]
    fn debug_output_shows_no_key() {
        let authority = authority(&cluster());
        let shown = format!("{authority:?}");
        assert!(shown.contains(&authority.key_id) && shown.len() < 200, "{shown}");
        assert_eq!(authority.jwks()["keys"][0]["kid"], authority.key_id);
    }

    proptest::proptest! {
        /// Whatever is done to a token, it does not hold and nothing breaks.
        #[test]
        fn no_other_text_is_a_token(position in 0_usize..400, byte in 0x21_u8..0x7f) {
            let authority = authority(&cluster());
            let mut token = issue(&authority, bindings()).into_bytes();
            let position = position % token.len();
            proptest::prop_assume!(token[position] != byte);
            token[position] = byte;
            let token = String::from_utf8(token).unwrap();
            proptest::prop_assert!(authority.authenticate(&token, &[], at(0)).is_err());
        }
    }
}
