//! Join tokens make a machine a node. A token pins the authority, so that the machine can verify the cluster. It
//! contains a secret, so that the cluster can verify the machine.
//!
//! The secret is never sent. The machine sends a [`JoinProof`], which is valid for one name and one certificate
//! request.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use farfork_wire::NodeName;
use ring::hmac;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Fingerprint;
use crate::fingerprint::{DIGEST_BYTES, from_hex, sha256, to_hex};

const TEXT_PREFIX: &str = "farfork-join-1";

/// Size of a token's secret, in bytes: 128 bits cannot be guessed.
const SECRET_BYTES: usize = 16;

/// Prefix of every message that a proof covers, so that a proof is not valid for anything else.
const PROOF_CONTEXT: &[u8] = b"farfork join 1\0";

/// Default lifetime of a token: long enough to walk to the other machine.
pub const TOKEN_VALID: Duration = Duration::from_secs(3600);

/// Longest lifetime of a token. A token is for a machine that is being set up.
pub const TOKEN_VALID_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Maximum number of stored tokens, recently expired ones included. A new one replaces the oldest.
const TOKENS_MAX: usize = 256;

/// The text is not a join token. The error does not contain the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a join token; the form is `{TEXT_PREFIX}.…`, one line, as `farfork cluster token` prints it")]
pub struct TokenError;

/// The secret part of a token. It is never shown, and is zeroed when dropped.
#[derive(Clone)]
struct TokenSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl TokenSecret {
    fn digest(&self) -> [u8; DIGEST_BYTES] {
        sha256(&self.0[..])
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Proves that the sender of a join request has a token: [`JoinToken::create_proof`].
///
/// ```text
///   proof = HMAC-SHA256(key = SHA-256(secret), "farfork join 1\0" │ bytes of the name, u64 LE │ name │ request)
/// ```
///
/// A party that sees or forwards a proof can have the same request signed again, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinProof([u8; DIGEST_BYTES]);

impl JoinProof {
    /// Decodes a received proof.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The message that a proof covers. It contains the length of the name, so that the boundary of name and request cannot
/// move.
fn proof_message(name: &NodeName, request: &[u8]) -> Vec<u8> {
    let name = name.as_str().as_bytes();
    [PROOF_CONTEXT, &(name.len() as u64).to_le_bytes(), name, request].concat()
}

fn proof_key(digest: &[u8; DIGEST_BYTES]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, digest)
}

/// A join token.
///
/// As text, on one line: `farfork-join-1.SECRET.PIN`, a secret of 128 random bits and the authority's fingerprint, both
/// in hexadecimal digits. The cluster keeps a digest of the secret and the token's time of expiry, in `tokens.json`.
#[derive(Debug, Clone)]
pub struct JoinToken {
    /// Authenticates the machine to the cluster.
    secret: TokenSecret,
    /// Authenticates the cluster to the machine: the fingerprint of its authority.
    pub authority: Fingerprint,
}

impl JoinToken {
    /// Generates a token.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn generate(authority: Fingerprint) -> Result<Self, getrandom::Error> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        getrandom::fill(&mut *secret)?;
        Ok(Self { secret: TokenSecret(secret), authority })
    }

    /// The proof that a machine sends with its certificate request. It is valid for this name and request.
    pub fn create_proof(&self, name: &NodeName, request: &[u8]) -> JoinProof {
        let tag = hmac::sign(&proof_key(&self.secret.digest()), &proof_message(name, request));
        JoinProof(tag.as_ref().try_into().expect("an HMAC-SHA256 has as many bytes as a SHA-256"))
    }

    /// The token as text, for the machine that joins.
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(to_hex(&self.secret.0[..]));
        Zeroizing::new(format!("{TEXT_PREFIX}.{}.{}", *secret, self.authority))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parse = || {
            let mut parts = text.trim().split('.');
            let (form, secret, pin) = (parts.next()?, parts.next()?, parts.next()?);
            let secret = TokenSecret(Zeroizing::new(from_hex(secret)?));
            let is_whole = form == TEXT_PREFIX && parts.next().is_none();
            is_whole.then_some(Self { secret, authority: pin.parse().ok()? })
        };
        parse().ok_or(TokenError)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OutstandingToken {
    /// SHA-256 of the secret, which is the key of the proofs.
    digest: [u8; DIGEST_BYTES],
    expires_unix_ms: u64,
    /// Whether the token is removed when a machine joins with it.
    #[serde(default)]
    is_one_time: bool,
}

/// How long, and how often, machines may join with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenValidity {
    /// Its lifetime.
    pub lifetime: Duration,
    /// Whether one machine may join, and no other one.
    pub is_one_time: bool,
}

/// Why a proof is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// No token matches.
    #[error("the join token does not belong to this cluster, was used, was revoked, or expired long ago")]
    Unknown,
    /// The token was valid, and has expired.
    #[error("the join token has expired")]
    Expired,
}

/// The tokens that are valid, or have expired recently.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenStore {
    tokens: Vec<OutstandingToken>,
}

impl TokenStore {
    /// Adds a token. Until it expires, machines may join with it: one machine, or any number.
    pub fn add(&mut self, token: &JoinToken, now: SystemTime, validity: TokenValidity) {
        // Expired tokens are kept for a while, so that the error can say that they expired.
        let forgotten = crate::timestamp::unix_ms(now - TOKEN_VALID);
        self.tokens.retain(|token| token.expires_unix_ms > forgotten);
        if self.tokens.len() >= TOKENS_MAX {
            self.tokens.remove(0);
        }
        let TokenValidity { lifetime, is_one_time } = validity;
        let expires_unix_ms = crate::timestamp::unix_ms(now + lifetime);
        self.tokens.push(OutstandingToken { digest: token.secret.digest(), expires_unix_ms, is_one_time });
    }

    /// Removes the one-time token with which a machine joined. `proof` is valid for `name` and `request`. Returns whether there
    /// was one.
    pub fn remove_used(&mut self, proof: &JoinProof, name: &NodeName, request: &[u8]) -> bool {
        let (proved, count) = (proof_message(name, request), self.tokens.len());
        let is_used = |token: &OutstandingToken| {
            token.is_one_time && hmac::verify(&proof_key(&token.digest), &proved, &proof.0).is_ok()
        };
        self.tokens.retain(|token| !is_used(token));
        self.tokens.len() < count
    }

    /// Checks whether a proof permits joining with this name and request. Compares all tokens, each in constant time,
    /// so that the duration reveals nothing.
    ///
    /// # Errors
    /// [`TokenRefusal`].
    pub fn check_proof(
        &self,
        proof: &JoinProof,
        name: &NodeName,
        request: &[u8],
        now: SystemTime,
    ) -> Result<(), TokenRefusal> {
        let proved = proof_message(name, request);
        let (mut known, mut good) = (false, false);
        for token in &self.tokens {
            let same = hmac::verify(&proof_key(&token.digest), &proved, &proof.0).is_ok();
            known |= same;
            good |= same & (token.expires_unix_ms > crate::timestamp::unix_ms(now));
        }
        match (known, good) {
            (_, true) => Ok(()),
            (true, false) => Err(TokenRefusal::Expired),
            (false, false) => Err(TokenRefusal::Unknown),
        }
    }

    /// Number of tokens that are valid now.
    pub fn valid_count(&self, now: SystemTime) -> usize {
        let now = crate::timestamp::unix_ms(now);
        self.tokens.iter().filter(|token| token.expires_unix_ms > now).count()
    }

    /// Invalidates all tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const ANY_NUMBER: TokenValidity = TokenValidity { lifetime: HOUR, is_one_time: false };

    fn name(text: &str) -> NodeName {
        NodeName::new(text).unwrap()
    }

    fn token() -> JoinToken {
        JoinToken::generate(Fingerprint::of_certificate(b"authority")).unwrap()
    }

    #[test]
    fn a_token_parses_from_its_text_and_is_hidden_in_logs() {
        let token = token();
        let read: JoinToken = format!("{}\n", *token.to_text()).parse().unwrap();
        assert_eq!(read.secret.0, token.secret.0);
        assert_eq!(read.authority, token.authority);
        assert!(!format!("{token:?}").contains(&to_hex(&token.secret.0[..])));
    }

    #[test]
    fn a_token_is_valid_until_it_expires() {
        let (token, now) = (token(), SystemTime::now());
        let mut store = TokenStore::default();
        let admit = |store: &TokenStore, token: &JoinToken, at| {
            store.check_proof(&token.create_proof(&name("n2"), b"request"), &name("n2"), b"request", at)
        };
        assert_eq!(admit(&store, &token, now), Err(TokenRefusal::Unknown));
        store.add(&token, now, ANY_NUMBER);
        assert_eq!(admit(&store, &token, now + HOUR / 2), Ok(()));
        assert_eq!(admit(&store, &token, now + HOUR), Err(TokenRefusal::Expired));
        assert_eq!(admit(&store, &self::token(), now), Err(TokenRefusal::Unknown));
        assert_eq!((store.valid_count(now), store.valid_count(now + HOUR)), (1, 0));
    }

    #[test]
    fn a_one_time_token_is_removed_after_its_use() {
        let (once, often, now) = (token(), token(), SystemTime::now());
        let mut store = TokenStore::default();
        store.add(&once, now, TokenValidity { lifetime: HOUR, is_one_time: true });
        store.add(&often, now, ANY_NUMBER);
        let proof = |token: &JoinToken| token.create_proof(&name("n2"), b"request");
        assert!(!store.remove_used(&proof(&often), &name("n2"), b"request"), "any number of machines may use it");
        assert!(!store.remove_used(&proof(&once), &name("n3"), b"request"), "the proof is for another name");
        assert!(store.remove_used(&proof(&once), &name("n2"), b"request"));
        let refused = store.check_proof(&proof(&once), &name("n2"), b"request", now);
        assert_eq!((refused, store.valid_count(now)), (Err(TokenRefusal::Unknown), 1));
    }

    #[test]
    fn a_proof_is_valid_only_for_its_request() {
        let (token, now) = (token(), SystemTime::now());
        let mut store = TokenStore::default();
        store.add(&self::token(), now, ANY_NUMBER);
        store.add(&token, now, ANY_NUMBER);
        let proof = token.create_proof(&name("n2"), b"request");
        assert_eq!(
            store.check_proof(&proof, &name("n2"), b"request", now),
            Ok(()),
            "a proof stays valid, because its reply may be lost"
        );
        for (other, request) in [("n3", &b"request"[..]), ("n2", b"another"), ("n", b"2request"), ("n2r", b"equest")] {
            assert_eq!(store.check_proof(&proof, &name(other), request, now), Err(TokenRefusal::Unknown), "{other}");
        }
        for at in 0..DIGEST_BYTES {
            let mut changed = proof;
            changed.0[at] ^= 1;
            assert_eq!(store.check_proof(&changed, &name("n2"), b"request", now), Err(TokenRefusal::Unknown));
        }
        assert!(!token.to_text().contains(&to_hex(proof.as_bytes())), "the token's text does not contain the proof");
    }

    #[test]
    fn the_number_of_stored_tokens_is_bounded() {
        let (mut store, now) = (TokenStore::default(), SystemTime::now());
        for _ in 0..2 * TOKENS_MAX {
            store.add(&token(), now, ANY_NUMBER);
        }
        assert_eq!(store.tokens.len(), TOKENS_MAX);
        store.add(&token(), now + 3 * HOUR, ANY_NUMBER);
        assert_eq!(store.tokens.len(), 1);
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".{0,200}") {
            prop_assert!(text.parse::<JoinToken>().is_err());
        }
    }
}
