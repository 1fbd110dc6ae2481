//! Output of commands: sentences for people, JSON with stable keys for scripts, failures on standard error.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use farfork_api::failure::Failure;
use serde::Serialize;

/// Prints one JSON document on standard output.
pub fn print_json(document: &impl Serialize) {
    let text = serde_json::to_string_pretty(document).expect("a view serialises");
    print_line(&text);
}

/// Prints a report: the document for scripts if `json` is set, otherwise the text.
pub fn print_report<Document: Serialize>(
    json: bool,
    document: impl FnOnce() -> Document,
    text: impl FnOnce() -> String,
) {
    if json {
        print_json(&document());
    } else {
        print_line(text().trim_end());
    }
}

/// Prints a line on standard output. A closed pipe is not an error: its reader needs no more output. If the line is lost for
/// another reason, such as a full disk, the command fails at its end ([`is_output_lost`]).
pub fn print_line(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    let lost = written.err().filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
    if let Some(error) = lost
        && !OUTPUT_LOST.swap(true, Ordering::Relaxed)
    {
        print_note(format_args!("farfork: standard output: {error}; the output is incomplete"));
    }
}

/// Whether a line was lost for another reason than a closed pipe.
static OUTPUT_LOST: AtomicBool = AtomicBool::new(false);

/// Whether output was lost for another reason than a closed pipe.
pub fn is_output_lost() -> bool {
    OUTPUT_LOST.load(Ordering::Relaxed)
}

/// Writes bytes to standard output unchanged, and flushes them.
pub fn write_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map_err(|error| io::Error::new(error.kind(), format!("standard output: {error}")))
}

/// Whether a command failed because the reader of its output has ended.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints a line for people on standard error. Ignores errors, which eprintln! turns into a panic: a command does not fail
/// because nothing reads its notes.
pub fn print_note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a failure on standard error: object and cause on one line, the next step on another.
pub fn print_failure(failure: &Failure) {
    let mut text = format!("farfork: {}: {}", failure.object(), failure.cause());
    if !failure.next_step().is_empty() {
        text += &format!("\n         {}", failure.next_step());
    }
    print_note(text);
}
