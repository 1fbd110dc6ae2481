//! Children that find pages of an earlier child in their node's cache. Each test is one scenario.

use farfork_fork::pager::{CacheStats, PagingMode, PagingStrategy, SettleState};
use farfork_wire::Token;

use crate::bed::{Bed, soon};
use crate::scenarios::PAGES;
use crate::seed::{TestSeed, start_on_host};
use crate::series::Series;

/// Size limit of a small cache: 128 pages, a fourteenth of the seed's pages.
const SMALL_BYTES: u64 = 512 << 10;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("the_next_child_fetches_no_page_over_the_network", || check_next_child_without_network(PagingMode::Prefetch)),
    ("the_next_cow_child_fetches_no_page_over_the_network", || check_next_child_without_network(PagingMode::Cow)),
    ("a_settling_child_uses_the_cache", a_settling_child_uses_the_cache),
    ("a_child_without_the_cache_strategy_does_not_use_the_cache", unused_cache_stays_unused),
    ("a_full_cache_continues_to_work", a_full_cache_continues_to_work),
    ("a_cache_with_limit_zero_keeps_nothing", limit_zero_keeps_nothing),
    ("pages_of_a_dropped_seed_leave_the_cache", dropped_seeds_leave),
    ("a_wrong_token_reads_no_cached_page", wrong_tokens_open_nothing),
    ("pages_of_the_same_host_are_not_cached", same_host_is_not_cached),
    ("the_next_pager_starts_with_an_empty_cache", next_pager_begins_without),
    ("cached_memory_is_discarded", || run_from_cache("discard")),
    ("cached_memory_is_unmapped", || run_from_cache("unmap")),
    ("cached_memory_is_moved", || run_from_cache("remap")),
    ("cached_memory_is_forked", || run_from_cache("fork")),
    ("cached_memory_works_under_all_operations_at_once", || run_from_cache("chaos")),
];

fn cached(paging: PagingMode) -> PagingStrategy {
    PagingStrategy { mode: paging, uses_cache: true, ..PagingStrategy::default() }
}

impl Series {
    fn cache(&self) -> CacheStats {
        self.bed.client.cache_stats().expect("the pager answers")
    }
}

fn check_next_child_without_network(paging: PagingMode) {
    let series = Series::new(PAGES);
    let populated = series.seed.populated_pages();
    let first = series.run_to_end("touch_at_random", cached(paging));
    assert_eq!((first.pages_fetched, first.pages_cached), (populated, 0), "{first:?}");
    let next = series.run_to_end("touch_at_random", cached(paging));
    assert_eq!((next.pages_fetched, next.bytes_fetched, next.round_trips), (0, 0, 0), "{next:?}");
    assert_eq!((next.pages_cached, next.faults_missing, next.faults_late), (populated, 0, 0), "{next:?}");
    assert_eq!(next.faults_cached + next.faults_zero, next.faults, "each fault is of one kind: {next:?}");
    let stats = series.cache();
    assert_eq!((stats.pages, stats.hits, stats.misses, stats.seeds), (populated, populated, populated, 1), "{stats:?}");
    assert!(stats.bytes >= populated * 4096 && stats.bytes <= stats.bytes_max, "{stats:?}");
    series.bed.end();
}

fn unused_cache_stays_unused() {
    let series = Series::new(PAGES);
    series.run_to_end("touch_at_random", PagingStrategy::default());
    assert_eq!(series.cache().pages, 0, "pages of a child without the strategy `cache` are not cached");
    series.run_to_end("touch_at_random", cached(PagingMode::Cow));
    let next =
        series.run_to_end("touch_at_random", PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() });
    assert_eq!((next.pages_cached, next.pages_fetched), (0, series.seed.populated_pages()), "{next:?}");
    series.bed.end();
}

fn a_settling_child_uses_the_cache() {
    let series = Series::new(PAGES);
    series.run_to_end("touch_in_order", cached(PagingMode::Prefetch));
    let mut program = series.bed.start("stay", PAGES, &series.plan(cached(PagingMode::Cow)));
    program.meet();
    let (id, pid) = (program.id.clone(), program.process.id() as i32);
    let settle = |begin| series.bed.client.settle(&id, begin, pid).expect("the pager answers").state;
    settle(true);
    soon("a settled child", || (settle(false) == SettleState::Settled).then_some(()));
    let counters = series.bed.stats(&program).counters;
    assert_eq!((counters.bytes_fetched, counters.pages_cached), (0, series.seed.populated_pages()), "{counters:?}");
    program.end();
    series.bed.finish(program);
    series.bed.end();
}

fn a_full_cache_continues_to_work() {
    let series = Series::new(PAGES);
    series.bed.client.set_cache_limit(SMALL_BYTES).expect("the pager answers");
    for scenario in ["touch_in_order", "touch_at_random", "touch_at_random"] {
        let counters = series.run_to_end(scenario, cached(PagingMode::Prefetch));
        assert_eq!(counters.pages_fetched + counters.pages_cached, series.seed.populated_pages(), "{counters:?}");
        let stats = series.cache();
        assert_eq!((stats.bytes, stats.bytes_max), (SMALL_BYTES, SMALL_BYTES), "{stats:?}");
        assert!(stats.evictions > 0 && stats.pages <= SMALL_BYTES / 4096, "{stats:?}");
    }
    series.bed.end();
}

fn limit_zero_keeps_nothing() {
    let series = Series::new(PAGES);
    series.bed.client.set_cache_limit(0).expect("the pager answers");
    for _ in 0..2 {
        let counters = series.run_to_end("touch_at_random", cached(PagingMode::Prefetch));
        assert_eq!((counters.pages_fetched, counters.pages_cached), (series.seed.populated_pages(), 0), "{counters:?}");
    }
    assert_eq!((series.cache().bytes, series.cache().pages), (0, 0));
    series.bed.end();
}

fn dropped_seeds_leave() {
    let series = Series::new(PAGES);
    series.run_to_end("touch_at_random", cached(PagingMode::Prefetch));
    assert_eq!(series.cache().pages, series.seed.populated_pages());
    series.owner.drop_seed();
    soon("an empty cache", || (series.cache().pages == 0).then_some(()));
    assert_eq!((series.cache().bytes, series.cache().seeds), (0, 0));
    series.bed.end();
}

fn wrong_tokens_open_nothing() {
    let series = Series::new(PAGES);
    series.run_to_end("touch_at_random", cached(PagingMode::Prefetch));
    let mut plan = series.plan(cached(PagingMode::Prefetch));
    plan.sources[0].token = Token::from_bytes([8; 16]);
    let mut program = series.bed.start("lose", PAGES, &plan);
    program.expect_signal();
    let stats = series.bed.stats(&program);
    assert!(stats.loss_reason.is_some() && stats.counters.pages_cached == 0, "{stats:?}");
    assert_eq!(series.cache().pages, series.seed.populated_pages(), "the cache is unchanged");
    series.bed.finish(program);
    series.bed.end();
}

fn same_host_is_not_cached() {
    let seed = TestSeed::new(PAGES, false);
    let bed = Bed::new();
    let owner = start_on_host(&bed.dir.path().join("owner.sock"), &seed);
    bed.finish(bed.start("touch_at_random", PAGES, &seed.plan(owner.address(), cached(PagingMode::Prefetch))));
    assert_eq!(bed.client.cache_stats().expect("the pager answers").pages, 0);
    bed.end();
}

fn next_pager_begins_without() {
    let series = Series::new(PAGES);
    series.bed.client.set_cache_limit(64 << 20).expect("the pager answers");
    series.run_to_end("touch_at_random", cached(PagingMode::Cow));
    let plan = series.plan(cached(PagingMode::Cow));
    let mut program = series.bed.start("touch_slowly", PAGES, &plan);
    soon("a page from the cache", || (series.bed.stats(&program).counters.pages_cached > 0).then_some(()));
    series.bed.kill_pager();
    program.expect_success();
    let counters = series.bed.stats(&program).counters;
    assert!(counters.pages_cached > 0 && counters.pages_fetched > 0, "both pagers served it: {counters:?}");
    let stats = series.cache();
    assert!(stats.pages < series.seed.populated_pages() && stats.bytes_max == 64 << 20, "{stats:?}");
    series.bed.finish(program);
    series.bed.end();
}

fn run_from_cache(scenario: &str) {
    let series = Series::new(PAGES);
    series.run_to_end("touch_in_order", cached(PagingMode::Prefetch));
    for paging in [PagingMode::Prefetch, PagingMode::Cow] {
        let counters = series.run_to_end(scenario, cached(paging));
        assert_eq!((counters.pages_fetched, counters.faults_missing), (0, 0), "{counters:?}");
        assert!(counters.pages_cached > 0, "{counters:?}");
    }
    series.bed.end();
}
