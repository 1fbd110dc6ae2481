//! Tests of sets that learn from reports: hand-written ones, and those of simulated children.

use farfork_wire::Token;

use super::*;
use crate::pager::working_set::codec::decode_set;

const EXTENT: ExtentId = ExtentId(3);

fn report(touched: &[u64], unwanted: &[u64]) -> AccessReport {
    let pages = |numbers: &[u64]| {
        let mut pages = Vec::new();
        numbers.iter().for_each(|page| MarkedRun::push_page(&mut pages, EXTENT, *page, true));
        pages
    };
    AccessReport {
        seed: "n1.s00f3a96c5d217e84".parse().unwrap(),
        token: Token::from_bytes([7; 16]),
        after: None,
        pages: pages(touched),
        untouched_trials: pages(unwanted),
        is_last: true,
    }
}

fn as_fetched(report: AccessReport) -> AccessReport {
    let pages = report.pages.into_iter().map(|pages| MarkedRun { mark: false, ..pages });
    AccessReport { pages: pages.collect(), ..report }
}

/// Returns the set's pages, in order, and the pages on trial.
fn read_set(set: &mut WorkingSet) -> (Vec<u64>, Vec<u64>) {
    let pages = decode_set(&set.encode().bytes);
    let all = MarkedRun::iter_pages(&pages).map(|(_, page, _)| page).collect();
    (all, MarkedRun::iter_pages(&pages).filter(|(_, _, mark)| *mark).map(|(_, page, _)| page).collect())
}

/// Simulates a child that gets the set, and touches these pages. Returns its report.
fn simulate_child(set: &mut WorkingSet, wants: &[u64]) -> AccessReport {
    let (all, on_trial) = read_set(set);
    let is_fetched = |page: &u64| all.contains(page) && !on_trial.contains(page);
    let faults: Vec<u64> = wants.iter().copied().filter(|page| !is_fetched(page)).collect();
    let unwanted: Vec<u64> = on_trial.iter().copied().filter(|page| !wants.contains(page)).collect();
    report(&faults, &unwanted)
}

fn has_page(_: ExtentId, _: u64) -> bool {
    true
}

#[test]
fn pages_keep_the_order_of_their_touches() {
    let mut set = WorkingSet::default();
    assert!(set.encode().bytes.is_empty());
    set.apply_report(&report(&[9, 3, 7, 8], &[]), has_page);
    assert_eq!(read_set(&mut set).0, [9, 3, 7, 8]);
    set.apply_report(&report(&[5, 3, 4, 8, 10], &[]), has_page);
    assert_eq!(
        read_set(&mut set).0,
        [5, 9, 3, 4, 7, 8, 10],
        "new pages are inserted after the pages touched before them"
    );
    set.apply_report(&AccessReport { after: Some((EXTENT, 9)), ..report(&[6], &[]) }, has_page);
    assert_eq!(read_set(&mut set).0, [5, 9, 6, 3, 4, 7, 8, 10], "the order continues over several reports");
    set.apply_report(&report(&[11, 12], &[]), |_, page| page != 11);
    assert_eq!(read_set(&mut set).0, [12, 5, 9, 6, 3, 4, 7, 8, 10], "pages that the seed does not have are ignored");
}

#[test]
fn touched_pages_precede_prefetched_ones() {
    let mut set = WorkingSet::default();
    let both = |seen: &[(u64, bool)]| {
        let mut pages = Vec::new();
        seen.iter().for_each(|(page, is_touched)| MarkedRun::push_page(&mut pages, EXTENT, *page, *is_touched));
        AccessReport { pages, ..report(&[], &[]) }
    };
    set.apply_report(&both(&[(7, true), (8, false), (9, false), (3, true), (4, false)]), has_page);
    assert_eq!(read_set(&mut set).0, [7, 3, 8, 9, 4]);

    let mut next = WorkingSet::default();
    next.inherit(set.encode().parts());
    next.apply_report(&both(&[(9, true), (5, true)]), |_, page| page != 4);
    assert_eq!(
        read_set(&mut next).0,
        [7, 3, 9, 5, 8],
        "inherited sets keep their order; one page was fetched too late"
    );
}

#[test]
fn a_small_part_of_the_set_is_withheld_on_trial() {
    let mut set = WorkingSet::default();
    let sure: Vec<u64> = (0..64).map(|page| 2 * page).collect();
    set.apply_report(&report(&sure, &[]), has_page);
    set.apply_report(&as_fetched(report(&[200, 201, 202, 210, 220, 221], &[])), has_page);
    let (_, on_trial) = read_set(&mut set);
    assert_eq!(on_trial, [200, 201, 202, 210], "two faults of 64 are risked, each for neighbours");
    set.apply_report(&report(&[201], &[]), has_page);
    set.apply_report(&as_fetched(report(&[200, 202], &[])), has_page);
    let (_, on_trial) = read_set(&mut set);
    assert_eq!(on_trial, [210, 220, 221], "pages that were tried are not on trial again at once");
}

#[test]
fn a_set_adapts_to_changed_children() {
    let mut set = WorkingSet::default();
    let before: Vec<u64> = (0..320).collect();
    let after: Vec<u64> = (160..480).collect();
    set.apply_report(&report(&before, &[]), has_page);
    let (mut faults, mut children) = (Vec::new(), 0);
    while read_set(&mut set).0.iter().any(|page| !after.contains(page)) {
        let seen = simulate_child(&mut set, &after);
        faults.push(MarkedRun::iter_pages(&seen.pages).count());
        set.apply_report(&seen, has_page);
        children += 1;
        assert!(children <= 4 * TRIAL_FRACTION, "{} pages remain", set.encode().pages);
    }
    assert_eq!(faults[0], 160, "the first child faults on its new pages");
    assert!(faults[1..].iter().all(|faults| *faults <= 480 / TRIAL_FRACTION), "the others have few faults: {faults:?}");
    assert_eq!(set.encode().pages, 320, "untouched pages are removed, touched ones stay");
}

#[test]
fn one_child_that_ends_early_removes_no_page() {
    let mut set = WorkingSet::default();
    let wants: Vec<u64> = (0..320).collect();
    set.apply_report(&report(&wants, &[]), has_page);
    for _ in 0..100 {
        let seen = simulate_child(&mut set, &[]);
        set.apply_report(&seen, has_page);
        let seen = simulate_child(&mut set, &wants);
        set.apply_report(&seen, has_page);
    }
    assert_eq!(set.encode().pages, 320);
}

#[test]
fn a_set_is_bounded_and_keeps_touched_pages() {
    let mut set = WorkingSet::default();
    let first: Vec<u64> = (0..SET_PAGES_MAX).collect();
    set.apply_report(&as_fetched(report(&first, &[])), has_page);
    let sure: Vec<u64> = (SET_PAGES_MAX..SET_PAGES_MAX + 100).collect();
    set.apply_report(&report(&sure, &[]), has_page);
    let (all, _) = read_set(&mut set);
    assert_eq!(all.len() as u64, SET_PAGES_MAX);
    assert!(sure.iter().all(|page| all.contains(page)));
    let mut hostile = report(&[1], &[]);
    hostile.pages[0].count = u32::MAX;
    set.apply_report(&hostile, has_page);
    assert!(set.encode().pages <= SET_PAGES_MAX);
}

#[test]
fn a_restored_set_continues_to_learn() {
    let mut set = WorkingSet::default();
    let touched: Vec<u64> = (0..64).map(|page| 100 - page).collect();
    set.apply_report(&report(&touched, &[]), has_page);
    set.apply_report(&as_fetched(report(&[500, 501], &[])), has_page);
    let (pages, on_trial) = read_set(&mut set);
    assert!(!on_trial.is_empty(), "some pages are on trial");

    let mut recalled = WorkingSet::default();
    recalled.restore(&decode_set(&set.encode().bytes), |_, page| page != 500);
    let there = pages.iter().copied().filter(|page| *page != 500);
    let (mut wanted, doubtful): (Vec<u64>, Vec<u64>) = there.partition(|page| !on_trial.contains(page));
    wanted.extend(&doubtful);
    let (now, on_trial_now) = read_set(&mut recalled);
    assert_eq!(
        now, wanted,
        "the order is restored without pages that the seed lacks; pages that were on trial are last"
    );
    assert!(!on_trial_now.is_empty() && on_trial_now.iter().all(|page| doubtful.contains(page)));
    for _ in 0..UNTOUCHED_TRIALS_MAX {
        recalled.apply_report(&report(&[], &[501]), has_page);
    }
    assert!(!read_set(&mut recalled).0.contains(&501), "untouched pages are removed");
    recalled.restore(&decode_set(b"FFWSET1\nsomething else entirely"), |_, _| false);
    assert_eq!(read_set(&mut recalled).0.len(), 64, "garbage changes nothing");
}
