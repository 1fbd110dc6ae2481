//! Huge pages in paged memory: units of 2 MiB with all of their pages become huge pages while the program discards,
//! moves, protects and forks parts of them. Units with missing pages never become huge pages.

use std::os::fd::AsFd as _;
use std::time::Duration;

use farfork_fork::huge_pages::HugePageCollapser;
use farfork_fork::pager::{PagingMode, PagingStrategy};
use farfork_sys::huge_page::{HUGE_PAGE_BYTES, collapse_huge_page};
use farfork_sys::pidfd;
use farfork_sys::process_identity::ProcessIdentity;

use crate::bed::{Program, soon};
use crate::scenarios::{PAGES, with_program};
use crate::seed::AREA;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("memory_is_correct_while_huge_pages_are_made", memory_is_correct_while_huge_pages_are_made),
    ("a_huge_page_is_not_made_of_missing_pages", a_huge_page_is_not_made_of_missing_pages),
];

/// Limit for one round: a scan of all memory, and the collapses that follow.
const ROUND_LIMIT: Duration = Duration::from_millis(100);

fn tender_of(program: &Program) -> HugePageCollapser {
    let identity = ProcessIdentity::of(program.process.id().cast_signed()).expect("the program runs");
    HugePageCollapser::open(identity).expect("a program of ours").expect("it runs")
}

fn memory_is_correct_while_huge_pages_are_made() {
    with_program("mix_sizes", PagingStrategy::default(), |stage| {
        stage.program.meet();
        let mut huge_page_collapser = tender_of(&stage.program);
        soon("a huge page", || (huge_page_collapser.run_round(ROUND_LIMIT).unwrap() > 0).then_some(()));
        stage.program.let_go();
        while !stage.program.has_ended() {
            huge_page_collapser.run_round(ROUND_LIMIT).unwrap();
        }
    });
}

/// Requests huge pages from the kernel continuously. The program checks every byte.
fn a_huge_page_is_not_made_of_missing_pages() {
    let strategy = PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() };
    with_program("touch_at_random", strategy, |stage| {
        let pid = stage.program.process.id().cast_signed();
        let (process, end) = (pidfd::open(pid).unwrap(), AREA + PAGES * 4096);
        while !stage.program.has_ended() {
            for unit in (AREA..end).step_by(HUGE_PAGE_BYTES as usize) {
                // Zero pages of a unit are the shared zero page, which cannot be part of a huge page. The program may
                // already have ended.
                let is_huge = collapse_huge_page(process.as_fd(), unit);
                assert!(!matches!(is_huge, Ok(true)), "{unit:#x} has missing pages");
            }
        }
    });
}
