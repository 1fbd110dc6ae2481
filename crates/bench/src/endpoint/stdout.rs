//! Lines that an endpoint prints on its standard output.

use std::io::{self, Write as _};

/// Says a line at once.
pub(crate) fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Says where a server listens, and waits until its input ends.
pub(crate) fn announce_port(port: u16) -> io::Result<()> {
    print_line(&format!("listening {port}"))?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
