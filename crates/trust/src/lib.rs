//! Identities of a cluster's members, and streams to authenticated peers.
//!
//! One member holds the *authority*, a key that signs certificates and the *roster* of trusted authorities and revocations.
//! A machine becomes a node with a *join token*. Connections between members begin with a TLS 1.3 handshake in which both
//! sides show certificates. `farfork-fabric` and `farfork-node` connect, listen and time out. `farfork-node` decides what a
//! role may request.
#![forbid(unsafe_code)]

//  - member                operations of operators and joining machines
//  - trust_directory       files of a member: identity, roster, authority
//  - authority, key, certificate, roster, join_token, join_throttle    contents of the files; time is an argument
//  - private_file          files that no other user can read or change
//  - credentials           the current files ──▶ tls (configuration of TLS) ──▶ verify (which peers are let in)
//  - authenticated_stream  a stream over any pipe of bytes ──▶ record_buffer (received bytes)
//
// A certificate names cluster, role and name ([`Identity`]).
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
pub use join_token::{
    JoinProof, JoinToken, TOKEN_VALID, TOKEN_VALID_MAX, TokenError, TokenRefusal, TokenStore, TokenValidity,
};
pub use key::{KeyError, UncertifiedKey};
pub use private_file::read_private;
pub use roster::{ROSTER_BYTES_MAX, Revocation, Roster, RosterError};
pub use tls::joining_client_config;
pub use trust_directory::{DEFAULT_TRUST_DIR, DirectoryError, DirectoryLock, TrustDirectory};
pub use verify::{AuthenticatedPeer, PeerError};
