//! Settling children: the pager fetches the rest of their pages. Each test is one scenario.

use std::fs;
use std::time::Duration;

use farfork_fork::pager::{LOST_FILE, PagingMode, PagingStrategy, SETTLED_FILE, SettleState};

use crate::bed::soon;
use crate::scenarios::{Stage, with_program};
use crate::seed::Owner;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("a_settled_child_needs_neither_owner_nor_pager", needs_no_process),
    ("a_settled_child_has_no_registered_memory", is_left_to_the_kernel),
    ("a_settle_request_returns_the_settled_state", settle_request_returns_settled),
    ("a_settled_child_is_settled_for_the_next_pager", is_settled_for_the_next_pager),
    ("settling_continues_under_the_next_pager", continues_under_the_next_pager),
    ("a_failed_settle_does_no_harm", failure_does_no_harm),
    ("a_child_settles_while_memory_is_discarded", || settle_under("discard")),
    ("a_child_settles_while_memory_is_unmapped", || settle_under("unmap")),
    ("a_child_settles_while_memory_is_moved", || settle_under("remap")),
    ("a_child_settles_while_it_forks", || settle_under("fork")),
    ("a_child_settles_under_all_operations_at_once", || settle_under("chaos")),
];

impl Stage {
    fn settle(&self, begin: bool) -> SettleState {
        let pid = self.program.process.id() as i32;
        self.bed.client.settle(&self.program.id, begin, pid).expect("the pager answers").state
    }

    fn settle_to_the_end(&self) {
        self.settle(true);
        soon("a settled child", || match self.settle(false) {
            SettleState::Settled => Some(()),
            SettleState::Running => None,
            other => panic!("{other:?}"),
        });
    }

    /// Settles again if the owner did not reply within the limit, which may happen on a busy machine.
    fn settle_again_and_again(&self) {
        soon("a settled child", || match self.settle(true) {
            SettleState::Settled => Some(()),
            SettleState::Running => None,
            SettleState::Failed(reason) if reason.contains("cannot be reached") => None,
            other => panic!("{other:?}"),
        });
    }

    /// Returns the number of mappings that are registered with a userfaultfd for missing pages (`um` in VmFlags of
    /// proc_pid_smaps(5)).
    fn registered_areas(&self) -> usize {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.program.process.id())).expect("it lives");
        smaps.lines().filter(|line| line.starts_with("VmFlags:") && line.contains(" um")).count()
    }
}

fn one_by_one() -> PagingStrategy {
    PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }
}

fn needs_no_process() {
    with_program("pause_between", one_by_one(), |stage| {
        stage.program.meet();
        stage.settle_to_the_end();
        let counters = stage.bed.stats(&stage.program).counters;
        assert_eq!(counters.pages_fetched, stage.seed.populated_pages(), "each page is fetched once: {counters:?}");
        assert_eq!(counters.faults, 1, "no thread waited for a settled page: {counters:?}");
        stage.owner = None;
        stage.bed.kill_all();
        stage.bed.start_pager();
        assert!(!stage.program.dir.join(LOST_FILE).exists(), "nothing is lost");
        stage.program.let_go();
        stage.program.expect_success();
    });
}

fn is_left_to_the_kernel() {
    with_program("pause_between", one_by_one(), |stage| {
        stage.program.meet();
        assert!(stage.registered_areas() > 0, "smaps shows registered mappings");
        stage.settle_to_the_end();
        assert_eq!(stage.registered_areas(), 0);
        stage.program.let_go();
        stage.program.expect_success();
        assert_eq!(stage.bed.stats(&stage.program).counters.faults, 1, "the kernel itself provides zeroes");
    });
}

fn settle_request_returns_settled() {
    with_program("pause_between", one_by_one(), |stage| {
        stage.program.meet();
        stage.settle(true);
        soon("the settled file", || stage.program.dir.join(SETTLED_FILE).exists().then_some(()));
        assert!(stage.registered_areas() > 0, "the state was not requested yet");
        assert_eq!(stage.settle(true), SettleState::Settled);
        assert_eq!(stage.registered_areas(), 0);
        stage.program.let_go();
        stage.program.expect_success();
    });
}

fn is_settled_for_the_next_pager() {
    with_program("pause_between", one_by_one(), |stage| {
        stage.program.meet();
        stage.settle(true);
        soon("the settled file", || stage.program.dir.join(SETTLED_FILE).exists().then_some(()));
        stage.bed.kill_pager();
        stage.owner = None;
        // The state was not requested again, so all mappings are still registered.
        assert!(stage.registered_areas() > 0);
        stage.program.let_go();
        stage.program.expect_success();
        assert_eq!(stage.settle(false), SettleState::Settled);
    });
}

fn continues_under_the_next_pager() {
    with_program("pause_between", one_by_one(), |stage| {
        stage.program.meet();
        stage.settle(true);
        stage.bed.kill_pager();
        soon("a settled child", || (stage.settle(false) == SettleState::Settled).then_some(()));
        stage.owner = None;
        stage.program.let_go();
        stage.program.expect_success();
    });
}

fn failure_does_no_harm() {
    // Long enough for the program's first pages even on a busy machine.
    let strategy = PagingStrategy { unreachable_timeout: Duration::from_secs(3), ..one_by_one() };
    with_program("pause_between", strategy, |stage| {
        stage.program.meet();
        let address = stage.owner.take().expect("an owner").socket_address();
        stage.settle(true);
        let failed = soon("a failure", || Some(stage.settle(false)).filter(|state| *state != SettleState::Running));
        assert!(matches!(&failed, SettleState::Failed(reason) if reason.contains("cannot be reached")), "{failed:?}");
        assert_eq!(stage.bed.stats(&stage.program).loss_reason, None, "no lost page was touched");
        stage.owner = Some(Owner::restart(address, &stage.seed, true));
        stage.settle_again_and_again();
        stage.program.let_go();
        stage.program.expect_success();
    });
}

fn settle_under(scenario: &str) {
    with_program(scenario, one_by_one(), |stage| {
        soon("its beginning", || (stage.bed.stats(&stage.program).counters.faults > 0).then_some(()));
        while !stage.program.has_ended() {
            let state = stage.settle(false);
            if state == SettleState::Idle {
                stage.settle(true);
            }
        }
        stage.program.expect_success();
        assert_eq!(stage.bed.stats(&stage.program).loss_reason, None);
    });
}
