//! Converts the record of a cluster member to and from API messages.

use std::fmt::Display;

use farfork_cluster::membership::{Member, MemberState, MemberView};
use farfork_sys::cpu::{ExtendedState, ProcessorFeatures};
use farfork_wire::NodeName;
use tonic::Code;

use crate::failure::Failure;
use crate::v1;

impl From<Member> for v1::Member {
    fn from(member: Member) -> Self {
        Self {
            name: member.name.to_string(),
            address: member.address.to_string(),
            fabric_address: member.fabric_address.to_string(),
            incarnation: member.incarnation,
            children: member.children,
            not_ready: member.not_ready.unwrap_or_default(),
            processor: member.processor.map(|processor| v1::Processor {
                xcr0: processor.state.xcr0,
                xstate_bytes: processor.state.bytes,
                features: processor.features.to_vec(),
            }),
            clock_unix_ms: 0,
            kept_seeds: None,
            version: member.version,
            pid: member.pid,
        }
    }
}

impl TryFrom<v1::Member> for Member {
    type Error = Failure;

    fn try_from(member: v1::Member) -> Result<Self, Failure> {
        let refuse =
            |cause: &dyn Display| Failure::new(Code::InvalidArgument, format!("node `{}`", member.name), cause);
        Ok(Self {
            name: NodeName::new(&member.name).map_err(|error| refuse(&error))?,
            address: member.address.parse().map_err(|error| refuse(&error))?,
            fabric_address: member.fabric_address.parse().map_err(|error| refuse(&error))?,
            incarnation: member.incarnation,
            children: member.children,
            not_ready: (!member.not_ready.is_empty()).then(|| truncate_reason(member.not_ready)),
            version: member.version.chars().take(VERSION_CHARACTERS_MAX).collect(),
            pid: member.pid,
            processor: member.processor.and_then(parse_processor),
        })
    }
}

/// Longest reason that another node may give for accepting no children, in characters. Longer reasons are cut.
const REASON_CHARACTERS_MAX: usize = 300;

/// Longest version that another node may report, in characters. Longer ones are cut.
const VERSION_CHARACTERS_MAX: usize = 100;

fn truncate_reason(reason: String) -> String {
    reason.chars().take(REASON_CHARACTERS_MAX).collect()
}

/// Parses a node's processor features; `None` if it sent another number of registers than this release expects.
fn parse_processor(processor: v1::Processor) -> Option<ProcessorFeatures> {
    let state = ExtendedState { xcr0: processor.xcr0, bytes: processor.xstate_bytes };
    Some(ProcessorFeatures { state, features: processor.features.try_into().ok()? })
}

impl From<MemberView> for v1::NodeView {
    fn from(view: MemberView) -> Self {
        let state = match view.state {
            MemberState::Alive if view.member.not_ready.is_some() => v1::NodeState::NotReady,
            MemberState::Alive => v1::NodeState::Alive,
            MemberState::Unreachable => v1::NodeState::Unreachable,
        };
        Self {
            name: view.member.name.to_string(),
            address: view.member.address.to_string(),
            fabric_address: view.member.fabric_address.to_string(),
            state: state.into(),
            silent_ms: u64::try_from(view.silence.as_millis()).unwrap_or(u64::MAX),
            is_self: view.is_self,
            not_ready: view.member.not_ready.unwrap_or_default(),
            clock_difference_ms: None,
            version: view.member.version,
            pid: view.member.pid,
        }
    }
}
