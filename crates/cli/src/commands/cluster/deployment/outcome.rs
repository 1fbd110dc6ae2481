//! The outcome of a command on each host, for people and for scripts.

use farfork_api::failure::Failure;
use serde::Serialize;

use crate::output::{self, Table};

/// The outcome on one host.
#[derive(Debug, Serialize)]
pub(super) struct HostOutcome {
    pub(super) host: String,
    /// The address of the node; `null` if it is not known.
    pub(super) address: Option<String>,
    /// The result, in one word: `unchanged`, `deployed`, `removed`, `absent`, `failed` or `skipped`.
    pub(super) outcome: &'static str,
    /// The changes; for `failed`, the error.
    pub(super) details: Vec<String>,
}

impl HostOutcome {
    /// The outcome of a host that failed.
    pub(super) fn failed(host: &str, error: &anyhow::Error) -> Self {
        let details = vec![format!("{error:#}")];
        Self { host: host.to_owned(), address: None, outcome: "failed", details }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.outcome == "failed"
    }
}

/// Prints the outcomes, and each error. Returns whether no host has failed.
pub(super) fn report(outcomes: &[HostOutcome], json: bool) -> bool {
    if json {
        output::print_json(&serde_json::json!({ "hosts": outcomes }));
    } else {
        let mut table = Table::new(&["HOST", "ADDRESS", "OUTCOME", "CHANGES"]);
        for outcome in outcomes {
            let details = if outcome.has_failed() { String::new() } else { outcome.details.join(", ") };
            let address = outcome.address.clone().unwrap_or_default();
            table.add_row([outcome.host.clone(), address, outcome.outcome.to_owned(), details]);
        }
        table.print();
    }
    let failed = outcomes.iter().filter(|outcome| outcome.has_failed());
    failed.clone().for_each(|outcome| output::print_note(format_args!("farfork: {}", outcome.details.join("; "))));
    failed.count() == 0
}

/// The failure of a command that has changed nothing, because of these errors.
pub(super) fn refusal(errors: &[anyhow::Error], next_step: &str) -> Failure {
    let causes: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
    let failure = Failure::new(tonic::Code::FailedPrecondition, "the hosts cannot be used", causes.join("\n         "));
    failure.with_next_step(next_step)
}
