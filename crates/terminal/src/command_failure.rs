//! Turns the outcome of a command into its exit status. Reports a failure on standard error, and for scripts as JSON on
//! standard output.

use std::process::ExitCode;

use farfork_api::failure::Failure;

use crate::output;

/// Exit status of a command whose reader has closed the pipe: the status that a shell reports for a program killed by
/// SIGPIPE.
const EXIT_SIGPIPE: u8 = 128 + 13;

/// Returns the exit status of a command that ended with `outcome`. Reports a failure, except a closed pipe; if `json` is
/// set, also as a JSON document. A command whose output was lost has failed.
pub fn exit_status(outcome: anyhow::Result<ExitCode>, json: bool) -> ExitCode {
    match outcome {
        Ok(_) if output::is_output_lost() => ExitCode::FAILURE,
        Ok(status) => status,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::from(EXIT_SIGPIPE),
        Err(error) => {
            report_error(&error, json);
            ExitCode::FAILURE
        }
    }
}

/// Reports a failure; if `json` is set, also as a JSON document. For commands whose failures have their own exit status.
pub fn report_error(error: &anyhow::Error, json: bool) {
    let failure = error.downcast_ref::<Failure>();
    match failure {
        Some(failure) => output::print_failure(failure),
        None => output::print_note(format_args!("farfork: {}", error_chain_text(error))),
    }
    if json {
        let text = failure.map_or_else(|| error_chain_text(error), Failure::to_string);
        output::print_json(&serde_json::json!({ "error": text }));
    }
}

/// Joins the texts of an error and its causes. Omits a cause that the text already contains, because many errors repeat
/// their cause.
fn error_chain_text(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        before if before.contains(&cause) => text,
        before => format!("{before}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_cause_is_shown_once() {
        let cause = anyhow::anyhow!("too many open files");
        let nested = cause.context("cannot look (too many open files)").context("node q");
        assert_eq!(error_chain_text(&nested), "node q: cannot look (too many open files)");
    }
}
