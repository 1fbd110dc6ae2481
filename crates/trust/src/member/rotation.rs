//! Replaces the cluster's authority in two steps, with enough time between them for the nodes to renew. Each step
//! changes two files. If a step was interrupted after the first file, the next call completes the step.

use std::time::SystemTime;

use super::{MemberError, sign_and_write_roster};
use crate::authority::Authority;
use crate::trust_directory::TrustDirectory;

/// Begins a rotation of the authority: the new authority issues certificates from now on, and both are trusted. If an
/// interrupted call has left a new authority that is not in the roster, only writes the roster.
///
/// # Errors
/// [`MemberError::RotationInProgress`], [`MemberError::AuthorityKeyMissing`], [`crate::DirectoryError::NoAuthority`],
/// [`crate::AuthorityError`].
pub fn begin_rotation(directory: &TrustDirectory, now: SystemTime) -> Result<(), MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (mut roster, _) = directory.read_roster()?;
    let [issuing] = roster.authorities() else { return Err(MemberError::RotationInProgress) };
    if directory.read_authority()?.certificate() == issuing {
        directory.write_authority(&Authority::create(roster.cluster(), now)?)?;
    }
    // Members trust the previous authority only, so it must sign the new roster too.
    let old = directory.read_old_authority()?;
    if old.is_none_or(|old| old.certificate() != issuing) {
        return Err(MemberError::AuthorityKeyMissing);
    }
    roster.begin_rotation(&directory.read_authority()?);
    sign_and_write_roster(directory, &roster)
}

/// Ends a rotation of the authority: from now on, members accept only certificates of the new authority. If an
/// interrupted call has left the old key, although the roster contains the new authority alone, only removes the key.
///
/// # Errors
/// [`MemberError::NoRotation`], [`crate::DirectoryError::NoAuthority`], [`crate::AuthorityError`].
pub fn end_rotation(directory: &TrustDirectory) -> Result<(), MemberError> {
    directory.read_authority()?;
    let _lock = directory.lock()?;
    let (mut roster, _) = directory.read_roster()?;
    if let [only] = roster.authorities() {
        // After an interrupted `begin_rotation` there are two keys as well, but the roster has the old authority.
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
