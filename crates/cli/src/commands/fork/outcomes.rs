//! `ChildOutcome`: the outcome of one requested child of a fork. It is the started child or a failure.

use std::io::{IsTerminal as _, stderr};

use farfork_api::client::Client;
use farfork_api::failure::{Failure, NEVER_STARTED_CAUSE};
use farfork_api::v1::fork_outcome::Result as Answer;
use farfork_api::v1::{Child, ForkOutcome, ForkRequest, Phase};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tonic::{Code, Streaming};

use crate::output;

/// Number of children from which a progress bar is shown. With fewer, the fork ends before a user could read the bar.
const PROGRESS_CHILDREN_MIN: u32 = 16;

/// Maximum number of payload lines that a message names.
const LINES_NAMED_MAX: usize = 8;

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

    /// Whether the start had not begun when this command stopped the fork.
    pub(super) fn is_never_started(&self) -> bool {
        self.failure().is_some_and(|failure| failure.cause() == NEVER_STARTED_CAUSE)
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
pub(super) fn outcomes_json(seed: &str, outcomes: &[ChildOutcome], lines: &PayloadLines) -> serde_json::Value {
    let mut children: Vec<_> = outcomes.iter().map(|outcome| serde_json::json!(outcome.to_view())).collect();
    lines.add_to(&mut children);
    serde_json::json!({ "seed": seed_id(seed, outcomes), "children": children })
}

/// Returns the id of the seed that the user has named `seed`; `seed` itself if no child was started.
pub(super) fn seed_id<'a>(seed: &'a str, outcomes: &'a [ChildOutcome]) -> &'a str {
    outcomes.iter().find_map(ChildOutcome::seed).unwrap_or(seed)
}

/// Prints the id of each started child on its own line.
pub(super) fn print_started(outcomes: &[ChildOutcome]) {
    outcomes.iter().filter_map(ChildOutcome::child_id).for_each(|id| output::print_line(&id));
}

/// Prints each different failure once, with the children that it concerns: the children of a fork often fail for the
/// same reason. Omits children that were never started.
pub(super) fn print_failures(outcomes: &[ChildOutcome], lines: &PayloadLines) {
    let mut groups: Vec<(&Failure, Vec<usize>)> = Vec::new();
    for (index, outcome) in outcomes.iter().enumerate() {
        let Some(failure) = outcome.failure().filter(|_| !outcome.is_never_started()) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == failure) {
            Some((_, indexes)) => indexes.push(index),
            None => groups.push((failure, vec![index])),
        }
    }
    for (failure, indexes) in groups {
        let object = match lines.name_children(&indexes) {
            Some(children) => format!("{children}: {}", failure.object()),
            None => failure.object().to_owned(),
        };
        let labelled = Failure::new(failure.code(), object, failure.cause());
        output::print_failure(&labelled.with_next_step(failure.next_step()));
    }
}

/// Names children in messages by the lines of their payloads.
pub(super) struct PayloadLines {
    /// The name of the file with one payload per line; `None` if the children have no such file.
    pub(super) file: Option<String>,
}

impl PayloadLines {
    /// Returns the name of one child; `None` if there is no file.
    pub(super) fn name_child(&self, index: usize) -> Option<String> {
        self.file.as_ref().map(|file| format!("line {} of {file}", index + 1))
    }

    /// Adds `line`, counted from 1, to the JSON of each child, in the order of the request. Nothing if there is no file.
    pub(super) fn add_to(&self, children: &mut [serde_json::Value]) {
        if self.file.is_some() {
            children.iter_mut().zip(1..).for_each(|(child, line)| child["line"] = serde_json::Value::from(line));
        }
    }

    /// Returns a name for children with these indexes; `None` for a single child without a line.
    fn name_children(&self, indexes: &[usize]) -> Option<String> {
        match (indexes, &self.file) {
            ([index], _) => self.name_child(*index),
            (_, None) => Some(format!("{} children", indexes.len())),
            (_, Some(file)) => {
                let named = indexes.iter().take(LINES_NAMED_MAX).map(|index| (index + 1).to_string());
                let named = named.collect::<Vec<_>>().join(", ");
                let more = match indexes.len().saturating_sub(LINES_NAMED_MAX) {
                    0 => String::new(),
                    count => format!(" and {count} more"),
                };
                Some(format!("lines {named}{more} of {file}"))
            }
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

#[cfg(test)]
mod tests {
    use super::PayloadLines;

    #[test]
    fn children_are_named_by_the_lines_of_their_payloads() {
        let with_file = PayloadLines { file: Some("tasks.jsonl".to_owned()) };
        assert_eq!(with_file.name_child(1).as_deref(), Some("line 2 of tasks.jsonl"));
        assert_eq!(with_file.name_children(&[0]).as_deref(), Some("line 1 of tasks.jsonl"));
        assert_eq!(with_file.name_children(&[0, 2]).as_deref(), Some("lines 1, 3 of tasks.jsonl"));
        let many: Vec<usize> = (0..10).collect();
        let named = with_file.name_children(&many);
        assert_eq!(named.as_deref(), Some("lines 1, 2, 3, 4, 5, 6, 7, 8 and 2 more of tasks.jsonl"));
        let without_file = PayloadLines { file: None };
        assert_eq!((without_file.name_child(1), without_file.name_children(&[3])), (None, None));
        assert_eq!(without_file.name_children(&[0, 1]).as_deref(), Some("2 children"));
    }
}
