//! The phases of a request: a table with bars for people, a list with stable keys for scripts.

use farfork_api::v1::Phase;
use serde::Serialize;

use super::{Table, format_microseconds};

/// Width of a bar, in characters. With it, the table fits into eighty columns.
const BAR_CHARACTERS: usize = 32;

/// The time outside of a phase's parts is shown if it is at least this share of the whole request, in percent. Less is
/// noise.
const REST_PERCENT_MIN: u64 = 1;

/// A phase.
#[derive(Debug, Serialize)]
pub(crate) struct PhaseView<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: &'a str,
    /// Depth in the tree of phases; 0 for the whole request. A phase is a part of the last phase before it with a lower
    /// depth.
    pub(crate) depth: u32,
    /// Start in microseconds since the request arrived.
    pub(crate) start_us: u64,
    pub(crate) duration_us: u64,
}

impl<'a> From<&'a Phase> for PhaseView<'a> {
    fn from(phase: &'a Phase) -> Self {
        let Phase { name, node, depth, start_us, duration_us } = phase;
        Self { name, node, depth: *depth, start_us: *start_us, duration_us: *duration_us }
    }
}

/// Converts the phases for JSON output.
pub(crate) fn phase_views(phases: &[Phase]) -> Vec<PhaseView<'_>> {
    phases.iter().map(PhaseView::from).collect()
}

/// Makes a table with a line for each phase: its time, its share of the whole, and a bar from its start to its end.
/// Time outside of a phase's parts has a line of its own.
pub(crate) fn phase_table(phases: &[Phase]) -> String {
    let Some(whole) = phases.first() else {
        return "the node reported no phases".to_owned();
    };
    let mut table = Table::new(&["PHASE", ">TIME", ">SHARE", "WHEN"]);
    let mut line = |depth: u32, name: &str, duration_us: u64, bar: String| {
        let name = format!("{}{name}", "  ".repeat(depth as usize));
        table.add_row([name, format_microseconds(duration_us), percent(duration_us, whole.duration_us), bar]);
    };
    for (index, phase) in phases.iter().enumerate() {
        line(phase.depth, &phase.name, phase.duration_us, phase_bar(phase, whole));
        let rest_us = unaccounted_us(&phases[index..]);
        if rest_us * 100 >= whole.duration_us.max(1) * REST_PERCENT_MIN {
            line(phase.depth + 1, "(the rest)", rest_us, String::new());
        }
    }
    table.render()
}

/// Returns the time of the first phase that is in none of its parts; 0 if the phase has no parts.
fn unaccounted_us(phases: &[Phase]) -> u64 {
    let (first, others) = phases.split_first().expect("a phase");
    let inside = others.iter().take_while(|phase| phase.depth > first.depth);
    let mut parts = inside.filter(|phase| phase.depth == first.depth + 1).peekable();
    if parts.peek().is_none() {
        return 0;
    }
    first.duration_us.saturating_sub(parts.map(|part| part.duration_us).sum())
}

fn percent(part_us: u64, whole_us: u64) -> String {
    format!("{:.1} %", part_us as f64 * 100.0 / whole_us.max(1) as f64)
}

/// Draws a bar of at least one character, at the phase's position within the whole request.
fn phase_bar(phase: &Phase, whole: &Phase) -> String {
    let whole_us = whole.duration_us.max(1) as f64;
    let place = |us: u64| (us as f64 / whole_us * BAR_CHARACTERS as f64).round() as usize;
    let begin_us = phase.start_us.saturating_sub(whole.start_us);
    let begin = place(begin_us).min(BAR_CHARACTERS - 1);
    let end = place(begin_us + phase.duration_us).clamp(begin + 1, BAR_CHARACTERS);
    // The table trims spaces at the left of a cell, so the padding is another character.
    format!("{}{}", "·".repeat(begin), "█".repeat(end - begin))
}

#[cfg(test)]
mod tests {
    use super::{Phase, phase_table};

    #[test]
    fn phases_show_their_share_and_the_remaining_time() {
        let phase = |name: &str, depth, start_us, duration_us| Phase {
            name: name.to_owned(),
            depth,
            start_us,
            duration_us,
            node: "n1".to_owned(),
        };
        let phases =
            [phase("prepare", 0, 0, 1000), phase("prepare.stop", 1, 0, 250), phase("prepare.read", 1, 500, 500)];
        let expected = "\
PHASE              TIME    SHARE  WHEN
prepare         1.00 ms  100.0 %  ████████████████████████████████
  (the rest)     250 µs   25.0 %
  prepare.stop   250 µs   25.0 %  ████████
  prepare.read   500 µs   50.0 %  ················████████████████";
        assert_eq!(phase_table(&phases), expected);
        assert_eq!(phase_table(&[]), "the node reported no phases");
    }
}
