//! `BudgetView`: the memory budget of a node in JSON output.

use farfork_api::v1::MemoryBudget;
use serde::Serialize;

/// The API documents the fields.
#[derive(Debug, Serialize)]
pub(crate) struct BudgetView {
    pub(crate) seeds_bytes: u64,
    /// Null if unlimited.
    pub(crate) seeds_bytes_max: Option<u64>,
    pub(crate) children_bytes: u64,
    pub(crate) children_bytes_max: Option<u64>,
}

impl From<MemoryBudget> for BudgetView {
    fn from(budget: MemoryBudget) -> Self {
        let bound = |bytes: u64| (bytes > 0).then_some(bytes);
        Self {
            seeds_bytes: budget.seeds_bytes,
            seeds_bytes_max: bound(budget.seeds_bytes_max),
            children_bytes: budget.children_bytes,
            children_bytes_max: bound(budget.children_bytes_max),
        }
    }
}
