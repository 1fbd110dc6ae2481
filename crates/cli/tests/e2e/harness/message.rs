//! Messages of the tests and the runner on standard output and standard error, which a failed write does not turn into a
//! panic.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Writes a line to standard output. Ignores failures, unlike `println!`: a run whose reader has ended (`make test | head`)
/// must still remove everything that it started.
pub(crate) fn print_line(text: impl Display) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Writes a line to standard error. Ignores failures, unlike `eprintln!`: the cleanup must continue after the terminal is
/// closed or the disk of the output is full, and a panic in a panic hook aborts the process.
pub(crate) fn print_error(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
