//! Decodes requests and answers of the control port as the daemon does, for the fuzz targets (`fuzz/`).
//!
//! Covers the protobuf messages and the checks made before anything is done. HTTP/2 below them is hyper's.

use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_cluster::membership::Member;
use prost::Message as _;
use tonic::{Code, Status};

use crate::engine::{SeedAccess, StartOptions};
use crate::phases;

/// The members in a heartbeat's answer; a heartbeat itself is an answer with one. `None` where it would be refused.
pub fn decode_members(bytes: &[u8]) -> Option<Vec<Member>> {
    let v1::Members { members, .. } = v1::Members::decode(bytes).ok()?;
    members.into_iter().map(|member| Member::try_from(member).ok()).collect()
}

/// The same members as a node would tell them.
pub fn encode_members(members: Vec<Member>) -> Vec<u8> {
    let members = members.into_iter().map(v1::Member::from).collect();
    v1::Members { members, ..v1::Members::default() }.encode_to_vec()
}

/// Whether children would be started for this request: what it asks for is sensible, whatever seed it names.
pub fn is_valid_start(bytes: &[u8]) -> bool {
    let Ok(v1::StartChildrenRequest { seed: Some(seed), options, .. }) = v1::StartChildrenRequest::decode(bytes) else {
        return false;
    };
    SeedAccess::try_from(seed).is_ok() && StartOptions::try_from(options.unwrap_or_default()).is_ok()
}

/// Reads another node's outcome of a child, and puts its phases behind `wait`; gives how many those are.
pub fn decode_outcome(bytes: &[u8], wait: Duration) -> Option<usize> {
    let mut outcome = v1::ForkOutcome::decode(bytes).ok()?;
    phases::shift_phases(&mut outcome.phases, wait);
    Some(outcome.phases.len())
}

/// What a user is told of a refusal with these details, and again after it was passed on by a node in between.
pub fn decode_failure(details: &[u8]) -> (Failure, Failure) {
    let status = Status::with_details(Code::Internal, "refused", details.to_vec().into());
    let decoded = Failure::from_status("node", &status);
    let passed_on = Failure::from_status("node", &Status::from(decoded.clone()));
    (decoded, passed_on)
}
