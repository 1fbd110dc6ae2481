//! Decodes requests and replies of the control port as the daemon does, for the fuzz targets (`fuzz/`).
//!
//! Covers the protobuf messages and their validation, but not HTTP/2, which hyper decodes.

use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_cluster::membership::Member;
use prost::Message as _;
use tonic::{Code, Status};

use crate::engine::{SeedAccess, StartOptions};
use crate::phases;

/// Decodes the members in a reply to a heartbeat. A heartbeat is like a reply with one member. `None` if a node would
/// refuse it.
pub fn decode_members(bytes: &[u8]) -> Option<Vec<Member>> {
    let v1::Members { members, .. } = v1::Members::decode(bytes).ok()?;
    members.into_iter().map(|member| Member::try_from(member).ok()).collect()
}

/// Encodes these members as a node sends them.
pub fn encode_members(members: Vec<Member>) -> Vec<u8> {
    let members = members.into_iter().map(v1::Member::from).collect();
    v1::Members { members, ..v1::Members::default() }.encode_to_vec()
}

/// Whether this request to start children is valid. Its seed need not exist.
pub fn is_valid_start(bytes: &[u8]) -> bool {
    let Ok(v1::StartChildrenRequest { seed: Some(seed), options, .. }) = v1::StartChildrenRequest::decode(bytes) else {
        return false;
    };
    SeedAccess::try_from(seed).is_ok() && StartOptions::try_from(options.unwrap_or_default()).is_ok()
}

/// Decodes another node's outcome of a child, and shifts its phases by `wait`. Returns the number of phases.
pub fn decode_outcome(bytes: &[u8], wait: Duration) -> Option<usize> {
    let mut outcome = v1::ForkOutcome::decode(bytes).ok()?;
    phases::shift_phases(&mut outcome.phases, wait);
    Some(outcome.phases.len())
}

/// Decodes a failure from the details of a status. Returns the failure as received from its node, and as received after
/// another node has passed it on.
pub fn decode_failure(details: &[u8]) -> (Failure, Failure) {
    let status = Status::with_details(Code::Internal, "refused", details.to_vec().into());
    let decoded = Failure::from_status("node", &status);
    let passed_on = Failure::from_status("node", &Status::from(decoded.clone()));
    (decoded, passed_on)
}
