//! Output for people. A closed pipe (`make test | head`) or a full disk does not end a run: its logs must still get the rest.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Prints text on standard output, without a line end. Ignores errors.
pub(crate) fn print(text: impl Display) {
    if cfg!(test) {
        // libtest captures only `print!`. Otherwise it would show results of other tests, which these tests print.
        print!("{text}");
    } else {
        let _ = write!(io::stdout(), "{text}");
    }
}

/// Prints a line on standard output. Ignores errors.
pub(crate) fn print_line(text: impl Display) {
    print(format_args!("{text}\n"));
}

/// Prints a line on standard error. Ignores errors.
pub(crate) fn print_note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
