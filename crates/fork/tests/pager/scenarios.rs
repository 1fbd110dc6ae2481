//! Scenarios of paged memory, one per test.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork_fork::pager::{LOST_FILE, PagerStats, PagingMode, PagingStrategy};
use farfork_sys::process_memory;

use crate::bed::{Bed, MemoryLimit, Program, soon};
use crate::seed::{AREA, Owner, TestSeed, contents, start_on_host};

/// Pages of most programs: several readahead regions, and a part of one.
pub(crate) const PAGES: u64 = 2100;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("pages_arrive_in_any_order", pages_arrive_in_any_order),
    ("pages_arrive_in_order_and_backwards", || run_once("touch_in_order")),
    ("a_window_of_one_fetches_single_pages", a_window_of_one_fetches_single_pages),
    ("cow_fetches_each_page_once_and_alone", cow_fetches_each_page_once_and_alone),
    ("single_pages_are_fetched_when_windows_fail", single_pages_are_fetched_when_windows_fail),
    ("a_child_that_touches_few_of_many_pages_gets_few", a_child_that_touches_few_of_many_pages_gets_few),
    ("pages_of_the_same_host_are_counted", pages_of_the_same_host_are_counted),
    ("the_next_child_reuses_open_connections", the_next_child_reuses_open_connections),
    ("discarded_memory_is_zero", || run_once("discard")),
    ("unmapped_memory_stays_unmapped", || run_once("unmap")),
    ("moved_memory_is_the_same", || run_once("remap")),
    ("memory_that_is_moved_again_and_again_is_the_same", || run_once("touch_what_moves")),
    ("forked_processes_see_the_same", || run_once("fork")),
    ("memory_that_a_move_leaves_mapped_is_zero_in_forks", memory_that_a_move_leaves_mapped_is_zero_in_forks),
    ("memory_that_a_forked_process_grows_is_zero", memory_that_a_forked_process_grows_is_zero),
    ("forks_see_moved_memory_at_its_address", || run_once("fork_what_moves")),
    ("addresses_of_moved_memory_can_be_reused_at_once", addresses_of_moved_memory_can_be_reused_at_once),
    ("pages_of_any_protection_arrive", || run_once("protect")),
    ("system_calls_wait_for_pages", || run_once("system_calls")),
    ("a_stack_grows_with_zeroes", || run_once("grow_stack")),
    ("a_heap_grows_with_zeroes", || run_once("grow_heap")),
    ("fetched_pages_are_wiped_on_fork", fetched_pages_are_wiped_on_fork),
    ("locked_memory_grows_with_zeroes", locked_memory_grows_with_zeroes),
    ("memory_is_correct_under_all_operations_at_once", || run_once("chaos")),
    ("another_process_reads_missing_pages", another_process_reads_missing_pages),
    ("pages_arrive_while_the_pager_is_killed_repeatedly", pages_arrive_while_the_pager_is_killed_repeatedly),
    ("forks_are_correct_while_pagers_are_killed", || run_while_pagers_die("fork")),
    ("moves_are_correct_while_pagers_are_killed", || run_while_pagers_die("remap")),
    ("all_operations_are_correct_while_pagers_are_killed", || run_while_pagers_die("chaos")),
    ("a_killed_keeper_is_replaced", a_killed_keeper_is_replaced),
    ("keeper_and_pager_are_killed_in_turn", keeper_and_pager_are_killed_in_turn),
    ("memory_of_a_dropped_seed_is_reported_as_lost", memory_of_a_dropped_seed_is_reported_as_lost),
    ("every_thread_notices_lost_memory", every_thread_notices_lost_memory),
    ("memory_of_an_unreachable_owner_is_reported_as_lost", memory_of_an_unreachable_owner_is_reported_as_lost),
    ("a_child_continues_when_its_owner_returns", a_child_continues_when_its_owner_returns),
    ("a_wrong_token_reads_nothing", a_wrong_token_reads_nothing),
    ("children_share_owner_and_pager", children_share_owner_and_pager),
    ("a_child_that_never_starts_is_removed", a_child_that_never_starts_is_removed),
    ("a_running_child_keeps_its_pager", a_running_child_keeps_its_pager),
    ("a_second_pager_is_refused", a_second_pager_is_refused),
    ("only_the_child_without_memory_is_killed", only_the_child_without_memory_is_killed),
    ("an_unreachable_pager_ends", an_unreachable_pager_ends),
];

/// Scenarios of `make test-long`, for which a busy machine is too slow.
pub(crate) const LONG: &[(&str, fn())] =
    &[("touching_everything_costs_the_same_at_any_size", touching_everything_costs_the_same_at_any_size)];

fn strategy(unreachable: Duration) -> PagingStrategy {
    PagingStrategy { unreachable_timeout: unreachable, ..PagingStrategy::default() }
}

/// The objects with which a scenario works.
pub(crate) struct Stage {
    pub(crate) bed: Bed,
    pub(crate) program: Program,
    pub(crate) seed: Arc<TestSeed>,
    /// The owner of the seed, until the scenario drops it.
    pub(crate) owner: Option<Owner>,
}

/// Runs a program, calls `act` while it runs, and checks that the program succeeds and that nothing of it remains.
pub(crate) fn with_program(scenario: &str, strategy: PagingStrategy, act: impl FnOnce(&mut Stage)) {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let program = bed.start(scenario, PAGES, &seed.plan(owner.address(), strategy));
    let mut stage = Stage { bed, program, seed, owner: Some(owner) };
    act(&mut stage);
    let Stage { bed, program, owner, .. } = stage;
    bed.finish(program);
    bed.end();
    drop(owner);
}

fn run_once(scenario: &str) {
    with_program(scenario, PagingStrategy::default(), |_| {});
}

/// Runs a program whose pages are fetched one by one, so that there is time to kill its pagers.
fn run_while_pagers_die(scenario: &str) {
    with_program(scenario, PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }, |stage| {
        let mut killed = 0;
        while !stage.program.has_ended() {
            stage.bed.kill_pager();
            // Every second pager lives long enough to count as healthy, so that the next one is started at once.
            sleep(Duration::from_millis([150, 2, 120, 30][killed % 4]));
            killed += 1;
        }
        assert!(killed > 0, "the program ended before a pager was killed");
    });
}

/// Fetches page by page, so that memory is moved before its pages have arrived.
fn addresses_of_moved_memory_can_be_reused_at_once() {
    let strategy = PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() };
    with_program("reuse_what_was_left", strategy, |_| {});
}

fn fetched_pages_are_wiped_on_fork() {
    run_once("wipe_on_fork");
}

fn memory_that_a_move_leaves_mapped_is_zero_in_forks() {
    run_once("fork_what_was_left_mapped");
    run_while_pagers_die("fork_what_was_left_mapped");
}

fn memory_that_a_forked_process_grows_is_zero() {
    run_once("grow_beside_a_fork");
}

fn locked_memory_grows_with_zeroes() {
    run_once("lengthen_what_is_locked");
}

fn pages_arrive_in_any_order() {
    with_program("touch_at_random", PagingStrategy::default(), |stage| {
        stage.program.expect_success();
        let PagerStats { counters, loss_reason: lost } = stage.bed.stats(&stage.program);
        let populated: u64 = stage.seed.populated_pages();
        assert_eq!((counters.pages_fetched, lost.as_deref()), (populated, None));
        assert_eq!(counters.bytes_fetched, populated * 4096, "no page is fetched twice");
        assert!(counters.zero_pages > 0 && counters.faults < PAGES / 4, "{counters:?}");
        let answered = counters.faults_missing + counters.faults_late + counters.faults_zero;
        assert_eq!(answered, counters.faults, "each fault is of one kind: {counters:?}");
        assert_eq!(counters.round_trips_demand, counters.faults_missing);
        assert!(counters.round_trips >= counters.round_trips_demand && counters.demand_us > 0, "{counters:?}");
        assert_eq!((counters.pages_same_host, counters.bytes_same_host), (0, 0), "the owner is read over the network");
    });
}

fn a_window_of_one_fetches_single_pages() {
    let strategy = PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() };
    with_program("stay", strategy, |stage| {
        stage.program.meet();
        let counters = stage.bed.stats(&stage.program).counters;
        assert_eq!((counters.faults, counters.faults_missing, counters.round_trips), (1, 1, 1));
        assert_eq!((counters.pages_fetched, counters.bytes_fetched), (1, 4096));
        stage.program.end();
    });
}

fn cow_fetches_each_page_once_and_alone() {
    let strategy = PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() };
    with_program("touch_at_random", strategy, |stage| {
        stage.program.expect_success();
        let counters = stage.bed.stats(&stage.program).counters;
        let populated = stage.seed.populated_pages();
        assert_eq!((counters.pages_fetched, counters.bytes_fetched), (populated, populated * 4096), "{counters:?}");
        assert_eq!((counters.faults_missing, counters.round_trips), (populated, populated), "{counters:?}");
        assert_eq!(counters.faults_late, 0, "{counters:?}");
    });
}

fn single_pages_are_fetched_when_windows_fail() {
    let seed = TestSeed::brittle(PAGES);
    let (owner, bed) = (Owner::start(&seed), Bed::new());
    let mut program = bed.start("touch_at_random", PAGES, &seed.plan(owner.address(), PagingStrategy::default()));
    program.expect_success();
    let PagerStats { counters, .. } = bed.stats(&program);
    assert_eq!(counters.pages_fetched, seed.populated_pages(), "{counters:?}");
    bed.finish(program);
    bed.end();
}

fn a_child_that_touches_few_of_many_pages_gets_few() {
    let pages = (1 << 30) / 4096;
    let seed = TestSeed::new(pages, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let mut program = bed.start("touch_sparsely", pages, &seed.plan(owner.address(), PagingStrategy::default()));
    program.meet();
    let counters = bed.stats(&program).counters;
    assert!(counters.bytes_fetched <= (1 << 30) / 10, "5 % of 1 GiB was touched: {counters:?}");
    program.let_go();
    program.expect_success();
    bed.finish(program);
    bed.end();
}

fn pages_of_the_same_host_are_counted() {
    let seed = TestSeed::new(PAGES, false);
    let bed = Bed::new();
    let owner = start_on_host(&bed.dir.path().join("owner.sock"), &seed);
    let mut program = bed.start("touch_at_random", PAGES, &seed.plan(owner.address(), PagingStrategy::default()));
    program.expect_success();
    let counters = bed.stats(&program).counters;
    let populated = seed.populated_pages();
    assert_eq!((counters.pages_same_host, counters.bytes_same_host), (populated, populated * 4096), "{counters:?}");
    bed.finish(program);
    bed.end();
}

fn the_next_child_reuses_open_connections() {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let plan = seed.plan(owner.address(), PagingStrategy::default());
    let sockets = || {
        let links = bed.descriptors();
        let mut sockets: Vec<String> = links.into_iter().filter(|link| link.starts_with("socket:")).collect();
        sockets.sort();
        sockets
    };
    bed.finish(bed.start("touch_in_order", PAGES, &plan));
    // The sockets: the control socket, a connection for each lane, and the client's connection.
    let first = soon("connections that are kept", || Some(sockets()).filter(|sockets| sockets.len() == 4));
    bed.finish(bed.start("touch_in_order", PAGES, &plan));
    soon("the same connections", || (sockets() == first).then_some(()));
    bed.end();
}

fn another_process_reads_missing_pages() {
    with_program("be_read", PagingStrategy::default(), |stage| {
        stage.program.meet();
        let pid = stage.program.process.id() as i32;
        for page in (0..PAGES).step_by(3) {
            let mut bytes = vec![0; 4096];
            assert_eq!(process_memory::read_process(pid, AREA + page * 4096, &mut bytes).unwrap(), 4096);
            assert!(bytes == contents(page), "page {page}");
        }
        stage.program.let_go();
    });
}

fn pages_arrive_while_the_pager_is_killed_repeatedly() {
    with_program("touch_slowly", PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }, |stage| {
        for round in 0..15 {
            sleep(Duration::from_millis(105 + round));
            stage.bed.kill_pager();
        }
        stage.program.expect_success();
        let stats = stage.bed.stats(&stage.program);
        let populated = stage.seed.populated_pages();
        assert!(stats.counters.pages_fetched > populated - 20, "statistics survive their pager: {stats:?}");
    });
}

fn a_killed_keeper_is_replaced() {
    with_program("pause_between", PagingStrategy::default(), |stage| {
        stage.program.meet();
        let (keeper, pager) = stage.bed.processes();
        stage.bed.kill_keeper();
        let (new_keeper, new_pager) = stage.bed.processes();
        assert!(keeper != new_keeper && new_keeper == pager && new_pager != pager);
        stage.program.let_go();
        stage.program.expect_success();
    });
}

fn keeper_and_pager_are_killed_in_turn() {
    with_program("touch_slowly", PagingStrategy::default(), |stage| {
        for _ in 0..4 {
            sleep(Duration::from_millis(60));
            stage.bed.kill_keeper();
            sleep(Duration::from_millis(60));
            stage.bed.kill_pager();
        }
    });
}

fn memory_of_a_dropped_seed_is_reported_as_lost() {
    with_program("lose", PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }, |stage| {
        stage.program.meet();
        let address = stage.owner.take().unwrap().socket_address();
        stage.owner = Some(Owner::restart(address, &stage.seed, false));
        stage.program.let_go();
        stage.program.expect_success();
        stage.expect_loss("its owner does not have it");
    });
}

/// Single pages and several bulk reads are in flight when the first refusal arrives.
fn every_thread_notices_lost_memory() {
    with_program("lose_in_threads", PagingStrategy::default(), |stage| {
        stage.program.meet();
        stage.owner.as_ref().unwrap().drop_seed();
        stage.program.let_go();
        stage.program.expect_success();
        stage.expect_loss("its owner does not have it");
    });
}

fn memory_of_an_unreachable_owner_is_reported_as_lost() {
    let strategy = PagingStrategy {
        mode: PagingMode::Cow,
        unreachable_timeout: Duration::from_secs(3),
        ..PagingStrategy::default()
    };
    with_program("lose", strategy, |stage| {
        stage.program.meet();
        stage.owner = None;
        let begin = Instant::now();
        stage.program.let_go();
        stage.program.expect_success();
        assert!(begin.elapsed() >= strategy.unreachable_timeout, "the pager waits for an unreachable owner");
        stage.expect_loss("cannot be reached");
        // Lost memory stays lost, also for the next pager.
        stage.bed.kill_pager();
        stage.expect_loss("cannot be reached");
    });
}

fn a_child_continues_when_its_owner_returns() {
    with_program("pause_between", strategy(Duration::from_secs(30)), |stage| {
        stage.program.meet();
        let address = stage.owner.take().unwrap().socket_address();
        stage.program.let_go();
        sleep(Duration::from_millis(800));
        assert!(!stage.program.has_ended(), "it waits");
        stage.bed.kill_pager();
        sleep(Duration::from_millis(300));
        assert!(!stage.program.has_ended(), "the program waits for the next pager, too");
        stage.owner = Some(Owner::restart(address, &stage.seed, true));
        stage.program.expect_success();
        assert_eq!(stage.bed.stats(&stage.program).loss_reason, None);
    });
}

fn a_wrong_token_reads_nothing() {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let mut plan = seed.plan(owner.address(), PagingStrategy::default());
    plan.sources[0].token = farfork_wire::Token::from_bytes([8; 16]);
    let mut program = bed.start("stay", PAGES, &plan);
    assert_eq!(program.expect_signal(), 7, "SIGBUS");
    let lost = bed.stats(&program).loss_reason.expect("its memory is lost");
    assert!(lost.contains("token"), "{lost}");
    let counted = bed.client.release(&program.id).unwrap().expect("release returns the counters");
    assert!(counted.faults > 0, "{counted:?}");
    assert_eq!(bed.client.release(&program.id).unwrap(), None, "the released child is unknown");
    bed.end();
}

fn children_share_owner_and_pager() {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let plan = seed.plan(owner.address(), PagingStrategy::default());
    let empty = bed.descriptors().len();
    let mut programs: Vec<Program> = (0..20).map(|_| bed.start("stay", PAGES, &plan)).collect();
    programs.iter_mut().for_each(Program::meet);
    assert_eq!(bed.userfaultfds(), 20);
    let connections = 12;
    assert!(bed.descriptors().len() <= empty + 20 + connections, "{:?}", bed.descriptors());
    assert_eq!(bed.client.list_children().unwrap().len(), 20);
    for mut program in programs {
        program.end();
        bed.finish(program);
    }
    bed.end();
}

fn a_child_that_never_starts_is_removed() {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let mut program = bed.start("no such scenario", PAGES, &seed.plan(owner.address(), PagingStrategy::default()));
    assert!(!soon("its end", || program.process.try_wait().unwrap()).success());
    soon("the end of its adoption", || bed.client.list_children().unwrap().is_empty().then_some(()));
    bed.client.release(&program.id).unwrap();
    bed.end();
}

fn a_running_child_keeps_its_pager() {
    with_program("stay", PagingStrategy::default(), |stage| {
        stage.program.meet();
        let refused = stage.bed.client.stop(Duration::from_secs(1)).unwrap_err().to_string();
        assert!(refused.contains(&stage.program.id.to_string()), "{refused}");
        let running = stage.bed.client.release(&stage.program.id).unwrap_err().to_string();
        assert!(running.contains("still run"), "{running}");
        assert_eq!(stage.bed.userfaultfds(), 1, "a userfaultfd is not closed under a living process");
        stage.program.end();
        soon("the end of the released child", || stage.bed.client.list_children().unwrap().is_empty().then_some(()));
    });
}

fn a_second_pager_is_refused() {
    let bed = Bed::new();
    let second = std::process::Command::new(std::env::current_exe().unwrap())
        .env(crate::bed::PAGER_RUN_DIR, bed.dir.path())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && errors.contains("AlreadyRunning"), "{errors}");
    bed.end();
}

fn only_the_child_without_memory_is_killed() {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let mut program = bed.start("pause_between", PAGES, &seed.plan(owner.address(), PagingStrategy::default()));
    program.meet();
    let limit = MemoryLimit::new(2 << 20);
    limit.enclose(&program);
    let (_, pager) = bed.processes();
    program.let_go();
    assert_eq!(program.expect_signal(), 9, "the kernel kills the process that exceeds the limit");
    assert_eq!(bed.processes().1, pager, "but not the pager");
    bed.finish(program);
    bed.end();
}

fn an_unreachable_pager_ends() {
    let bed = Bed::new();
    std::fs::remove_dir_all(bed.dir.path()).unwrap();
    bed.expect_end();
}

/// Prints the µs per page for 16 and 256 MiB, and for a memcpy of these pages in the same order.
fn touching_everything_costs_the_same_at_any_size() {
    let ((small, _), (large, copied)) =
        (measure(16, PagingStrategy::default()), measure(256, PagingStrategy::default()));
    measure(8, PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() });
    // Memory is slow on a machine that is low on memory: add the cost of the copy, which is not the pager's.
    let limit = 3.0 * small + 2.0 + copied;
    assert!(large < limit, "the cost per page grows with the size: {small} and {large} µs, {copied} for a copy");
}

/// Returns the µs per page of paging, and of a memcpy.
fn measure(mib: u64, strategy: PagingStrategy) -> (f64, f64) {
    let pages = mib << 8;
    let seed = TestSeed::new(pages, true);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let mut program = bed.start("measure", pages, &seed.plan(owner.address(), strategy));
    program.expect_success();
    let output = program.output();
    let figures: Vec<f64> = output.split_whitespace().map(|text| text.parse::<f64>().unwrap() / 1000.0).collect();
    let (paged, copied, faults) = (figures[0], figures[1], bed.stats(&program).counters.faults);

    println!("{mib} MiB at random, {strategy}: {paged:.2} µs a page; memcpy {copied:.2}; {faults} faults");
    bed.finish(program);
    bed.end();
    (paged, copied)
}

impl Stage {
    /// Checks the reported reason of a loss.
    fn expect_loss(&self, reason: &str) {
        let lost = self.bed.stats(&self.program).loss_reason.expect("its memory is lost");
        assert!(lost.contains(reason) && lost.contains(&self.program.id.to_string()), "{lost}");
        assert_eq!(std::fs::read_to_string(self.program.dir.join(LOST_FILE)).unwrap().trim_end(), lost.trim_end());
    }
}
