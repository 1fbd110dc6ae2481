//! `SoakTally`: the counts of a soak run so far.

use std::collections::BTreeMap;

use serde::Serialize;

use super::script::ActionKind;
use super::verdict::EndVerdict;

/// Texts of each kind that are kept: one fault may follow from another.
const TEXTS_MAX: usize = 50;

/// What has happened so far.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SoakTally {
    /// Rounds that came to their end.
    pub rounds: u64,
    /// Seeds that were made.
    pub seeds: u64,
    /// Children that were started.
    pub children: u64,
    /// Of these, those that found all of their pages right.
    pub sound: u64,
    /// Those that were killed.
    pub killed: u64,
    /// Those that needed more memory than they might have, and were told so.
    pub limited: u64,
    /// Those that lost pages with a seed that was taken from them, and were told so.
    pub lost: u64,
    /// How often a page was looked at, every byte of it.
    pub pages_verified: u64,
    /// What was done, by kind.
    pub deeds: BTreeMap<ActionKind, u64>,
    /// How many requests were refused for what had been done before.
    pub refusals: u64,
    /// The first of these, as they were told.
    pub refusal_texts: Vec<String>,
    /// What is wrong: the first of it.
    pub faults: Vec<String>,
}

impl SoakTally {
    /// Deeds of all kinds.
    pub fn actions_count(&self) -> u64 {
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
