//! `ObjectOutcome`: the result of a command for one of its objects. The command makes a request for each object, and
//! continues after the failure of one.

use std::process::ExitCode;

use farfork_api::failure::Failure;
use serde_json::{Map, Value};
use tonic::Status;

use crate::output;

/// The result for one object.
pub(super) struct ObjectOutcome {
    kind: &'static str,
    id: String,
    result: Result<(), Failure>,
}

impl ObjectOutcome {
    /// Makes the result of a request about the `kind` (child, seed) with this id.
    pub(super) fn new(kind: &'static str, id: String, answer: Result<(), Status>) -> Self {
        let result = answer.map_err(|status| Failure::from_status(format!("{kind} {id}"), &status));
        Self { kind, id, result }
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert(self.kind.to_owned(), self.id.clone().into());
        if let Err(failure) = &self.result {
            fields.insert("error".to_owned(), failure.to_string().into());
        }
        fields.into()
    }
}

/// Reports all outcomes. In JSON output they have the key `plural`. Returns exit status 1 if one of them is a failure.
pub(super) fn report_outcomes(plural: &str, outcomes: &[ObjectOutcome], json: bool) -> ExitCode {
    let failures = || outcomes.iter().filter_map(|outcome| outcome.result.as_ref().err());
    failures().for_each(output::print_failure);
    if json {
        let outcomes: Vec<Value> = outcomes.iter().map(ObjectOutcome::to_json).collect();
        output::print_json(&serde_json::json!({ plural: outcomes }));
    }
    if failures().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
