//! `ChildOutcome`: the outcome of one requested child of a fork. It is the started child or a failure.

use std::io::{IsTerminal as _, stderr};

use farfork_api::client::Client;
use farfork_api::failure::Failure;
use farfork_api::v1::fork_outcome::Result as Answer;
use farfork_api::v1::{Child, ForkOutcome, ForkRequest, Phase};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tonic::{Code, Streaming};

use crate::output;

/// Number of children from which a progress bar is shown. With fewer, the fork ends before a user could read the bar.
const PROGRESS_CHILDREN_MIN: u32 = 16;

/// A started child, or the reason why it was not started.
pub(super) enum ChildOutcome {
    Started(Box<Child>),
    Failed { node: String, failure: Failure },
}

/// The phases of a fork; empty if they were not requested.
#[derive(Default)]
pub(super) struct ForkPhases {
    /// Phases of the request on the node that received it.
    pub(super) request: Vec<Phase>,
    /// Phases of each child on its node, in the order of the children.
    pub(super) children: Vec<Vec<Phase>>,
}

/// The result of a fork request.
pub(super) struct ForkedChildren {
    /// One outcome per requested child, in order.
    pub(super) outcomes: Vec<ChildOutcome>,
    pub(super) phases: ForkPhases,
    /// The response stream. When it is dropped, the node ends the children of a fork without --detach.
    pub(super) lifetime: Streaming<ForkOutcome>,
}

/// An outcome in JSON output.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum OutcomeView<'a> {
    Started { child: &'a str, node: &'a str, pid: u32, resume_us: u64 },
    Failed { node: &'a str, error: String },
}

impl ChildOutcome {
    pub(super) fn child_id(&self) -> Option<String> {
        match self {
            ChildOutcome::Started(child) => Some(child.id.clone()),
            ChildOutcome::Failed { .. } => None,
        }
    }

    /// The seed's id, if the child was started. A request may have the seed's name instead of the id.
    fn seed(&self) -> Option<&str> {
        match self {
            ChildOutcome::Started(child) => Some(&child.seed),
            ChildOutcome::Failed { .. } => None,
        }
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        match self {
            ChildOutcome::Started(_) => None,
            ChildOutcome::Failed { failure, .. } => Some(failure),
        }
    }

    pub(super) fn to_view(&self) -> OutcomeView<'_> {
        match self {
            ChildOutcome::Started(child) => {
                let Child { id, node, pid, resume_us, .. } = &**child;
                OutcomeView::Started { child: id, node, pid: *pid, resume_us: *resume_us }
            }
            ChildOutcome::Failed { node, failure } => OutcomeView::Failed { node, error: failure.to_string() },
        }
    }
}

/// Sends a fork request, and collects the outcomes in the order of the children.
pub(super) async fn fork_and_collect(client: &mut Client, request: ForkRequest) -> Result<ForkedChildren, Failure> {
    let (count, is_attended) = (request.count, request.attended);
    let object = format!("seed {}", request.seed);
    let failed = |status| Failure::from_status(&object, &status);
    let mut answers = client.fork(request).await.map_err(failed)?.into_inner();
    let progress = progress_bar(count);
    let mut outcomes: Vec<Option<ChildOutcome>> = (0..count).map(|_| None).collect();
    let mut fork_phases = ForkPhases { request: Vec::new(), children: vec![Vec::new(); count as usize] };
    while let Some(ForkOutcome { index, node, result, phases }) = answers.message().await.map_err(failed)? {
        let outcome = match result {
            Some(Answer::Child(child)) => ChildOutcome::Started(Box::new(child)),
            Some(Answer::Error(error)) => ChildOutcome::Failed { node, failure: error.into() },
            None => {
                fork_phases.request = phases;
                // For a fork without --detach, the node keeps the stream open, but sends no further message.
                if is_attended {
                    break;
                }
                continue;
            }
        };
        progress.inc(1);
        if let Some(slot) = outcomes.get_mut(index as usize) {
            *slot = Some(outcome);
            fork_phases.children[index as usize] = phases;
        }
    }
    progress.finish_and_clear();
    let silent = || Failure::new(Code::Internal, &object, "the node reported fewer children than requested");
    let outcomes = outcomes.into_iter().map(|outcome| outcome.ok_or_else(silent)).collect::<Result<_, _>>()?;
    Ok(ForkedChildren { outcomes, phases: fork_phases, lifetime: answers })
}

/// Returns the outcomes as a JSON document.
pub(super) fn outcomes_json(seed: &str, outcomes: &[ChildOutcome]) -> serde_json::Value {
    let children: Vec<OutcomeView<'_>> = outcomes.iter().map(ChildOutcome::to_view).collect();
    let id = outcomes.iter().find_map(ChildOutcome::seed).unwrap_or(seed);
    serde_json::json!({ "seed": id, "children": children })
}

/// Prints the id of each started child on its own line, and the failures on standard error.
pub(super) fn print_outcomes(outcomes: &[ChildOutcome]) {
    for outcome in outcomes {
        match outcome {
            ChildOutcome::Started(child) => output::print_line(&child.id),
            ChildOutcome::Failed { failure, .. } => output::print_failure(failure),
        }
    }
}

fn progress_bar(count: u32) -> ProgressBar {
    if count < PROGRESS_CHILDREN_MIN || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{pos}/{len} children {wide_bar} {elapsed}");
    ProgressBar::new(count.into()).with_style(style.expect("a valid template"))
}
