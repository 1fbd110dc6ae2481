//! Compares a child with its parent, on the child's node, which must see both processes. The request identifies the
//! parent by boot id, pid namespace and start time. So a node on another machine or in another pid namespace does not
//! compare a different process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::sync::Arc;
use std::thread;

use farfork_api::client::request_with_timeout;
use farfork_api::failure::Failure;
use farfork_api::limits::COMPARE_TIMEOUT;
use farfork_api::v1;
use farfork_differ::{ComparisonReport, Difference, ObserveError};
use farfork_fork::kernel::boot_id;
use farfork_sys::process::ProcStat;
use tokio::sync::oneshot;
use tonic::Code;

use super::route::{RequestTarget, child_target, forwarded_failure, parse_child_id};
use crate::children::Child;
use crate::node::Node;

/// Maximum number of reported differences. Further differences are usually of the same kinds.
const DIFFERENCES_MAX: usize = 1000;

/// Maximum size of a reported value, in bytes. Longer values are truncated.
const VALUE_BYTES_MAX: usize = 2048;

/// Compares a child with a process of this machine.
pub(super) async fn compare(node: &Arc<Node>, mut request: v1::CompareRequest) -> Result<v1::CompareResponse, Failure> {
    let id = parse_child_id(&request.child)?;
    if request.place.is_none() {
        request.place = Some(process_place(request.pid)?);
    }
    match child_target(node, &id)? {
        RequestTarget::Local => compare_local(node, &node.children.get(&id)?, &request).await,
        RequestTarget::Remote(mut owner) => {
            let answer = owner.compare(request_with_timeout(COMPARE_TIMEOUT, request)).await;
            answer.map(tonic::Response::into_inner).map_err(forwarded_failure(format!("child {id}")))
        }
    }
}

async fn compare_local(
    node: &Arc<Node>,
    child: &Arc<Child>,
    request: &v1::CompareRequest,
) -> Result<v1::CompareResponse, Failure> {
    check_same_place(child, request)?;
    // The comparison stops the process: refuse a process that may not be prepared.
    node.lineage_of(request.pid)?;
    if child.is_frozen() {
        let paused = child.failure(Code::FailedPrecondition, "it is paused, so it cannot run injected calls");
        return Err(paused.with_next_step(format!("unpause it first: `farfork unpause {}`", request.child)));
    }
    let (parent, child_pid) = (request.pid.cast_signed(), child.host_pid()?);
    let report = read_both(parent, child_pid).await;
    Ok(to_response(report.map_err(|error| child.failure(Code::FailedPrecondition, error))?))
}

/// Reads both processes in a separate thread. The thread is their tracer: its end releases both, even after a panic.
async fn read_both(parent: i32, child: i32) -> Result<ComparisonReport, ObserveError> {
    let (answer, answered) = oneshot::channel();
    let work = move || {
        let report = farfork_differ::observe(parent)
            .and_then(|parent| Ok(farfork_differ::compare(&parent, &farfork_differ::observe(child)?)));
        // The requester may have disconnected.
        let _ = answer.send(report);
    };
    let read_error = |source: io::Error| ObserveError::Read { path: format!("/proc/{child}"), source };
    thread::Builder::new().name(format!("compare-{child}")).spawn(work).map_err(read_error)?;
    answered
        .await
        .unwrap_or_else(|_| Err(read_error(io::Error::other("the thread that reads it panicked; see the node's log"))))
}

/// Identifies the process that has this pid on this node.
fn process_place(pid: u32) -> Result<v1::ProcessPlace, Failure> {
    let failed = |error: io::Error| {
        Failure::new(Code::NotFound, format!("process {pid}"), error)
            .with_next_step("name a process on this node's machine, by its pid there")
    };
    let start_ticks = ProcStat::read(pid.cast_signed()).map_err(failed)?.start_ticks;
    let pid_namespace = fs::metadata("/proc/self/ns/pid").map_err(failed)?.st_ino();
    Ok(v1::ProcessPlace { boot_id: boot_id().to_owned(), pid_namespace, start_ticks })
}

/// Checks that this node sees the requested process under this pid.
fn check_same_place(child: &Child, request: &v1::CompareRequest) -> Result<(), Failure> {
    if request.place.is_some() && process_place(request.pid).ok() == request.place {
        return Ok(());
    }
    let cause = format!("its node does not see process {}, which is on another machine, or has ended", request.pid);
    let step = "fork a child to the parent's own machine, and compare that one";
    Err(child.failure(Code::FailedPrecondition, cause).with_next_step(step))
}

fn to_response(report: ComparisonReport) -> v1::CompareResponse {
    let mut rows: BTreeMap<&'static str, v1::ToleratedFields> = BTreeMap::new();
    for tolerated in report.tolerated {
        let tolerance = tolerated.tolerance;
        let row = rows.entry(tolerance.field).or_insert_with(|| v1::ToleratedFields {
            pattern: tolerance.field.to_owned(),
            reason: tolerance.reason.to_owned(),
            known_gap: tolerance.policy.is_known_gap(),
            count: 0,
            first: Some(to_field_difference(tolerated.difference)),
        });
        row.count += 1;
    }
    v1::CompareResponse {
        fields: to_u32(report.fields),
        differences_count: to_u32(report.differences.len()),
        differences: report.differences.into_iter().take(DIFFERENCES_MAX).map(to_field_difference).collect(),
        tolerated: rows.into_values().collect(),
    }
}

fn to_field_difference(difference: Difference) -> v1::FieldDifference {
    let Difference { field, parent, child } = difference;
    v1::FieldDifference { field, parent: parent.map(truncate_value), child: child.map(truncate_value) }
}

fn truncate_value(mut value: String) -> String {
    if value.len() > VALUE_BYTES_MAX {
        value.truncate((0..=VALUE_BYTES_MAX).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0));
        value.push('…');
    }
    value
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
