//! Who may speak on the data port: both sides prove that they hold the volume's key.
//!
//! ```text
//!   engine                                   replica
//!     │  hello (versions, volume, nonce) + member ─►│
//!     │◄─ hello (versions, volume echoed, nonce)    │   nothing of its own is told yet
//!     │  proof of the engine ──────────────────────►│   wrong: the connection ends, without a word
//!     │◄─ welcome (name, size, facts) + proof       │   wrong: the engine ends it
//! ```
//!
//! A proof is HMAC-SHA256, under the volume's key, of a label for the side that speaks and of every byte said so
//! far. It binds both nonces, so that nothing can be replayed; the volume and the member, so that a connection
//! never ends up at another replica than the one it was meant for; and the versions, so that nobody can talk the
//! two down. Epochs are not part of it: fencing is the protocol's, above.
//!
//! A stranger gets the echo of its own hello and a nonce, has [`HANDSHAKE_MS`] and a few hundred bytes.

mod key;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use ring::hmac;
use tether_replication::ids::{MAX_MEMBER_NAME_BYTES, MemberId, VolumeId};
use tether_replication::wire::{HELLO_BYTES, Hello, WireError};

pub use key::{Key, KeyError, KeySource};

/// How long a handshake may take. It is three messages; a second would do, and a paused peer gets some grace.
pub const HANDSHAKE_MS: u64 = 3000;

const PROOF_BYTES: usize = 32;
const ENGINE_LABEL: &[u8] = b"tether data port 1: engine";
const REPLICA_LABEL: &[u8] = b"tether data port 1: replica";

/// What a replica says of itself to an engine that proved itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub member: MemberId,
    /// Size of its volume in bytes.
    pub size: u64,
    /// Nobody ever wrote to it: it is equal to every other fresh replica.
    pub fresh: bool,
}

const WELCOME_FIXED_BYTES: usize = 8 + 1 + 1;

/// Why a peer was not believed.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("the peer does not hold the key of this volume")]
    Proof,
    #[error("the peer looks for replica {asked:?}, this is {ours:?}")]
    Member { asked: String, ours: String },
    #[error("the peer is replica {found:?}, not {wanted:?}")]
    OtherMember { wanted: String, found: String },
    #[error("the replica belongs to another volume")]
    Volume,
    #[error("the peer's name is malformed")]
    Name,
}

/// Every byte said so far.
#[derive(Clone, Debug, Default)]
struct Transcript(Vec<u8>);

impl Transcript {
    fn proof(&self, key: &Key, label: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(key.hmac());
        context.update(label);
        context.update(&self.0);
        context.sign()
    }

    fn verify(&self, key: &Key, label: &[u8], proof: &[u8]) -> Result<(), AuthError> {
        let mut message = Vec::with_capacity(label.len() + self.0.len());
        message.extend_from_slice(label);
        message.extend_from_slice(&self.0);
        // Compares in constant time.
        hmac::verify(key.hmac(), &message, proof).map_err(|_| AuthError::Proof)
    }

    fn say(&mut self, bytes: &[u8], out: &mut BytesMut) {
        self.0.extend_from_slice(bytes);
        out.put_slice(bytes);
    }

    /// Takes exactly `len` bytes off `input`, if they are there.
    fn hear(&mut self, len: usize, input: &mut BytesMut) -> Option<Bytes> {
        if input.len() < len {
            return None;
        }
        let bytes = input.split_to(len).freeze();
        self.0.extend_from_slice(&bytes);
        Some(bytes)
    }
}

/// The engine's side.
#[derive(Debug)]
pub struct Dialer {
    key: Key,
    hello: Hello,
    wanted: Option<MemberId>,
    transcript: Transcript,
    greeted: bool,
}

impl Dialer {
    /// Begins: the first bytes to send. `wanted` is the replica that must answer; None takes any.
    pub fn new(key: Key, volume: VolumeId, wanted: Option<MemberId>, nonce: [u8; 32], out: &mut BytesMut) -> Self {
        let hello = Hello::new(volume, nonce);
        let mut transcript = Transcript::default();
        transcript.say(&hello.encode(), out);
        let name = wanted.as_ref().map_or("", MemberId::as_str);
        let mut asked = vec![name.len() as u8];
        asked.extend_from_slice(name.as_bytes());
        transcript.say(&asked, out);
        Self { key, hello, wanted, transcript, greeted: false }
    }

    /// Takes what came; the welcome when the replica is proved.
    pub fn advance(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Option<Welcome>, AuthError> {
        if !self.greeted {
            let Some(bytes) = self.transcript.hear(HELLO_BYTES, input) else { return Ok(None) };
            let theirs = Hello::decode(bytes.first_chunk().expect("heard as many bytes"))?;
            self.hello.agree(&theirs)?;
            let proof = self.transcript.proof(&self.key, ENGINE_LABEL);
            self.transcript.say(proof.as_ref(), out);
            self.greeted = true;
        }
        let Some(name) = input.get(WELCOME_FIXED_BYTES - 1) else { return Ok(None) };
        let len = WELCOME_FIXED_BYTES + usize::from(*name);
        if input.len() < len + PROOF_BYTES {
            return Ok(None);
        }
        let mut welcome = self.transcript.hear(len, input).expect("the length was checked");
        self.transcript.verify(&self.key, REPLICA_LABEL, &input.split_to(PROOF_BYTES))?;
        let (size, fresh) = (welcome.get_u64_le(), welcome.get_u8() == 1);
        welcome.advance(1);
        let member = std::str::from_utf8(&welcome).ok().and_then(MemberId::new).ok_or(AuthError::Name)?;
        match &self.wanted {
            Some(wanted) if *wanted != member => {
                Err(AuthError::OtherMember { wanted: wanted.to_string(), found: member.to_string() })
            }
            _ => Ok(Some(Welcome { member, size, fresh })),
        }
    }
}

/// The replica's side.
#[derive(Debug)]
pub struct Listener {
    key: Key,
    nonce: [u8; 32],
    transcript: Transcript,
    heard: Option<(VolumeId, String)>,
}

/// An engine that proved itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    pub volume: VolumeId,
    /// The replica it looks for; None if it takes any.
    pub wanted: Option<String>,
}

impl Listener {
    pub fn new(key: Key, nonce: [u8; 32]) -> Self {
        Self { key, nonce, transcript: Transcript::default(), heard: None }
    }

    /// Takes what came; who it is when the engine is proved. Then [`Listener::welcome`] ends the handshake.
    pub fn advance(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Option<Proved>, AuthError> {
        if self.heard.is_none() {
            let Some(len) = input.get(HELLO_BYTES) else { return Ok(None) };
            let len = usize::from(*len);
            if len > MAX_MEMBER_NAME_BYTES {
                return Err(AuthError::Name);
            }
            let Some(bytes) = self.transcript.hear(HELLO_BYTES + 1 + len, input) else { return Ok(None) };
            let theirs = Hello::decode(bytes.first_chunk().expect("heard as many bytes"))?;
            let wanted = std::str::from_utf8(&bytes[HELLO_BYTES + 1..]).map_err(|_| AuthError::Name)?;
            // The volume is echoed: which one this replica belongs to is nobody's business yet.
            let ours = Hello::new(theirs.volume, self.nonce);
            ours.agree(&theirs)?;
            self.heard = Some((theirs.volume, wanted.to_owned()));
            self.transcript.say(&ours.encode(), out);
        }
        if input.len() < PROOF_BYTES {
            return Ok(None);
        }
        self.transcript.verify(&self.key, ENGINE_LABEL, &input[..PROOF_BYTES])?;
        self.transcript.hear(PROOF_BYTES, input);
        let (volume, wanted) = self.heard.clone().expect("a proof must come after a hello");
        Ok(Some(Proved { volume, wanted: (!wanted.is_empty()).then_some(wanted) }))
    }

    /// Tells a proved engine who this is, and proves it.
    pub fn welcome(&mut self, welcome: &Welcome, out: &mut BytesMut) {
        let name = welcome.member.as_str();
        let mut said = Vec::with_capacity(WELCOME_FIXED_BYTES + name.len());
        said.put_u64_le(welcome.size);
        said.put_u8(u8::from(welcome.fresh));
        said.put_u8(name.len() as u8);
        said.put_slice(name.as_bytes());
        self.transcript.say(&said, out);
        out.put_slice(self.transcript.proof(&self.key, REPLICA_LABEL).as_ref());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VOLUME: VolumeId = VolumeId(7);

    fn key(seed: u8) -> Key {
        Key::from_bytes([seed; 32])
    }

    fn welcome() -> Welcome {
        Welcome { member: MemberId::new("r1").expect("a name"), size: 1 << 30, fresh: true }
    }

    /// Runs both sides; `tamper` sees each message on its way (0: hello, 1: hello back, 2: proof, 3: welcome).
    fn converse(
        engine: Key,
        replica: Key,
        wanted: Option<&str>,
        mut tamper: impl FnMut(usize, &mut BytesMut),
    ) -> Result<Welcome, AuthError> {
        let (mut to_replica, mut to_engine) = (BytesMut::new(), BytesMut::new());
        let mut dialer = Dialer::new(engine, VOLUME, wanted.and_then(MemberId::new), [1; 32], &mut to_replica);
        let mut listener = Listener::new(replica, [2; 32]);
        tamper(0, &mut to_replica);
        assert_eq!(listener.advance(&mut to_replica, &mut to_engine)?, None);
        tamper(1, &mut to_engine);
        assert_eq!(dialer.advance(&mut to_engine, &mut to_replica)?, None);
        tamper(2, &mut to_replica);
        let proved = listener.advance(&mut to_replica, &mut to_engine)?.expect("a whole proof was sent");
        assert_eq!(proved, Proved { volume: VOLUME, wanted: wanted.map(str::to_owned) });
        assert!(to_engine.is_empty(), "nothing is told before the engine is proved");
        listener.welcome(&welcome(), &mut to_engine);
        tamper(3, &mut to_engine);
        Ok(dialer.advance(&mut to_engine, &mut to_replica)?.expect("a whole welcome was sent"))
    }

    #[test]
    fn two_holders_of_the_key_believe_each_other() {
        for wanted in [None, Some("r1")] {
            assert_eq!(converse(key(1), key(1), wanted, |_, _| {}).expect("same key"), welcome());
        }
    }

    #[test]
    fn another_key_or_another_replica_is_refused() {
        assert!(matches!(converse(key(1), key(2), None, |_, _| {}), Err(AuthError::Proof)));
        assert!(matches!(converse(key(1), key(1), Some("r2"), |_, _| {}), Err(AuthError::OtherMember { .. })));
    }

    #[test]
    fn a_newer_version_is_refused_in_words() {
        let newer = |message: usize, bytes: &mut BytesMut| {
            if message == 0 {
                bytes[8..12].copy_from_slice(&[9, 0, 9, 0]);
            }
        };
        let error = converse(key(1), key(1), None, newer).expect_err("a version from the future");
        assert!(error.to_string().contains("versions 9 to 9"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bit_can_be_changed_on_the_way(message in 0usize..4, at in 0usize..200, bit in 0u8..8) {
            let mut changed = false;
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                converse(key(1), key(1), Some("r1"), |n, bytes| {
                    // A length that grows makes the other side wait for more; that is no success either.
                    if n == message && at < bytes.len() {
                        bytes[at] ^= 1 << bit;
                        changed = true;
                    }
                })
            }));
            prop_assert_eq!(matches!(result, Ok(Ok(_))), !changed);
        }

        #[test]
        fn garbage_never_gets_anywhere(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut input = BytesMut::from(bytes.as_slice());
            let mut listener = Listener::new(key(1), [2; 32]);
            prop_assert!(!matches!(listener.advance(&mut input, &mut BytesMut::new()), Ok(Some(_))));
        }
    }
}
