//! `farfork ps --watch`: the summary line above the list, and the selection of children that fit the terminal.

use farfork_api::v1::{Child, ChildState};

use crate::output::format_time_of_day;
use crate::output::screen::TerminalSize;

/// Number of screen lines below the summary and the failures that show no child: the headings, the number of omitted
/// children, and the cursor's line.
const RESERVED_LINES: usize = 3;

/// Counts the children by state. The time of day, in UTC, shows how old the list is.
pub(super) fn summary(children: &[Child]) -> String {
    let count = |states: &[ChildState]| children.iter().filter(|child| states.contains(&child.state())).count();
    let mut nodes: Vec<&str> = children.iter().map(|child| child.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    format!(
        "{} UTC  {} running, {} paused, {} ended, on {} nodes",
        format_time_of_day(),
        count(&[ChildState::Running]),
        count(&[ChildState::Paused]),
        count(&[ChildState::Exited, ChildState::Lost]),
        nodes.len(),
    )
}

/// Keeps the children that fit below the first `used_lines` lines: first running and paused children, then those that ended
/// most recently. Returns the number of removed children.
pub(super) fn truncate_to_fit(children: &mut Vec<Child>, used_lines: usize, size: TerminalSize) -> usize {
    children.sort_by_key(|child| (child.exit.is_some(), time_since_end_ms(child), std::cmp::Reverse(child.age_ms)));
    let room = size.lines.saturating_sub(used_lines + RESERVED_LINES).max(1);
    let left_out = children.len().saturating_sub(room);
    children.truncate(room);
    left_out
}

/// Time since the end of an ended child, in milliseconds; 0 for others. Only the clock of the child's node counts.
fn time_since_end_ms(child: &Child) -> u64 {
    let run_ms = child.ended_unix_ms.saturating_sub(child.started_unix_ms);
    if child.exit.is_some() { child.age_ms.saturating_sub(run_ms) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::{Child, TerminalSize, summary, truncate_to_fit};
    use farfork_api::v1::{ChildState, Exit, exit::How};

    /// The clock of the child's node is `clock_ms` when the list is made, and the child was started 100 ms before.
    fn child(id: &str, clock_ms: u64, ended_ms_ago: Option<u64>) -> Child {
        let exit = ended_ms_ago.map(|_| Exit { how: Some(How::Code(0)), ..Exit::default() });
        let state = if exit.is_some() { ChildState::Exited } else { ChildState::Running };
        let (started_unix_ms, ended_unix_ms) = (clock_ms - 100, ended_ms_ago.map_or(0, |ago| clock_ms - ago));
        let (id, node, state) = (id.to_owned(), "n1".to_owned(), state.into());
        Child { id, node, exit, started_unix_ms, ended_unix_ms, age_ms: 100, state, ..Child::default() }
    }

    #[test]
    fn running_children_are_shown_before_ended_ones() {
        let hour_ahead = 3_600_000;
        let mut children =
            vec![child("old", hour_ahead, Some(90)), child("runs", 500, None), child("new", 500, Some(9))];
        assert!(summary(&children).ends_with("1 running, 0 paused, 2 ended, on 1 nodes"));
        assert_eq!(truncate_to_fit(&mut children, 1, TerminalSize { lines: 6, columns: 80 }), 1);
        let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
        assert_eq!(ids, ["runs", "new"]);
    }
}
