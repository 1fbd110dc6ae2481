//! Draws a changing state on the terminal. Each picture is cut to the terminal's size, and overwrites the previous picture
//! without flicker. The scrollback of the terminal remains.

use std::io::{self, IsTerminal as _, stdout};

use farfork_terminal::output;

/// Control sequences (ECMA-48): move to the top left corner, clear the rest of a line, clear the rest of the screen.
const CURSOR_HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Size that is assumed if a terminal does not report its size.
const SIZE_DEFAULT: TerminalSize = TerminalSize { lines: 24, columns: 80 };

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) lines: usize,
    pub(crate) columns: usize,
}

/// Returns the terminal's size; `None` if standard output is not a terminal.
pub(crate) fn terminal_size() -> Option<TerminalSize> {
    let stdout = stdout();
    stdout.is_terminal().then(|| match rustix::termios::tcgetwinsize(&stdout) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            TerminalSize { lines: size.ws_row.into(), columns: size.ws_col.into() }
        }
        _ => SIZE_DEFAULT,
    })
}

/// Draws a picture over the previous one.
///
/// # Errors
/// write(2) fails.
pub(crate) fn draw(picture: &str, size: TerminalSize) -> io::Result<()> {
    output::write_bytes(redraw_sequence(picture, size).as_bytes())
}

fn redraw_sequence(picture: &str, size: TerminalSize) -> String {
    let mut drawn = CURSOR_HOME.to_owned();
    for line in picture.lines().take(size.lines.saturating_sub(1)) {
        drawn.extend(line.chars().take(size.columns));
        drawn += CLEAR_LINE;
        drawn += "\r\n";
    }
    drawn + CLEAR_BELOW
}

#[cfg(test)]
mod tests {
    use super::{TerminalSize, redraw_sequence};

    #[test]
    fn a_redrawn_screen_is_cut_to_the_terminal() {
        let drawn = redraw_sequence("abcdef\nb\nc\nd", TerminalSize { lines: 3, columns: 4 });
        assert_eq!(drawn, "\x1b[Habcd\x1b[K\r\nb\x1b[K\r\n\x1b[J");
    }
}
