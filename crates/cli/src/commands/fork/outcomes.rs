//! What came of each child of a fork: a child or a failure.

use std::io::{IsTerminal as _, stderr};

use farfork_node::api::v1::fork_outcome::Result as Answer;
use farfork_node::api::v1::{Child, ForkOutcome, ForkRequest, Phase};
use farfork_node::client::Client;
use farfork_node::failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tonic::{Code, Streaming};

use crate::output;

/// Fewer children start faster than a progress bar is read.
const PROGRESS_CHILDREN_MIN: u32 = 16;

/// A child, or why there is none.
pub(super) enum Outcome {
    Started(Box<Child>),
    Failed { node: String, failure: Failure },
}

/// Where the time went; empty where nobody asked.
#[derive(Default)]
pub(super) struct Phases {
    /// Of the request on the node that was asked.
    pub(super) request: Vec<Phase>,
    /// Of each child on its node, in the children's order.
    pub(super) children: Vec<Vec<Phase>>,
}

/// What came of a fork.
pub(super) struct Collected {
    /// In the children's order.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) phases: Phases,
    /// Of a fork whose caller waits for the children: they end when this is dropped.
    pub(super) attendance: Streaming<ForkOutcome>,
}

/// What a script reads of it.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum OutcomeView<'a> {
    Started { child: &'a str, node: &'a str, pid: u32, resume_us: u64 },
    Failed { node: &'a str, error: String },
}

impl Outcome {
    pub(super) fn child_id(&self) -> Option<String> {
        match self {
            Outcome::Started(child) => Some(child.id.clone()),
            Outcome::Failed { .. } => None,
        }
    }

    /// The id of its seed, which the user may have named otherwise.
    fn seed(&self) -> Option<&str> {
        match self {
            Outcome::Started(child) => Some(&child.seed),
            Outcome::Failed { .. } => None,
        }
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        match self {
            Outcome::Started(_) => None,
            Outcome::Failed { failure, .. } => Some(failure),
        }
    }

    pub(super) fn view(&self) -> OutcomeView<'_> {
        match self {
            Outcome::Started(child) => {
                let Child { id, node, pid, resume_us, .. } = &**child;
                OutcomeView::Started { child: id, node, pid: *pid, resume_us: *resume_us }
            }
            Outcome::Failed { node, failure } => OutcomeView::Failed { node, error: failure.to_string() },
        }
    }
}

/// Forks, and gathers the outcomes in the children's order.
pub(super) async fn collect(client: &mut Client, request: ForkRequest) -> Result<Collected, Failure> {
    let (count, is_attended) = (request.count, request.attended);
    let object = format!("seed {}", request.seed);
    let failed = |status| Failure::from_status(&object, &status);
    let mut answers = client.fork(request).await.map_err(failed)?.into_inner();
    let progress = progress(count);
    let mut outcomes: Vec<Option<Outcome>> = (0..count).map(|_| None).collect();
    let mut told = Phases { request: Vec::new(), children: vec![Vec::new(); count as usize] };
    while let Some(ForkOutcome { index, node, result, phases }) = answers.message().await.map_err(failed)? {
        let outcome = match result {
            Some(Answer::Child(child)) => Outcome::Started(Box::new(child)),
            Some(Answer::Error(error)) => Outcome::Failed { node, failure: error.into() },
            None => {
                told.request = phases;
                // The stream of children that are waited for goes on, without anything to tell.
                if is_attended {
                    break;
                }
                continue;
            }
        };
        progress.inc(1);
        if let Some(slot) = outcomes.get_mut(index as usize) {
            *slot = Some(outcome);
            told.children[index as usize] = phases;
        }
    }
    progress.finish_and_clear();
    let silent = || Failure::new(Code::Internal, &object, "the node told of fewer children than were asked for");
    let outcomes = outcomes.into_iter().map(|outcome| outcome.ok_or_else(silent)).collect::<Result<_, _>>()?;
    Ok(Collected { outcomes, phases: told, attendance: answers })
}

/// The outcomes as scripts read them.
pub(super) fn document(seed: &str, outcomes: &[Outcome]) -> serde_json::Value {
    let children: Vec<OutcomeView<'_>> = outcomes.iter().map(Outcome::view).collect();
    let id = outcomes.iter().find_map(Outcome::seed).unwrap_or(seed);
    serde_json::json!({ "seed": id, "children": children })
}

/// The ids, one a line; the failures on standard error.
pub(super) fn print(outcomes: &[Outcome]) {
    for outcome in outcomes {
        match outcome {
            Outcome::Started(child) => output::line(&child.id),
            Outcome::Failed { failure, .. } => output::failure(failure),
        }
    }
}

fn progress(count: u32) -> ProgressBar {
    if count < PROGRESS_CHILDREN_MIN || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{pos}/{len} children {wide_bar} {elapsed}");
    ProgressBar::new(count.into()).with_style(style.expect("a valid template"))
}
