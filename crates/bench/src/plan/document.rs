//! The form of a plan. `validation` turns it into a [`BenchPlan`](super::BenchPlan).

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU64};

use serde::Deserialize;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanDocument {
    pub(super) inventory: Option<Spanned<String>>,
    pub(super) results: Option<String>,
    #[serde(default)]
    pub(super) defaults: StepDefaults,
    #[serde(default)]
    pub(super) sweep: BTreeMap<Spanned<String>, Vec<SweepValue>>,
    #[serde(default)]
    pub(super) sync: Vec<SyncDocument>,
    #[serde(default)]
    pub(super) steps: Vec<StepDocument>,
    #[serde(default)]
    pub(super) cleanup: Vec<StepDocument>,
}

/// `[defaults]`: values for steps that have none of their own.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepDefaults {
    pub(super) hosts: Option<Vec<Spanned<String>>>,
    pub(super) directory: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) environment: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(super) timeout_s: Option<NonZeroU64>,
    pub(super) retries: Option<u32>,
}

/// A value of a parameter.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a value of a parameter is a text or a number")]
pub(super) enum SweepValue {
    Text(String),
    Integer(i64),
    Float(f64),
}

/// `[[sync]]`: a file or directory that hosts get before the first step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SyncDocument {
    pub(super) from: Spanned<String>,
    pub(super) to: Spanned<String>,
    pub(super) hosts: Vec<Spanned<String>>,
}

/// `[[steps]]` and `[[cleanup]]`: one command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepDocument {
    pub(super) name: Spanned<String>,
    pub(super) command: Option<Vec<Spanned<String>>>,
    pub(super) experiment: Option<Vec<Spanned<String>>>,
    pub(super) hosts: Option<Vec<Spanned<String>>>,
    pub(super) directory: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) environment: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(super) after: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(super) once: bool,
    #[serde(default)]
    pub(super) one_by_one: bool,
    pub(super) ready: Option<Spanned<ReadyDocument>>,
    pub(super) timeout_s: Option<NonZeroU64>,
    pub(super) retries: Option<u32>,
}

/// `ready`: when the next steps may start although the command continues.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub(super) enum ReadyDocument {
    Line(String),
    Port(NonZeroU16),
    File(String),
}
