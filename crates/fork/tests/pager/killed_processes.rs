//! Kills keeper, pager and holder in any combination, while processes fork, and their children fork, too. Each page
//! that they touch was missing before.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork_fork::pager::{PagingMode, PagingStrategy};
use farfork_sys::fd_passing;

use crate::bed::{Bed, Program, soon};
use crate::scenarios::{PAGES, Stage, with_program};
use crate::seed::{Owner, TestSeed};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("descendants_survive_a_killed_keeper_and_pager", descendants_survive_a_killed_keeper_and_pager),
    ("descendants_survive_any_two_killed_processes", descendants_survive_any_two_killed_processes),
    ("a_killed_descriptor_holder_is_replaced", a_killed_descriptor_holder_is_replaced),
    (
        "descriptors_are_recovered_from_a_stub_after_all_three_are_killed",
        descriptors_are_recovered_from_a_stub_after_all_three_are_killed,
    ),
    ("the_time_without_descriptor_holders_is_measured", window_of_all_three),
];

/// Scenarios of `make test-long`.
pub(crate) const LONG: &[(&str, fn())] = &[("descendants_survive_ten_thousand_kills", ten_thousand_kills)];

/// Number of kills in a campaign, unless the environment sets another number.
const KILLS: u64 = 40;
const KILLS_VARIABLE: &str = "FARFORK_KILLS";

/// Limits from a kill until a pager replies: on a machine that is not busy, and as a guard against hangs.
const REPLACEMENT_LIMIT: Duration = Duration::from_secs(10);
const HANG_GUARD: Duration = Duration::from_secs(60);

/// Returns a strategy that fetches page by page, so that each page is missing until it is touched.
fn one_by_one() -> PagingStrategy {
    PagingStrategy { mode: PagingMode::Cow, ..PagingStrategy::default() }
}

fn kills() -> u64 {
    std::env::var(KILLS_VARIABLE).ok().map_or(KILLS, |text| text.parse().expect("a number"))
}

/// Runs a program with descendants while `kill` kills processes. Prints how long replacements took, and how many rounds of
/// forks there were.
fn campaign(kills: u64, limit: Duration, mut kill: impl FnMut(u64, &mut Stage)) {
    with_program("descend_until_told", one_by_one(), |stage| {
        stage.program.meet();
        stage.program.let_go();
        let (mut longest, mut sum) = (Duration::ZERO, Duration::ZERO);
        for number in 0..kills {
            // Kill at a varying time of a round, which takes about ten milliseconds.
            sleep(Duration::from_micros(number * 7919 % 23_000));
            assert!(
                !stage.program.has_ended() || {
                    stage.program.expect_success();
                    true
                },
                "kill {number}"
            );
            let killed = Instant::now();
            kill(number, stage);
            stage.bed.client.list_children().expect("a pager answers");
            let took = killed.elapsed();
            assert!(took < limit, "kill {number}: {took:?}");
            (longest, sum) = (longest.max(took), sum + took);
        }
        stage.program.let_go();
        let rounds = stage.program.output();
        stage.program.expect_success();
        let average = sum / u32::try_from(kills).unwrap_or(u32::MAX).max(1);
        println!("{kills} kills: replaced after {average:?}, {longest:?} at most; rounds of 31 processes: {rounds}");
        assert_eq!(stage.bed.stats(&stage.program).loss_reason, None);
    });
}

fn descendants_survive_a_killed_keeper_and_pager() {
    campaign(kills(), HANG_GUARD, |_, stage| {
        stage.bed.holder();
        stage.bed.kill_both();
    });
}

fn ten_thousand_kills() {
    campaign(10_000, REPLACEMENT_LIMIT, |_, stage| {
        stage.bed.holder();
        stage.bed.kill_both();
    });
}

/// After any two were killed, the remaining process starts the others again.
fn descendants_survive_any_two_killed_processes() {
    campaign(KILLS / 2, HANG_GUARD, |number, stage| {
        let ((keeper, pager), holder) = (stage.bed.processes(), stage.bed.holder());
        let pair = [[keeper, pager], [keeper, holder], [pager, holder]][number as usize % 3];
        stage.bed.kill_together(&pair);
    });
}

fn a_killed_descriptor_holder_is_replaced() {
    with_program("pause_between", PagingStrategy::default(), |stage| {
        stage.program.meet();
        let (processes, holder) = (stage.bed.processes(), stage.bed.holder());
        let descriptors = stage.bed.descriptors().len();
        for _ in 0..5 {
            let holder = stage.bed.holder();
            stage.bed.kill_together(&[holder]);
        }
        assert_ne!(stage.bed.holder(), holder);
        assert_eq!(stage.bed.processes(), processes, "the other processes are unchanged");
        soon("a table in which nothing stays", || (stage.bed.descriptors().len() <= descriptors).then_some(()));
        stage.program.let_go();
        stage.program.expect_success();
    });
}

/// Starts a program whose userfaultfd is also in a queue, as in a container's stub. The pager adds the userfaultfds of
/// its forks.
fn start_with_stub(bed: &Bed, owner: &Owner, seed: &TestSeed, scenario: &str) -> (Program, OwnedFd) {
    let mut adopted = bed.adopt(&seed.plan(owner.address(), one_by_one()));
    let (ours, programs) = fd_passing::seqpacket_pair().unwrap();
    let to_pager = std::mem::replace(&mut adopted.uffd_socket, programs);
    let program = Program::begin(scenario, PAGES, adopted);
    let mut word = [0; 16];
    let (_, uffd) = fd_passing::receive(ours.as_fd(), &mut word, 1).unwrap();
    let queue = fd_passing::self_connected_socket().unwrap();
    fd_passing::send(queue.as_fd(), &[0; 4], &[uffd[0].as_fd()]).unwrap();
    fd_passing::send(to_pager.as_fd(), &[0; 4], &[uffd[0].as_fd(), queue.as_fd()]).unwrap();
    (program, queue)
}

fn descriptors_are_recovered_from_a_stub_after_all_three_are_killed() {
    let seed = TestSeed::new(PAGES, false);
    let (owner, mut bed) = (Owner::start(&seed), Bed::new());
    let (mut program, queue) = start_with_stub(&bed, &owner, &seed, "descend_then_touch");
    program.meet();
    bed.kill_all();
    program.let_go();
    sleep(Duration::from_millis(200));
    assert!(!program.has_ended(), "no process reads zeroes while there is no pager");
    bed.start_pager();
    assert_eq!(bed.client.reclaim(&program.id, &program.dir, queue.as_fd()).unwrap(), 0);
    program.meet();
    // Once more, for a reclaimed child. Afterwards, the new holder alone is enough.
    bed.kill_all();
    bed.start_pager();
    assert_eq!(bed.client.reclaim(&program.id, &program.dir, queue.as_fd()).unwrap(), 0);
    bed.holder();
    bed.kill_both();
    program.let_go();
    bed.finish(program);
    bed.end();
    drop(owner);
}

/// Kills keeper, pager and holder together while processes fork. Counts the kills after which the userfaultfd of a
/// process was lost. Only after such a kill may a byte be wrong.
fn window_of_all_three() {
    let kills = kills() / 4;
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let (mut lost, mut longest) = (0, Duration::ZERO);
    for number in 0..kills {
        let mut bed = Bed::new();
        let (mut program, queue) = start_with_stub(&bed, &owner, &seed, "descend_until_told");
        program.meet();
        program.let_go();
        bed.holder();
        sleep(Duration::from_micros(5_000 + number * 7919 % 23_000));
        bed.kill_all();
        let killed = Instant::now();
        bed.start_pager();
        let unheld = bed.client.reclaim(&program.id, &program.dir, queue.as_fd()).unwrap();
        longest = longest.max(killed.elapsed());
        if unheld > 0 {
            lost += 1;
            program.end();
            continue;
        }
        program.let_go();
        bed.finish(program);
        bed.end();
    }
    println!(
        "{kills} kills of all three during forks: {lost} lost a process; {longest:?} at most until it is served again"
    );
}
