//! Replaces the cluster's authority, in two steps with enough time between them for the nodes to renew. Each step
//! changes two files; a step that was interrupted between them is resumed there.

use std::time::SystemTime;

use super::{MemberError, sign_and_write_roster};
use crate::authority::Authority;
use crate::trust_directory::TrustDirectory;

/// Begins a rotation of the authority: a new one issues from now on, both are trusted. Where that was begun and cut
/// short, the new authority is there and the roster does not name it: then only the roster is missing.
///
/// # Errors
/// [`MemberError::RotationInProgress`], [`MemberError::AuthorityKeyMissing`], [`crate::DirectoryError::NoAuthority`], [`crate::AuthorityError`].
pub fn begin_rotation(directory: &TrustDirectory, now: SystemTime) -> Result<(), MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (mut roster, _) = directory.read_roster()?;
    let [issuing] = roster.authorities() else { return Err(MemberError::RotationInProgress) };
    if directory.read_authority()?.certificate() == issuing {
        directory.write_authority(&Authority::create(roster.cluster(), now)?)?;
    }
    // Members know the one before, and go by its signature.
    let old = directory.read_old_authority()?;
    if old.is_none_or(|old| old.certificate() != issuing) {
        return Err(MemberError::AuthorityKeyMissing);
    }
    roster.begin_rotation(&directory.read_authority()?);
    sign_and_write_roster(directory, &roster)
}

/// Ends a rotation of the authority: whoever has no certificate of the new one is a stranger from now on. Where that was
/// cut short, the roster names the new authority alone and the old one's key is still there: then only that has to go.
///
/// # Errors
/// [`MemberError::NoRotation`], [`crate::DirectoryError::NoAuthority`], [`crate::AuthorityError`].
pub fn end_rotation(directory: &TrustDirectory) -> Result<(), MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (mut roster, _) = directory.read_roster()?;
    if let [only] = roster.authorities() {
        // One that was begun and cut short looks much the same, and there the old one issues.
        let is_left = directory.read_authority()?.certificate() == only && directory.read_old_authority()?.is_some();
        if !is_left {
            return Err(MemberError::NoRotation);
        }
    } else {
        roster.end_rotation();
        sign_and_write_roster(directory, &roster)?;
    }
    Ok(directory.remove_old_authority()?)
}
