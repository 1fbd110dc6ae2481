//! `FunctionCallArgs`: the arguments of commands that call Python functions.

use std::path::PathBuf;

use clap::Args;

/// How functions are called.
#[derive(Args)]
pub(crate) struct FunctionCallArgs {
    /// The payload of every call of a Python function, a JSON document.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_json)]
    pub(crate) payload: String,
    /// The Python that runs the functions [default: an environment with the packages of the nine functions].
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
}

/// Checks that the text is a JSON document, and returns it unchanged.
fn parse_json(text: &str) -> Result<String, String> {
    let parsed: Result<serde_json::Value, _> = serde_json::from_str(text);
    parsed.map(|_| text.to_owned()).map_err(|error| format!("not a JSON document: {error}"))
}
