//! `SoakTally`: the counts of a soak run so far.

use std::collections::BTreeMap;

use serde::Serialize;

use super::script::ActionKind;
use super::verdict::EndVerdict;

/// Maximum number of texts of each kind that are kept. One fault may cause many others.
const TEXTS_MAX: usize = 50;

/// The counts so far.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct SoakTally {
    /// Completed rounds.
    pub(crate) rounds: u64,
    /// Seeds that were made.
    pub(crate) seeds: u64,
    /// Children that were started.
    pub(crate) children: u64,
    /// Children whose pages were all correct.
    pub(crate) sound: u64,
    /// Children that were killed.
    pub(crate) killed: u64,
    /// Children that exceeded their memory limit, as reported by their node.
    pub(crate) limited: u64,
    /// Children that lost pages with a dropped seed, as reported by their node.
    pub(crate) lost: u64,
    /// Number of page verifications; each compares every byte.
    pub(crate) pages_verified: u64,
    /// Actions by kind.
    pub(crate) deeds: BTreeMap<ActionKind, u64>,
    /// Requests that were refused because of earlier actions or an expired lease.
    pub(crate) refusals: u64,
    /// The first refusals, as text.
    pub(crate) refusal_texts: Vec<String>,
    /// The first faults.
    pub(crate) faults: Vec<String>,
}

impl SoakTally {
    /// Actions of all kinds.
    pub(crate) fn actions_count(&self) -> u64 {
        self.deeds.values().sum()
    }

    pub(super) fn count_action(&mut self, kind: ActionKind) {
        *self.deeds.entry(kind).or_default() += 1;
    }

    pub(super) fn record_refusal(&mut self, text: String) {
        self.refusals += 1;
        push_text(&mut self.refusal_texts, text);
    }

    pub(super) fn record_failure(&mut self, text: String) {
        push_text(&mut self.faults, format!("round {}: {text}", self.rounds + 1));
    }

    pub(super) fn count_end(&mut self, verdict: &EndVerdict) {
        match verdict {
            EndVerdict::Correct(looks) => {
                self.sound += 1;
                self.pages_verified += looks;
            }
            EndVerdict::Killed => self.killed += 1,
            EndVerdict::Lost => self.lost += 1,
            EndVerdict::Limited => self.limited += 1,
            EndVerdict::Unexpected(_) => {}
        }
    }
}

fn push_text(texts: &mut Vec<String>, text: String) {
    if texts.len() < TEXTS_MAX {
        texts.push(text);
    }
}
