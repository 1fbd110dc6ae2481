//! Children whose seed remembers what earlier ones touched, one scenario a sentence.

use std::sync::Arc;

use farfork_fork::pager::{PagerCounters, Paging, Strategy, WarmProgress, WarmState};

use crate::bed::{Bed, soon};
use crate::seed::{Owner, Seed, start_on_host};

/// 64 MiB, of which `touch_sparsely` touches a twentieth, at random.
const PAGES: u64 = 16 << 10;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("a_recorded_set_spares_nine_faults_in_ten", || spares("touch_sparsely", one_by_one(), 10)),
    ("a_set_of_windows_spares_nine_faults_in_ten", || spares("touch_sparsely", Strategy::default(), 10)),
    ("a_set_of_a_run_spares_nine_faults_in_ten", || spares("touch_in_order", one_by_one(), 10)),
    // In which order the pages of a stream were touched nobody saw.
    ("a_set_of_a_stream_spares_three_faults_in_four", || spares("touch_at_random", Strategy::default(), 4)),
    ("who_asks_for_single_pages_gets_no_set", who_asks_for_single_pages_gets_none),
    ("a_set_is_found_on_the_owners_host", a_set_is_found_on_the_owners_host),
    ("a_set_comes_from_the_cache", a_set_comes_from_the_cache),
    ("a_node_is_warmed_up_before_its_first_child", a_node_is_warmed_up),
    ("a_dropped_seed_warms_up_nothing", a_dropped_seed_warms_up_nothing),
    ("a_set_under_discards", || go_on_with_a_set("discard")),
    ("a_set_under_unmaps", || go_on_with_a_set("unmap")),
    ("a_set_under_moves", || go_on_with_a_set("remap")),
    ("a_set_under_forks", || go_on_with_a_set("fork")),
    ("a_set_under_chaos", || go_on_with_a_set("chaos")),
];

fn one_by_one() -> Strategy {
    Strategy { paging: Paging::Cow, ..Strategy::default() }
}

/// A seed, its owner, and a node.
struct Stage {
    seed: Arc<Seed>,
    owner: Owner,
    bed: Bed,
}

impl Stage {
    fn new() -> Self {
        let seed = Seed::new(PAGES, false);
        Self { owner: Owner::start(&seed), seed, bed: Bed::new() }
    }

    /// Runs a program to its end, and waits until its seed knows what was seen of it.
    fn run(&self, scenario: &str, strategy: Strategy) -> PagerCounters {
        let mut program = self.bed.start(scenario, PAGES, &self.seed.plan(self.owner.address(), strategy));
        if scenario == "touch_sparsely" {
            program.meet();
            program.let_go();
        }
        program.expect_success();
        let counters = self.bed.stats(&program).counters;
        self.bed.finish(program);
        let ended = self.seed.children_told();
        soon("a report", || (self.seed.children_told() > ended || self.seed.set_pages() > 0).then_some(()));
        counters
    }
}

/// The next child has one of so many faults at most, and hardly more pages.
fn spares(scenario: &str, first: Strategy, of_faults: u64) {
    let stage = Stage::new();
    let first = stage.run(scenario, first);
    soon("a whole set", || (stage.seed.set_pages() >= first.pages_fetched.min(first.faults_missing)).then_some(()));
    let next = stage.run(scenario, Strategy::default());
    assert!(of_faults * next.faults_missing <= first.faults_missing, "{first:?}\n{next:?}");
    assert!(next.pages_fetched <= first.pages_fetched + first.pages_fetched / 4, "{first:?}\n{next:?}");
    stage.bed.end();
}

fn who_asks_for_single_pages_gets_none() {
    let stage = Stage::new();
    let first = stage.run("touch_sparsely", one_by_one());
    let next = stage.run("touch_sparsely", one_by_one());
    assert_eq!(next.faults_missing, first.faults_missing, "each page on demand: {next:?}");
    stage.bed.end();
}

fn a_set_is_found_on_the_owners_host() {
    let seed = Seed::new(PAGES, false);
    let bed = Bed::new();
    let owner = start_on_host(&bed.dir.path().join("owner.sock"), &seed);
    let run = |strategy| {
        let mut program = bed.start("touch_sparsely", PAGES, &seed.plan(owner.address(), strategy));
        program.meet();
        program.let_go();
        program.expect_success();
        let counters = bed.stats(&program).counters;
        bed.finish(program);
        counters
    };
    let first = run(one_by_one());
    soon("a set", || (seed.set_pages() >= first.faults_missing).then_some(()));
    let next = run(Strategy::default());
    assert!(10 * next.faults_missing <= first.faults_missing, "{first:?}\n{next:?}");
    bed.end();
}

fn a_set_comes_from_the_cache() {
    let stage = Stage::new();
    stage.run("touch_sparsely", Strategy { cache: true, ..one_by_one() });
    soon("a set", || (stage.seed.set_pages() > 0).then_some(()));
    let next = stage.run("touch_sparsely", Strategy { cache: true, ..Strategy::default() });
    assert!(next.pages_cached > 0 && 10 * next.faults_cached <= next.pages_cached, "{next:?}");
    stage.bed.end();
}

impl Stage {
    /// Has the set put into the cache of this node.
    fn warm_up(&self) -> WarmProgress {
        let dir = self.bed.dir.path().join("warm");
        std::fs::create_dir_all(&dir).expect("a directory");
        self.seed.plan(self.owner.address(), Strategy::default()).write(&dir).expect("a plan");
        soon("a warm cache", || {
            let progress = self.bed.client.prewarm(&self.seed.id, &dir).expect("the pager answers");
            (progress.state != WarmState::Underway).then_some(progress)
        })
    }
}

fn a_node_is_warmed_up() {
    let mut stage = Stage::new();
    assert_eq!(stage.warm_up(), WarmProgress { set_pages: 0, cached_pages: 0, state: WarmState::Done }, "no set yet");
    let first = stage.run("touch_sparsely", one_by_one());
    soon("a set", || (stage.seed.set_pages() >= first.faults_missing).then_some(()));
    stage.bed.end();
    stage.bed = Bed::new();

    let pages = stage.seed.set_pages();
    assert_eq!(stage.warm_up(), WarmProgress { set_pages: pages, cached_pages: pages, state: WarmState::Done });
    assert_eq!(stage.bed.client.cache().expect("the pager answers").pages, pages);
    let next = stage.run("touch_sparsely", one_by_one());
    assert_eq!((next.pages_fetched, next.faults_missing, next.pages_cached), (0, 0, pages), "{next:?}");
    stage.bed.end();
}

fn a_dropped_seed_warms_up_nothing() {
    let stage = Stage::new();
    stage.run("touch_sparsely", one_by_one());
    stage.owner.drop_seed();
    let progress = stage.warm_up();
    assert!(matches!(progress.state, WarmState::Failed(_)), "{progress:?}");
    assert_eq!(stage.bed.client.cache().expect("the pager answers").pages, 0);
    stage.bed.end();
}

fn go_on_with_a_set(scenario: &str) {
    let stage = Stage::new();
    stage.run("touch_in_order", one_by_one());
    for _ in 0..2 {
        stage.run(scenario, Strategy::default());
    }
    stage.bed.end();
}
