//! `ZygotesView`: the zygotes of a node in JSON output.

use farfork_api::v1::ZygoteUse;
use serde::Serialize;

/// The API documents the fields.
#[derive(Debug, Serialize)]
pub(crate) struct ZygotesView {
    pub(crate) kept: u32,
    pub(crate) kept_max: u32,
    pub(crate) children: u64,
    pub(crate) stood_by: u64,
    pub(crate) foretold: u64,
    pub(crate) foretold_used: u64,
}

impl From<ZygoteUse> for ZygotesView {
    fn from(zygotes: ZygoteUse) -> Self {
        let ZygoteUse { kept, kept_max, children, stood_by, foretold, foretold_used } = zygotes;
        Self { kept, kept_max, children, stood_by, foretold, foretold_used }
    }
}
