//! Operations of an operator on a trust directory (make a cluster, issue, revoke, rotate), and of a machine that joins.
//! `admission`, `installation` and `rotation` have files of their own.
//!
//! Every operation that changes files, or acts on their contents, holds the directory's lock.

mod admission;
mod installation;
mod rotation;

use std::time::{Duration, SystemTime};

use farfork_wire::NodeName;

use crate::authority::{Authority, AuthorityError, NODE_VALID};
use crate::join_token::{JoinToken, TOKEN_VALID_MAX, TokenRefusal};
use crate::key::{KeyError, UncertifiedKey};
use crate::roster::{Roster, RosterError};
use crate::trust_directory::{DirectoryError, TrustDirectory};
use crate::{Identity, PeerError, Role};

use installation::install_identity;

pub use admission::{IssuedCertificate, admit_node, renew_certificate};
pub use installation::{install_join, install_renewal};
pub use rotation::{begin_rotation, end_rotation};

/// How long a client's certificate is good for unless its maker says otherwise.
pub const CLIENT_VALID: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why something could not be done with a trust directory.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Its files.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Its authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// Its roster.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// A new key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// A join token.
    #[error("{0}; print a new one with `farfork cluster token` where the cluster was made")]
    Token(#[from] TokenRefusal),
    /// A join token would be good for too long.
    #[error("a join token is good for at most {} days; choose a shorter time", TOKEN_VALID_MAX.as_secs() / 86_400)]
    TokenValidity,
    /// A request for a certificate is longer than [`crate::REQUEST_BYTES_MAX`].
    #[error("the request for a certificate is too long")]
    TooLong,
    /// What somebody sent as this member's certificate is not that.
    #[error("the certificate that the cluster sent is not put in force: {0}")]
    InvalidCertificate(#[from] PeerError),
    /// Somebody else has the name, or is about to.
    #[error("the cluster has a node of this name, which is alive or has just joined")]
    NameTaken,
    /// It was revoked, and asks as if it were not.
    #[error("{bearer} was revoked; if it is to come back, let it join again with a new token")]
    Revoked {
        /// Who asks.
        bearer: Identity,
    },
    /// A rotation is under way.
    #[error("a rotation of the authority is under way; end it first with `farfork cluster rotate --finish`")]
    RotationInProgress,
    /// None is under way.
    #[error("no rotation of the authority is under way; begin one with `farfork cluster rotate --authority`")]
    NoRotation,
    /// The roster names an authority whose key is not here.
    #[error("the key of the authority that the roster names is not here; restore the trust directory from a backup")]
    AuthorityKeyMissing,
}

/// Makes a cluster: its authority, its roster, and the identity of its first node. Nothing is overwritten.
///
/// # Errors
/// [`DirectoryError::AlreadyExists`], and as making any of these.
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
    // Last: whoever finds an identity finds all of it.
    Ok(directory.write_identity(&key.to_identity_pem(&certificate))?)
}

/// Draws a join token, good for so long.
///
/// # Errors
/// [`MemberError::TokenValidity`], [`DirectoryError::NoAuthority`], and as any file.
pub fn create_join_token(
    directory: &TrustDirectory,
    now: SystemTime,
    valid: Duration,
) -> Result<JoinToken, MemberError> {
    if valid > TOKEN_VALID_MAX {
        return Err(MemberError::TokenValidity);
    }
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let authority = issuing_authority(directory, &directory.read_roster()?.0)?;
    let mut tokens = directory.read_tokens()?;
    let token = JoinToken::generate(authority.fingerprint())?;
    tokens.add(&token, now, valid);
    directory.write_tokens(&tokens)?;
    Ok(token)
}

/// Issues a certificate for somebody's key. That the bearer may have it is for the caller to know.
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
    let bearer = Identity { cluster: roster.cluster().clone(), role, name: name.clone() };
    Ok(authority.issue(request, &bearer, now, valid)?)
}

/// Fills a directory for a client, whose key is made here: to be carried to where it is used.
///
/// # Errors
/// [`DirectoryError::AlreadyExists`], and as [`issue_certificate`].
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

/// Trusts no longer what was issued to somebody until now. Tokens that are out become worthless too, as whoever is thrown
/// out may have seen one: they go first, so that a crash leaves none behind. The clock is asked under the lock, so that
/// whatever was issued before bears an earlier moment.
///
/// # Errors
/// [`DirectoryError::NoAuthority`], [`AuthorityError`].
pub fn revoke_identity(
    directory: &TrustDirectory,
    role: Role,
    name: &NodeName,
    clock: impl FnOnce() -> SystemTime,
) -> Result<u64, MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let mut tokens = directory.read_tokens()?;
    tokens.clear();
    directory.write_tokens(&tokens)?;
    let (mut roster, _) = directory.read_roster()?;
    let bearer = Identity { cluster: roster.cluster().clone(), role, name: name.clone() };
    roster.revoke(&bearer, clock());
    sign_and_write_roster(directory, &roster)?;
    Ok(roster.counter())
}

/// Signs a roster with every authority that is held, and writes it; the lock is held.
fn sign_and_write_roster(directory: &TrustDirectory, roster: &Roster) -> Result<(), MemberError> {
    let authority = directory.read_authority()?;
    let old = directory.read_old_authority()?;
    let authorities: Vec<&Authority> = std::iter::once(&authority).chain(&old).collect();
    Ok(directory.write_roster(&roster.sign(&authorities)?)?)
}

/// The authority whose certificates members accept: the first one of the roster. A rotation that was interrupted has put
/// another one in its place, which nobody knows yet.
fn issuing_authority(directory: &TrustDirectory, roster: &Roster) -> Result<Authority, MemberError> {
    let is_issuing =
        |authority: &Authority| roster.authorities().first().is_some_and(|der| der == authority.certificate());
    let held = directory.read_authority()?;
    if is_issuing(&held) {
        return Ok(held);
    }
    directory.read_old_authority()?.filter(is_issuing).ok_or(MemberError::AuthorityKeyMissing)
}
