//! Children of a seed that has the working set of earlier children. Each test is one scenario.

use farfork_fork::pager::{MemoryPlan, PagerCounters, PagingMode, PagingStrategy, PrewarmProgress, PrewarmState};
use farfork_wire::PAGE_SIZE;

use crate::bed::{AdoptedProgram, Bed, Program, soon};
use crate::seed::start_on_host;
use crate::series::Series;

/// Pages of the programs: 64 MiB. `touch_sparsely` touches a twentieth of them, at random.
const PAGES: u64 = 16 << 10;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("a_recorded_set_saves_nine_faults_in_ten", || spares_nine_in_ten(one_by_one())),
    ("a_set_recorded_with_readahead_saves_nine_faults_in_ten", || spares_nine_in_ten(PagingStrategy::default())),
    ("the_first_pages_of_a_set_arrive_before_the_child_starts", first_pages_arrive_before_the_child),
    ("a_child_that_never_starts_is_removed_with_its_early_pages", child_with_early_pages_never_starts),
    ("a_cow_child_gets_no_set", cow_child_gets_no_set),
    ("a_child_that_ignores_the_set_gets_none_and_reports_none", child_that_ignores_the_set_gets_none),
    ("a_set_is_used_on_the_host_of_the_owner", a_set_is_used_on_the_host_of_the_owner),
    ("the_pages_of_a_set_are_read_from_the_cache", the_pages_of_a_set_are_read_from_the_cache),
    ("a_node_is_prewarmed_before_its_first_child", a_node_is_warmed_up),
    ("a_dropped_seed_prewarms_nothing", a_dropped_seed_prewarms_nothing),
    ("a_set_is_fetched_while_memory_is_discarded", || go_on_with_a_set("discard")),
    ("a_set_is_fetched_while_memory_is_unmapped", || go_on_with_a_set("unmap")),
    ("a_set_is_fetched_while_memory_is_moved", || go_on_with_a_set("remap")),
    ("a_set_is_fetched_while_the_child_forks", || go_on_with_a_set("fork")),
    ("a_set_is_fetched_under_all_operations_at_once", || go_on_with_a_set("chaos")),
];

/// Scenarios of `make test-long`: their children race against the arrival of sets, so the result depends on the load of
/// the machine.
pub(crate) const LONG: &[(&str, fn())] = &[
    ("a_recorded_set_saves_nine_faults_in_ten_of_an_immediate_child", || {
        saves_faults_of_an_immediate_child(one_by_one(), 10)
    }),
    ("a_set_recorded_with_readahead_saves_half_of_an_immediate_child", || {
        saves_faults_of_an_immediate_child(PagingStrategy::default(), 2)
    }),
];

fn one_by_one() -> PagingStrategy {
    PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }
}

impl Series {
    /// Runs a program to its end, and waits until its seed has received a report about it.
    fn run(&self, scenario: &str, strategy: PagingStrategy) -> PagerCounters {
        let counters = self.run_to_end(scenario, strategy);
        let ended = self.seed.children_told();
        soon("a report", || (self.seed.children_told() > ended || self.seed.set_pages() > 0).then_some(()));
        counters
    }

    /// Waits until a program's set, without the pages on trial, has arrived. The program then touches a twentieth of
    /// its memory, and runs to its end.
    fn run_recalling(&self, plan: &MemoryPlan) -> PagerCounters {
        let mut program = self.bed.start("pause_then_touch_sparsely", PAGES, plan);
        program.meet();
        let (set, stats) = (self.seed.set_pages(), || self.bed.stats(&program).counters);
        soon("the set", || {
            let counters = stats();
            (counters.pages_fetched + counters.pages_cached >= set - set / 16).then_some(())
        });
        program.let_go();
        program.meet();
        program.let_go();
        self.end(program)
    }
}

fn spares_nine_in_ten(first: PagingStrategy) {
    let series = Series::new(PAGES);
    let first = series.run_for_whole_set(first);
    let next = series.run_recalling(&series.plan(PagingStrategy::default()));
    assert!(10 * next.faults_missing <= first.faults_missing, "{first:?}\n{next:?}");
    assert!(next.pages_fetched <= first.pages_fetched + first.pages_fetched / 4, "{first:?}\n{next:?}");
    series.bed.end();
}

/// Checks that with a set at most one fault in `part` remains, for a child that does not wait for its set. A page of
/// the set that is touched before it has arrived is fetched along with the pages that were touched after it. The set
/// has no order for pages that were only fetched.
fn saves_faults_of_an_immediate_child(first: PagingStrategy, part: u64) {
    let series = Series::new(PAGES);
    let first = series.run_for_whole_set(first);
    let next = series.run_at_once(series.adopt_early());
    assert!(part * next.faults_missing <= first.faults_missing, "{first:?}\n{next:?}");
    assert!(next.pages_fetched <= first.pages_fetched + first.pages_fetched / 4, "{first:?}\n{next:?}");
    series.bed.end();
}

/// Number of pages of a set that are fetched before its child has started: half a MiB.
const EARLY_PAGES: u64 = 128;

impl Series {
    /// Runs a first child, and waits until its seed knows all pages that the child got.
    fn run_for_whole_set(&self, strategy: PagingStrategy) -> PagerCounters {
        let first = self.run("touch_sparsely", strategy);
        soon("a whole set", || (self.seed.set_pages() >= first.pages_fetched).then_some(()));
        first
    }

    /// Makes the pager adopt a child with a known set, and waits until its first pages have arrived.
    fn adopt_early(&self) -> AdoptedProgram {
        let adopted = self.bed.adopt(&self.plan(PagingStrategy::default()));
        soon("the first pages", || {
            let counters = self.bed.client.stats(&adopted.id).expect("the pager knows it").counters;
            (counters.bytes_fetched >= EARLY_PAGES * PAGE_SIZE).then_some(())
        });
        adopted
    }

    /// Starts a program when the first pages of its set have arrived, and runs it to its end, without waiting for the
    /// other pages.
    fn run_at_once(&self, adopted: AdoptedProgram) -> PagerCounters {
        let mut program = Program::begin("touch_sparsely", PAGES, adopted);
        program.meet();
        program.let_go();
        self.end(program)
    }
}

fn first_pages_arrive_before_the_child() {
    let series = Series::new(PAGES);
    series.run_for_whole_set(one_by_one());
    let child = series.adopt_early();
    let early = series.bed.client.stats(&child.id).expect("the pager knows it").counters;
    assert_eq!((early.pages_fetched, early.bytes_fetched), (0, EARLY_PAGES * PAGE_SIZE), "and no more: {early:?}");
    series.run_at_once(child);
    series.bed.end();
}

fn child_with_early_pages_never_starts() {
    let series = Series::new(PAGES);
    series.run_for_whole_set(one_by_one());
    // End the adoption: close the child's socket.
    drop(series.adopt_early());
    let children = || series.bed.client.list_children().expect("the pager answers");
    soon("the end of a child that never started", || children().is_empty().then_some(()));
    series.run("touch_sparsely", PagingStrategy::default());
    series.bed.end();
}

fn cow_child_gets_no_set() {
    let series = Series::new(PAGES);
    let first = series.run("touch_sparsely", one_by_one());
    let next = series.run("touch_sparsely", one_by_one());
    assert_eq!(next.faults_missing, first.faults_missing, "each page was fetched on demand: {next:?}");
    series.bed.end();
}

fn child_that_ignores_the_set_gets_none() {
    let series = Series::new(PAGES);
    let like_the_first = |scenario, strategy: PagingStrategy| {
        series.run_to_end(scenario, PagingStrategy { ignores_working_set: true, ..strategy })
    };
    like_the_first("touch_in_order", PagingStrategy::default());
    let first = series.run("touch_sparsely", one_by_one());
    soon("a set", || (series.seed.set_pages() >= first.faults_missing).then_some(()));
    assert_eq!(series.seed.set_pages(), first.faults_missing, "a child that touched all of its set sends no report");
    // Only pages of a set arrive before the first fault. A later child gets its whole set meanwhile.
    let plan = series.plan(PagingStrategy { ignores_working_set: true, ..PagingStrategy::default() });
    let mut child = series.bed.start("pause_then_touch_sparsely", PAGES, &plan);
    child.meet();
    series.run_recalling(&series.plan(PagingStrategy::default()));
    let early = series.bed.stats(&child).counters;
    assert_eq!((early.bytes_fetched, early.pages_cached), (0, 0), "the child gets no set: {early:?}");
    child.let_go();
    child.meet();
    child.let_go();
    series.end(child);
    series.bed.end();
}

fn a_set_is_used_on_the_host_of_the_owner() {
    let series = Series::new(PAGES);
    let first = series.run("touch_sparsely", one_by_one());
    soon("a set", || (series.seed.set_pages() >= first.faults_missing).then_some(()));
    let owner = start_on_host(&series.bed.dir.path().join("owner.sock"), &series.seed);
    let next = series.run_recalling(&series.seed.plan(owner.address(), PagingStrategy::default()));
    assert!(10 * next.faults_missing <= first.faults_missing, "{first:?}\n{next:?}");
    assert_eq!(next.pages_same_host, next.pages_fetched, "{next:?}");
    series.bed.end();
}

fn the_pages_of_a_set_are_read_from_the_cache() {
    let series = Series::new(PAGES);
    series.run("touch_sparsely", PagingStrategy { uses_cache: true, ..one_by_one() });
    soon("a set", || (series.seed.set_pages() > 0).then_some(()));
    let strategy = PagingStrategy { uses_cache: true, ..PagingStrategy::default() };
    let next = series.run_recalling(&series.plan(strategy));
    assert!(next.pages_cached > 0 && 10 * next.faults_cached <= next.pages_cached, "{next:?}");
    series.bed.end();
}

impl Series {
    /// Prewarms this node for the seed.
    fn warm_up(&self) -> PrewarmProgress {
        let dir = self.bed.dir.path().join("warm");
        std::fs::create_dir_all(&dir).expect("a directory");
        self.plan(PagingStrategy::default()).write(&dir).expect("a plan");
        soon("a warm cache", || {
            let progress = self.bed.client.prewarm(&self.seed.id, &dir).expect("the pager answers");
            (progress.state != PrewarmState::Running).then_some(progress)
        })
    }
}

fn a_node_is_warmed_up() {
    let mut series = Series::new(PAGES);
    assert_eq!(
        series.warm_up(),
        PrewarmProgress { set_pages: 0, cached_pages: 0, state: PrewarmState::Done },
        "there is no set yet"
    );
    let first = series.run("touch_sparsely", one_by_one());
    soon("a set", || (series.seed.set_pages() >= first.faults_missing).then_some(()));
    series.bed.end();
    series.bed = Bed::new();

    let pages = series.seed.set_pages();
    assert_eq!(series.warm_up(), PrewarmProgress { set_pages: pages, cached_pages: pages, state: PrewarmState::Done });
    assert_eq!(series.bed.client.cache_stats().expect("the pager answers").pages, pages);
    let next = series.run("touch_sparsely", one_by_one());
    assert_eq!((next.pages_fetched, next.faults_missing, next.pages_cached), (0, 0, pages), "{next:?}");
    series.bed.end();
}

fn a_dropped_seed_prewarms_nothing() {
    let series = Series::new(PAGES);
    series.run("touch_sparsely", one_by_one());
    series.owner.drop_seed();
    let progress = series.warm_up();
    assert!(matches!(progress.state, PrewarmState::Failed(_)), "{progress:?}");
    assert_eq!(series.bed.client.cache_stats().expect("the pager answers").pages, 0);
    series.bed.end();
}

fn go_on_with_a_set(scenario: &str) {
    let series = Series::new(PAGES);
    series.run("touch_in_order", one_by_one());
    for _ in 0..2 {
        series.run(scenario, PagingStrategy::default());
    }
    series.bed.end();
}
