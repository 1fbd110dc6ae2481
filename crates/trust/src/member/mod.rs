//! Operations of an operator on a trust directory (create a cluster, issue, revoke, rotate), and of a machine that joins.
//! The larger ones are in `admission`, `installation` and `rotation`.
//!
//! Every operation that changes files, or acts on their contents, holds the directory's lock.

mod admission;
mod installation;
mod rotation;

use std::time::{Duration, SystemTime};

use farfork_wire::NodeName;

use crate::authority::{Authority, AuthorityError, NODE_VALID};
use crate::join_token::{JoinToken, TOKEN_VALID_MAX, TokenRefusal, TokenValidity};
use crate::key::{KeyError, UncertifiedKey};
use crate::roster::{Roster, RosterError};
use crate::trust_directory::{DirectoryError, TrustDirectory};
use crate::{Identity, PeerError, Role};

use installation::install_identity;

pub use admission::{IssuedCertificate, admit_node, renew_certificate};
pub use installation::{install_join, install_renewal};
pub use rotation::{begin_rotation, end_rotation};

/// Default lifetime of a client's certificate.
pub const CLIENT_VALID: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why an operation on a trust directory failed.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// A file of the directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The authority cannot issue or sign.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The roster is invalid.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// A key cannot be created.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The system provides no random numbers.
    #[error("the system provides no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The join token is refused.
    #[error("{0}; create a new one with `farfork cluster token` on the machine that has the authority")]
    Token(#[from] TokenRefusal),
    /// The requested lifetime of a join token is too long.
    #[error("a join token is valid for at most {} days; choose a shorter time", TOKEN_VALID_MAX.as_secs() / 86_400)]
    TokenValidity,
    /// The certificate request is longer than [`crate::REQUEST_BYTES_MAX`].
    #[error("the request for a certificate is too long")]
    TooLong,
    /// The received certificate is not valid for this member.
    #[error("the certificate that the cluster sent is not valid: {0}")]
    InvalidCertificate(#[from] PeerError),
    /// Another node has the name, or is joining with it.
    #[error("the cluster already has a live or joining node with this name")]
    NameTaken,
    /// A revoked member requested a new certificate.
    #[error("{subject} was revoked; to readmit it, {}", subject.role.readmission_step())]
    Revoked {
        /// The revoked member.
        subject: Identity,
    },
    /// A rotation is in progress.
    #[error("a rotation of the authority is under way; end it first with `farfork cluster rotate --finish`")]
    RotationInProgress,
    /// No rotation is in progress.
    #[error("no rotation of the authority is under way; begin one with `farfork cluster rotate --authority`")]
    NoRotation,
    /// The key of the authority in the roster is not in this directory.
    #[error("the trust directory lacks the key of the authority in the roster; restore it from a backup")]
    AuthorityKeyMissing,
}

/// Creates a cluster: its authority, its roster, and the identity of its first node. No file is overwritten.
///
/// # Errors
/// [`DirectoryError::AlreadyExists`], and errors of each step.
pub fn create_cluster(
    directory: &TrustDirectory,
    cluster: &NodeName,
    node: &NodeName,
    now: SystemTime,
) -> Result<(), MemberError> {
    directory.create()?;
    let _lock = directory.lock()?;
    for path in [directory.identity_path(), directory.roster_path()] {
        if path.exists() {
            return Err(DirectoryError::AlreadyExists { path }.into());
        }
    }
    let authority = Authority::create(cluster, now)?;
    directory.write_authority(&authority)?;
    directory.write_roster(&Roster::new(cluster, &authority).sign(&[&authority])?)?;
    let key = UncertifiedKey::generate()?;
    let certificate =
        authority.issue(&key.certificate_request()?, &Identity::for_node(cluster, node), now, NODE_VALID)?;
    // The identity is last: if it exists, so do all other files.
    Ok(directory.write_identity(&key.to_identity_pem(&certificate))?)
}

/// Creates a join token with this lifetime, for any number of machines.
///
/// # Errors
/// [`MemberError::TokenValidity`], [`DirectoryError::NoAuthority`]; errors of the files.
pub fn create_join_token(
    directory: &TrustDirectory,
    now: SystemTime,
    lifetime: Duration,
) -> Result<JoinToken, MemberError> {
    create_token(directory, now, TokenValidity { lifetime, is_one_time: false })
}

/// Creates a join token with this lifetime, for one machine.
///
/// # Errors
/// As [`create_join_token`].
pub fn create_one_time_token(
    directory: &TrustDirectory,
    now: SystemTime,
    lifetime: Duration,
) -> Result<JoinToken, MemberError> {
    create_token(directory, now, TokenValidity { lifetime, is_one_time: true })
}

fn create_token(
    directory: &TrustDirectory,
    now: SystemTime,
    validity: TokenValidity,
) -> Result<JoinToken, MemberError> {
    if validity.lifetime > TOKEN_VALID_MAX {
        return Err(MemberError::TokenValidity);
    }
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let authority = issuing_authority(directory, &directory.read_roster()?.0)?;
    let mut tokens = directory.read_tokens()?;
    let token = JoinToken::generate(authority.fingerprint())?;
    tokens.add(&token, now, validity);
    directory.write_tokens(&tokens)?;
    Ok(token)
}

/// Issues a certificate for the key of a request. The caller has checked that the requester may have it.
///
/// # Errors
/// [`DirectoryError::NoAuthority`], [`AuthorityError`].
pub fn issue_certificate(
    directory: &TrustDirectory,
    request: &[u8],
    role: Role,
    name: &NodeName,
    now: SystemTime,
    valid: Duration,
) -> Result<Vec<u8>, MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (roster, _) = directory.read_roster()?;
    let authority = issuing_authority(directory, &roster)?;
    let subject = Identity { cluster: roster.cluster().clone(), role, name: name.clone() };
    Ok(authority.issue(request, &subject, now, valid)?)
}

/// Creates a trust directory for a client, with a new key, to be copied to the client's machine.
///
/// # Errors
/// [`DirectoryError::AlreadyExists`], and errors of [`issue_certificate`].
pub fn issue_client_directory(
    directory: &TrustDirectory,
    into: &TrustDirectory,
    role: Role,
    name: &NodeName,
    now: SystemTime,
    valid: Duration,
) -> Result<(), MemberError> {
    let key = UncertifiedKey::generate()?;
    let certificate = issue_certificate(directory, &key.certificate_request()?, role, name, now, valid)?;
    let (_, roster) = directory.read_roster()?;
    install_identity(into, &key, &certificate, &roster)
}

/// Revokes all certificates that were issued to a member until now. Returns the number of the new roster.
///
/// Also invalidates all join tokens, because the revoked member may have seen one. This happens first, so that a crash
/// leaves no valid token. The clock is read under the lock, so that all earlier certificates have earlier times of issue.
///
/// # Errors
/// [`DirectoryError::NoAuthority`], [`RosterError::Full`], [`AuthorityError`].
pub fn revoke_identity(
    directory: &TrustDirectory,
    role: Role,
    name: &NodeName,
    clock: impl FnOnce() -> SystemTime,
) -> Result<u64, MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (mut roster, _) = directory.read_roster()?;
    let subject = Identity { cluster: roster.cluster().clone(), role, name: name.clone() };
    roster.revoke(&subject, clock())?;
    let mut tokens = directory.read_tokens()?;
    tokens.clear();
    directory.write_tokens(&tokens)?;
    sign_and_write_roster(directory, &roster)?;
    Ok(roster.counter())
}

/// Signs a roster with every authority in the directory, and writes it. The caller holds the lock.
fn sign_and_write_roster(directory: &TrustDirectory, roster: &Roster) -> Result<(), MemberError> {
    let authority = directory.read_authority()?;
    let old = directory.read_old_authority()?;
    let authorities: Vec<&Authority> = std::iter::once(&authority).chain(&old).collect();
    Ok(directory.write_roster(&roster.sign(&authorities)?)?)
}

/// The authority whose certificates members accept: the first one of the roster. After an interrupted rotation, the file may
/// contain a newer authority that no member knows yet.
fn issuing_authority(directory: &TrustDirectory, roster: &Roster) -> Result<Authority, MemberError> {
    let is_issuing =
        |authority: &Authority| roster.authorities().first().is_some_and(|der| der == authority.certificate());
    let held = directory.read_authority()?;
    if is_issuing(&held) {
        return Ok(held);
    }
    directory.read_old_authority()?.filter(is_issuing).ok_or(MemberError::AuthorityKeyMissing)
}
