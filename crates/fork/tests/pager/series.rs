//! A series of children of one seed, one after the other on one node.

use std::sync::Arc;

use farfork_fork::pager::{MemoryPlan, PagerCounters, PagingStrategy};

use crate::bed::{Bed, Program};
use crate::seed::{Owner, TestSeed};

/// The seed, its owner, and the node.
pub(crate) struct Series {
    pub(crate) seed: Arc<TestSeed>,
    pub(crate) owner: Owner,
    pub(crate) bed: Bed,
    pages: u64,
}

impl Series {
    /// Creates a series with a seed of this many pages.
    pub(crate) fn new(pages: u64) -> Self {
        let seed = TestSeed::new(pages, false);
        Self { owner: Owner::start(&seed), seed, bed: Bed::new(), pages }
    }

    /// Returns the plan of a child that gets its pages from the owner.
    pub(crate) fn plan(&self, strategy: PagingStrategy) -> MemoryPlan {
        self.seed.plan(self.owner.address(), strategy)
    }

    /// Runs a program to its end. Returns the counters of the pager's work for it.
    pub(crate) fn run_to_end(&self, scenario: &str, strategy: PagingStrategy) -> PagerCounters {
        let mut program = self.bed.start(scenario, self.pages, &self.plan(strategy));
        if scenario == "touch_sparsely" {
            program.meet();
            program.let_go();
        }
        self.end(program)
    }

    /// Waits until a program has succeeded. Returns the counters of the pager's work for it.
    pub(crate) fn end(&self, mut program: Program) -> PagerCounters {
        program.expect_success();
        let counters = self.bed.stats(&program).counters;
        self.bed.finish(program);
        counters
    }
}
