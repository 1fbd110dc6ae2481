//! `farfork ps --watch`: redraws the list in place. A screen fits the terminal, does not flicker, and leaves the
//! earlier contents of the terminal alone. Without a terminal, one list is printed after the other.

use std::io::{self, IsTerminal as _, stdout};
use std::time::{SystemTime, UNIX_EPOCH};

use farfork_api::v1::{Child, ChildState};

use crate::output;

/// To the corner; the rest of a line; the rest of the screen (ECMA-48).
const CURSOR_HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Lines of a picture that tell of no child: the summary, the headings, what was left out, and the cursor's own.
const RESERVED_LINES: usize = 4;

/// Of a terminal that does not say how large it is.
const SIZE_DEFAULT: TerminalSize = TerminalSize { lines: 24, columns: 80 };

/// Of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TerminalSize {
    lines: usize,
    columns: usize,
}

/// The terminal's size; `None` where standard output is none.
pub(super) fn terminal_size() -> Option<TerminalSize> {
    let stdout = stdout();
    stdout.is_terminal().then(|| match rustix::termios::tcgetwinsize(&stdout) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            TerminalSize { lines: size.ws_row.into(), columns: size.ws_col.into() }
        }
        _ => SIZE_DEFAULT,
    })
}

/// What there is, on a line, with the time of day in UTC: a picture that stands still looks like one that is current.
pub(super) fn summary(children: &[Child]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let count = |states: &[ChildState]| children.iter().filter(|child| states.contains(&child.state())).count();
    let mut nodes: Vec<&str> = children.iter().map(|child| child.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    format!(
        "{:02}:{:02}:{:02} UTC  {} running, {} paused, {} ended, on {} nodes",
        now / 3600 % 24,
        now / 60 % 60,
        now % 60,
        count(&[ChildState::Running]),
        count(&[ChildState::Paused]),
        count(&[ChildState::Exited, ChildState::Lost]),
        nodes.len(),
    )
}

/// Leaves what fits: those that run come first, then those that ended last. Gives how many were left out.
pub(super) fn truncate_to_fit(children: &mut Vec<Child>, size: TerminalSize) -> usize {
    children.sort_by_key(|child| (child.exit.is_some(), std::cmp::Reverse(child.ended_unix_ms), child.started_unix_ms));
    let room = size.lines.saturating_sub(RESERVED_LINES).max(1);
    let left_out = children.len().saturating_sub(room);
    children.truncate(room);
    left_out
}

/// Draws a picture over the one before.
///
/// # Errors
/// As write(2).
pub(super) fn draw(picture: &str, size: TerminalSize) -> io::Result<()> {
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
    use super::{Child, TerminalSize, redraw_sequence, summary, truncate_to_fit};
    use farfork_api::v1::{ChildState, Exit, exit::How};

    fn child(id: &str, ended_unix_ms: u64) -> Child {
        let exit = (ended_unix_ms > 0).then_some(Exit { how: Some(How::Code(0)), ..Exit::default() });
        let state = if exit.is_some() { ChildState::Exited } else { ChildState::Running };
        Child { id: id.to_owned(), node: "n1".to_owned(), exit, ended_unix_ms, state: state.into(), ..Child::default() }
    }

    #[test]
    fn what_runs_is_seen_however_many_have_ended() {
        let mut children = vec![child("old", 1), child("runs", 0), child("new", 9)];
        assert!(summary(&children).ends_with("1 running, 0 paused, 2 ended, on 1 nodes"));
        assert_eq!(truncate_to_fit(&mut children, TerminalSize { lines: 6, columns: 80 }), 1);
        let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
        assert_eq!(ids, ["runs", "new"]);
    }

    #[test]
    fn a_picture_stays_within_the_terminal() {
        let drawn = redraw_sequence("abcdef\nb\nc\nd", TerminalSize { lines: 3, columns: 4 });
        assert_eq!(drawn, "\x1b[Habcd\x1b[K\r\nb\x1b[K\r\n\x1b[J");
    }
}
