//! Lines that an endpoint prints to its standard output.

use std::io::{self, Write as _};

/// Prints a line, and flushes it.
pub(crate) fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Prints the port of a server, and waits until standard input ends.
pub(crate) fn announce_port(port: u16) -> io::Result<()> {
    print_line(&format!("listening {port}"))?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
