//! `FunctionProfile`: where the time of a child went, for `farfork bench function --profile`.

use farfork_api::v1::{PagerStats, Phase};
use serde::Serialize;

use super::table::{FigureTable, format_figure};
use crate::figure::ChildPlace;

const PAGE_BYTES: f64 = 4096.0;
const MIB: f64 = (1 << 20) as f64;

/// Phases that take a smaller part of the start are not printed.
const PRINTED_PART_MIN: f64 = 0.05;

/// The page faults, the fetched memory and the phases of one child.
#[derive(Debug, Serialize)]
pub(crate) struct FunctionProfile {
    function: String,
    place: ChildPlace,
    /// Page faults that the pager answered.
    faults: u64,
    /// Faults for which the pager requested the page from the owner.
    faults_missing: u64,
    /// Requests for pages to the owner, with those that no thread waited for.
    round_trips: u64,
    /// Time from the request for a page that a thread waits for to its installation: the sum, in ms.
    wait_ms: f64,
    fetched_mib: f64,
    /// Received over the network. On the parent's node, memory is copied instead.
    network_mib: f64,
    zero_mib: f64,
    phases: Vec<FunctionPhase>,
}

/// A phase of the start of a child.
#[derive(Debug, Serialize)]
struct FunctionPhase {
    name: String,
    /// 0 for the whole request.
    depth: u32,
    ms: f64,
}

impl FunctionProfile {
    pub(crate) fn new(function: &str, place: ChildPlace, pager: &PagerStats, phases: &[Phase]) -> Self {
        let phase = |phase: &Phase| FunctionPhase {
            name: phase.name.clone(),
            depth: phase.depth,
            ms: phase.duration_us as f64 / 1e3,
        };
        Self {
            function: function.to_owned(),
            place,
            faults: pager.faults,
            faults_missing: pager.faults_missing,
            round_trips: pager.round_trips,
            wait_ms: pager.demand_us as f64 / 1e3,
            fetched_mib: pager.pages_fetched as f64 * PAGE_BYTES / MIB,
            network_mib: pager.bytes_fetched.saturating_sub(pager.bytes_same_host) as f64 / MIB,
            zero_mib: pager.zero_pages as f64 * PAGE_BYTES / MIB,
            phases: phases.iter().map(phase).collect(),
        }
    }
}

/// The profiles as text: a table of memory, and a table of the longer phases. Empty without profiles.
pub(super) fn profile_text(profiles: &[FunctionProfile]) -> String {
    if profiles.is_empty() {
        return String::new();
    }
    let place = |place| if place == ChildPlace::Own { "own" } else { "other" }.to_owned();
    let headings = ["function", "node", "faults", "missing", "requests", "wait, ms", "MiB", "network", "zero"];
    let mut memory = FigureTable::new("Memory of the last child", &headings);
    let mut phases =
        FigureTable::new("Phases of its start that take 5 % of it or more", &["function", "node", "phase", "ms"]);
    for profile in profiles {
        memory.add_row([
            profile.function.clone(),
            place(profile.place),
            profile.faults.to_string(),
            profile.faults_missing.to_string(),
            profile.round_trips.to_string(),
            format_figure(profile.wait_ms),
            format_figure(profile.fetched_mib),
            format_figure(profile.network_mib),
            format_figure(profile.zero_mib),
        ]);
        let whole_ms = profile.phases.iter().filter(|phase| phase.depth == 0).map(|phase| phase.ms).fold(0.0, f64::max);
        for phase in profile.phases.iter().filter(|phase| phase.ms >= whole_ms * PRINTED_PART_MIN) {
            let name = phase.name.clone();
            phases.add_row([profile.function.clone(), place(profile.place), name, format_figure(phase.ms)]);
        }
    }
    let explained = "missing: faults that waited for a request to the owner. network: MiB received over the network.";
    format!("\n{}\n{explained}\n\n{}\n\n", memory.render(), phases.render())
}

#[cfg(test)]
mod tests {
    use farfork_api::v1::{PagerStats, Phase};

    use super::super::table::COLUMNS_MAX;
    use super::{FunctionProfile, profile_text};
    use crate::figure::ChildPlace;

    #[test]
    fn a_profile_has_the_memory_and_the_phases_of_a_child() {
        let pager = PagerStats { faults: 5, pages_fetched: 512, bytes_fetched: 2 << 20, ..PagerStats::default() };
        let phase = Phase { name: "fork.restore".to_owned(), duration_us: 1_500, ..Phase::default() };
        let profile = FunctionProfile::new("recognition", ChildPlace::Other, &pager, &[phase]);
        let text = profile_text(&[profile]);
        let has_row = |words: &[&str]| text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
        assert!(has_row(&["recognition", "other", "5", "0", "0", "0.00", "2.00", "2.00", "0.00"]), "{text}");
        assert!(has_row(&["recognition", "other", "fork.restore", "1.50"]), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{text}");
        assert_eq!(profile_text(&[]), "");
    }
}
