//! Who is who in a cluster, and streams to peers that have proved it.
//!
//! A cluster has an *authority*, a key that one member holds. It signs a certificate for each member, which names cluster,
//! role and name ([`Identity`]), and the *roster*, which says which authorities are trusted and whose certificates no
//! longer are. A machine becomes a node with a *join token*. Any connection between members begins with a handshake of
//! TLS 1.3 in which both sides show their certificates.
//!
//! ```text
//!  member      what operators and joining machines do ──▶ directory   files of a member: identity, roster, authority
//!  authority, key, certificate, roster, token, throttle    what the files hold; time is an argument
//!  private       files that nobody else can read or change
//!  credentials   the files of now ──▶ tls (how TLS is spoken) ──▶ verify (who may come in)
//!  session       a stream over any pipe of bytes ──▶ records (what was received of it)
//! ```
//!
//! Connecting, listening and timing out are the business of `farfork-fabric` and `farfork-node`; what a role may ask for
//! is `farfork-node`'s.
#![forbid(unsafe_code)]

mod authenticated_stream;
mod authority;
mod certificate;
mod credentials;
mod fingerprint;
mod identity;
mod join_throttle;
mod join_token;
mod key;
pub mod member;
mod private_file;
mod record_buffer;
mod roster;
mod timestamp;
mod tls;
mod trust_directory;
mod verify;

pub use authenticated_stream::AuthenticatedStream;
pub use authority::{Authority, AuthorityError, CLIENT_VALID_MAX, NODE_VALID, REQUEST_BYTES_MAX};
pub use credentials::{Credentials, CredentialsError, Encryption, EncryptionError};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use identity::{Identity, IdentityError, Role, RoleError};
pub use join_throttle::JoinThrottle;
pub use join_token::{JoinProof, JoinToken, TOKEN_VALID, TOKEN_VALID_MAX, TokenError, TokenRefusal, TokenStore};
pub use key::{KeyError, UncertifiedKey};
pub use private_file::read_private;
pub use roster::{ROSTER_BYTES_MAX, Revocation, Roster, RosterError};
pub use tls::joining_client_config;
pub use trust_directory::{DEFAULT_TRUST_DIR, DirectoryError, DirectoryLock, TrustDirectory};
pub use verify::{AuthenticatedPeer, PeerError};
