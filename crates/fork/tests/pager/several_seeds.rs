//! Children with pages from several seeds. Each test is one scenario.

use std::collections::BTreeSet;
use std::sync::Arc;

use farfork_fork::pager::{
    LOST_FILE, MemoryPlan, PageSource, PagingMode, PagingStrategy, PopulatedExtent, PopulatedRun, SettleState,
};
use farfork_wire::{SeedId, Token};

use crate::bed::{Bed, Program, soon};
use crate::seed::{Owner, StreamPace, TestSeed, is_populated};

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("pages_of_several_seeds_come_from_their_owners", from_owners),
    ("pages_of_several_seeds_are_fetched_one_by_one", one_by_one),
    ("pages_of_several_seeds_arrive_under_all_operations_at_once", under_chaos),
    ("pages_of_several_seeds_arrive_while_pagers_are_killed", while_pagers_die),
    ("a_child_of_several_seeds_settles", settles),
    ("the_loss_of_one_seed_affects_no_other", || one_is_lost(|several| several.parts[1].owner.drop_seed())),
    ("a_seed_that_is_reported_as_lost_is_not_requested", || one_is_lost(report_lost)),
    ("eight_streams_share_the_bandwidth", eight_streams_are_fair),
];

const PAGES: u64 = 4096;

/// A seed that serves some of the pages, and its owner. The other seed has the same pages, but they must not be
/// requested from it.
struct Part {
    seed: Arc<TestSeed>,
    owner: Owner,
}

struct Several {
    bed: Bed,
    parts: [Part; 2],
    plan: MemoryPlan,
    /// Number of populated pages of the second seed.
    of_second: u64,
}

impl Several {
    fn new(strategy: PagingStrategy, is_of_second: impl Fn(u64) -> bool) -> Self {
        let part = |id: &str, token: u8, picked: &dyn Fn(u64) -> bool| {
            let id: SeedId = id.parse().unwrap();
            let served: BTreeSet<u64> = (0..PAGES).filter(|page| picked(*page)).collect();
            let seed = TestSeed::part(id, Token::from_bytes([token; 16]), PAGES, served);
            Part { owner: Owner::start(&seed), seed }
        };
        let first = part("n1.s00000000000000aa", 1, &|page| !is_of_second(page));
        let second = part("n1.s00000000000000bb", 2, &is_of_second);
        let mut plan = first.seed.plan(first.owner.address(), strategy);
        let seed = second.seed.id.clone();
        plan.sources.push(PageSource { seed, token: second.seed.token, owner: second.owner.address() });
        for extent in &mut plan.extents {
            *extent = split(extent, &is_of_second);
        }
        let of_it = |run: &PopulatedRun| if run.origin.source == 1 { run.count } else { 0 };
        let of_second = plan.extents.iter().flat_map(|extent| &extent.populated).map(of_it).sum();
        Self { bed: Bed::new(), parts: [first, second], plan, of_second }
    }

    fn start(&self, scenario: &str) -> Program {
        self.bed.start(scenario, PAGES, &self.plan)
    }

    fn finish(self, program: Program) {
        self.bed.finish(program);
        self.bed.end();
    }

    /// Checks that each page was fetched once, from the right seed.
    fn check_counts(&self, program: &Program) {
        let counters = self.bed.stats(program).counters;
        let all = self.parts[0].seed.populated_pages();
        assert_eq!((counters.pages_fetched, counters.pages_inherited), (all, self.of_second), "{counters:?}");
        assert_eq!(counters.bytes_fetched, all * 4096);
    }
}

/// Splits the runs of an extent where their source changes.
fn split(extent: &PopulatedExtent, is_of_second: &impl Fn(u64) -> bool) -> PopulatedExtent {
    let mut populated: Vec<PopulatedRun> = Vec::new();
    for run in &extent.populated {
        for ahead in 0..run.count {
            let mut one = PopulatedRun { first: run.first + ahead, count: 1, origin: run.origin };
            one.origin.page += ahead;
            one.origin.source = u32::from(is_of_second(one.first));
            match populated.last_mut() {
                Some(last) if last.first + last.count == one.first && last.origin.source == one.origin.source => {
                    last.count += 1;
                }
                _ => populated.push(one),
            }
        }
    }
    PopulatedExtent { id: extent.id, populated }
}

/// Assigns pages to the two seeds in long and short runs.
fn mixed(page: u64) -> bool {
    if page < PAGES / 2 { page % 3 == 1 } else { (page / 100).is_multiple_of(2) }
}

fn cow() -> PagingStrategy {
    PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }
}

fn from_owners() {
    let several = Several::new(PagingStrategy::default(), mixed);
    let mut program = several.start("touch_at_random");
    program.expect_success();
    several.check_counts(&program);
    several.finish(program);
}

fn one_by_one() {
    let several = Several::new(cow(), mixed);
    let mut program = several.start("touch_in_order");
    program.expect_success();
    several.check_counts(&program);
    several.finish(program);
}

fn under_chaos() {
    let several = Several::new(PagingStrategy::default(), mixed);
    let program = several.start("chaos");
    several.finish(program);
}

fn while_pagers_die() {
    let several = Several::new(cow(), mixed);
    let mut program = several.start("touch_at_random");
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        if !program.has_ended() {
            several.bed.kill_pager();
        }
    }
    several.finish(program);
}

fn settles() {
    let several = Several::new(cow(), mixed);
    let mut program = several.start("pause_between");
    program.meet();
    let pid = program.process.id() as i32;
    several.bed.client.settle(&program.id, true, pid).expect("the pager answers");
    soon("a settled child", || {
        let state = several.bed.client.settle(&program.id, false, pid).expect("the pager answers").state;
        (state == SettleState::Settled).then_some(())
    });
    several.check_counts(&program);
    several.parts.iter().for_each(|part| part.owner.drop_seed());
    program.let_go();
    several.finish(program);
}

/// Reports the second seed as lost, although its owner still serves it.
fn report_lost(several: &Several) {
    several.bed.client.lose_seed(&several.parts[1].seed.id, "its node has left").expect("the pager answers");
}

/// One of two seeds is lost. Pages of the first seed can still be read. Pages of the second cannot, and the reported
/// reason names the second seed.
fn one_is_lost(lose: fn(&Several)) {
    let several = Several::new(cow(), |page| page >= PAGES / 2);
    let mut program = several.start("stay");
    program.meet();
    lose(&several);
    let id = several.parts[1].seed.id.to_string();
    let read = |page: u64| {
        let mut bytes = vec![0; 4096];
        let address = crate::seed::AREA + page * 4096;
        let count = farfork_sys::process_memory::read_process(program.process.id() as i32, address, &mut bytes);
        count.ok().filter(|count| *count == 4096).map(|_| bytes)
    };
    assert_eq!(read(40), Some(crate::seed::contents(40)));
    assert_eq!(read(PAGES / 2 + 3), None, "a page of the seed that is gone");
    assert_eq!(read(50), Some(crate::seed::contents(50)), "the other seed is still readable");
    let loss_text = std::fs::read_to_string(program.dir.join(LOST_FILE)).expect("the file `lost` exists");
    assert!(loss_text.contains(&id), "{loss_text}");
    assert_eq!(several.bed.stats(&program).loss_reason.as_deref(), Some(loss_text.trim_end()));
    program.end();
    several.finish(program);
}

/// Children of different seeds fetch all of their memory at the same time. No stream may get its last page before each
/// other stream has a fair part. An owner whose stream is that far ahead waits for the others, so that the order does not
/// depend on the time that the threads of the owners get. A pager that starves a stream lets this wait run out.
fn eight_streams_are_fair() {
    const STREAMS: usize = 8;
    /// Number of pages of each seed.
    const PAGES: u64 = 1024;
    const SIGSTOP: i32 = 19;
    const SIGCONT: i32 = 18;
    let populated = (0..PAGES).filter(|page| is_populated(*page)).count() as u64;
    let pace = StreamPace::new(STREAMS, populated - populated / 4);
    let seeds: Vec<_> = (0..STREAMS).map(|stream| TestSeed::paced(id_of(stream), PAGES, &pace, stream)).collect();
    let owners: Vec<_> = seeds.iter().map(Owner::start).collect();
    let bed = Bed::new();
    let start =
        |(seed, owner): (&Arc<TestSeed>, &Owner)| bed.start("pause_between", PAGES, &seed.plan(owner.address(), cow()));
    let mut programs: Vec<Program> = seeds.iter().zip(&owners).map(start).collect();
    programs.iter_mut().for_each(Program::meet);

    let settle = |program: &Program, begin: bool| {
        let pid = program.process.id() as i32;
        bed.client.settle(&program.id, begin, pid).expect("the pager answers").state
    };
    // The pager is stopped until all streams are requested.
    let pager = farfork_sys::pidfd::open(bed.processes().1).expect("the pager lives");
    farfork_sys::pidfd::send_signal(&pager, SIGSTOP).expect("the pager lives");
    std::thread::scope(|scope| {
        programs.iter().for_each(|program| drop(scope.spawn(|| settle(program, true))));
        std::thread::sleep(std::time::Duration::from_secs(1));
        farfork_sys::pidfd::send_signal(&pager, SIGCONT).expect("the pager lives");
    });
    let is_settled = |program: &Program| settle(program, false) == SettleState::Settled;
    soon("all settled children", || programs.iter().all(is_settled).then_some(()));
    assert_eq!(pace.starved(), None, "pages of each stream when the wait for the slowest one ran out");
    for mut program in programs {
        assert_eq!(bed.stats(&program).counters.pages_fetched, populated, "{}", program.id);
        program.let_go();
        bed.finish(program);
    }
    bed.end();
}

fn id_of(number: usize) -> SeedId {
    format!("n1.s{number:016x}").parse().expect("an id")
}
