//! Sets that learn from children, seen or made up.

use farfork_wire::Token;

use super::*;
use crate::pager::working_set::message::decode;

const EXTENT: ExtentId = ExtentId(3);

fn report(touched: &[u64], unwanted: &[u64]) -> Report {
    let pages = |numbers: &[u64]| {
        let mut pages = Vec::new();
        numbers.iter().for_each(|page| Pages::push(&mut pages, EXTENT, *page, true));
        pages
    };
    Report {
        seed: "n1.s00f3a96c5d217e84".parse().unwrap(),
        token: Token::from_bytes([7; 16]),
        behind: None,
        pages: pages(touched),
        unwanted: pages(unwanted),
        is_last: true,
    }
}

fn fetched(report: Report) -> Report {
    let pages = report.pages.into_iter().map(|pages| Pages { mark: false, ..pages });
    Report { pages: pages.collect(), ..report }
}

/// Its pages, in order; and those on trial.
fn read(set: &mut WorkingSet) -> (Vec<u64>, Vec<u64>) {
    let pages = decode(&set.encoded().bytes);
    let all = Pages::each(&pages).map(|(_, page, _)| page).collect();
    (all, Pages::each(&pages).filter(|(_, _, mark)| *mark).map(|(_, page, _)| page).collect())
}

/// A child that wants these pages gets the set; what is reported of it.
fn child(set: &mut WorkingSet, wants: &[u64]) -> Report {
    let (all, on_trial) = read(set);
    let is_given = |page: &u64| all.contains(page) && !on_trial.contains(page);
    let faults: Vec<u64> = wants.iter().copied().filter(|page| !is_given(page)).collect();
    let unwanted: Vec<u64> = on_trial.iter().copied().filter(|page| !wants.contains(page)).collect();
    report(&faults, &unwanted)
}

fn has(_: ExtentId, _: u64) -> bool {
    true
}

#[test]
fn pages_keep_the_order_of_their_touches() {
    let mut set = WorkingSet::default();
    assert!(set.encoded().bytes.is_empty());
    set.learn(&report(&[9, 3, 7, 8], &[]), has);
    assert_eq!(read(&mut set).0, [9, 3, 7, 8]);
    set.learn(&report(&[5, 3, 4, 8, 10], &[]), has);
    assert_eq!(read(&mut set).0, [5, 9, 3, 4, 7, 8, 10], "new ones come in behind those before them");
    set.learn(&Report { behind: Some((EXTENT, 9)), ..report(&[6], &[]) }, has);
    assert_eq!(read(&mut set).0, [5, 9, 6, 3, 4, 7, 8, 10], "also over several reports");
    set.learn(&report(&[11, 12], &[]), |_, page| page != 11);
    assert_eq!(read(&mut set).0, [12, 5, 9, 6, 3, 4, 7, 8, 10], "and only pages that there are");
}

#[test]
fn what_was_touched_comes_before_what_only_came_along() {
    let mut set = WorkingSet::default();
    let both = |seen: &[(u64, bool)]| {
        let mut pages = Vec::new();
        seen.iter().for_each(|(page, is_touched)| Pages::push(&mut pages, EXTENT, *page, *is_touched));
        Report { pages, ..report(&[], &[]) }
    };
    set.learn(&both(&[(7, true), (8, false), (9, false), (3, true), (4, false)]), has);
    assert_eq!(read(&mut set).0, [7, 3, 8, 9, 4]);

    let mut next = WorkingSet::default();
    next.begin_with(set.encoded().parts());
    next.learn(&both(&[(9, true), (5, true)]), |_, page| page != 4);
    assert_eq!(read(&mut next).0, [7, 3, 9, 5, 8], "also of what was handed on, where it came too late once");
}

#[test]
fn a_small_part_is_on_trial_what_is_least_known_first() {
    let mut set = WorkingSet::default();
    let sure: Vec<u64> = (0..64).map(|page| 2 * page).collect();
    set.learn(&report(&sure, &[]), has);
    set.learn(&fetched(report(&[200, 201, 202, 210, 220, 221], &[])), has);
    let (_, on_trial) = read(&mut set);
    assert_eq!(on_trial, [200, 201, 202, 210], "two faults of 64 are risked, each for neighbours");
    set.learn(&report(&[201], &[]), has);
    set.learn(&fetched(report(&[200, 202], &[])), has);
    let (_, on_trial) = read(&mut set);
    assert_eq!(on_trial, [210, 220, 221], "who was tried has to wait");
}

#[test]
fn a_set_follows_its_children() {
    let mut set = WorkingSet::default();
    let before: Vec<u64> = (0..320).collect();
    let after: Vec<u64> = (160..480).collect();
    set.learn(&report(&before, &[]), has);
    let (mut faults, mut children) = (Vec::new(), 0);
    while read(&mut set).0.iter().any(|page| !after.contains(page)) {
        let seen = child(&mut set, &after);
        faults.push(Pages::each(&seen.pages).count());
        set.learn(&seen, has);
        children += 1;
        assert!(children <= 4 * TRIAL_PART, "{} pages are left", set.encoded().pages);
    }
    assert_eq!(faults[0], 160, "the first one meets its new pages");
    assert!(faults[1..].iter().all(|faults| *faults <= 480 / TRIAL_PART), "the others hardly any: {faults:?}");
    assert_eq!(set.encoded().pages, 320, "what nobody touches any more has left, what is touched is there");
}

#[test]
fn one_child_that_ends_early_takes_nothing_away() {
    let mut set = WorkingSet::default();
    let wants: Vec<u64> = (0..320).collect();
    set.learn(&report(&wants, &[]), has);
    for _ in 0..100 {
        let seen = child(&mut set, &[]);
        set.learn(&seen, has);
        let seen = child(&mut set, &wants);
        set.learn(&seen, has);
    }
    assert_eq!(set.encoded().pages, 320);
}

#[test]
fn a_set_is_bounded_and_the_surest_stay() {
    let mut set = WorkingSet::default();
    let first: Vec<u64> = (0..SET_PAGES_MAX).collect();
    set.learn(&fetched(report(&first, &[])), has);
    let sure: Vec<u64> = (SET_PAGES_MAX..SET_PAGES_MAX + 100).collect();
    set.learn(&report(&sure, &[]), has);
    let (all, _) = read(&mut set);
    assert_eq!(all.len() as u64, SET_PAGES_MAX);
    assert!(sure.iter().all(|page| all.contains(page)));
    let mut hostile = report(&[1], &[]);
    hostile.pages[0].count = u32::MAX;
    set.learn(&hostile, has);
    assert!(set.encoded().pages <= SET_PAGES_MAX);
}

#[test]
fn what_was_kept_is_recalled_and_goes_on_learning() {
    let mut set = WorkingSet::default();
    let touched: Vec<u64> = (0..64).map(|page| 100 - page).collect();
    set.learn(&report(&touched, &[]), has);
    set.learn(&fetched(report(&[500, 501], &[])), has);
    let (pages, on_trial) = read(&mut set);
    assert!(!on_trial.is_empty(), "some are");

    let mut recalled = WorkingSet::default();
    recalled.recall(&decode(&set.encoded().bytes), |_, page| page != 500);
    let there = pages.iter().copied().filter(|page| *page != 500);
    let (mut wanted, doubtful): (Vec<u64>, Vec<u64>) = there.partition(|page| !on_trial.contains(page));
    wanted.extend(&doubtful);
    let (now, on_trial_now) = read(&mut recalled);
    assert_eq!(now, wanted, "as it was, but for what the seed has not; those last that were on trial");
    assert!(!on_trial_now.is_empty() && on_trial_now.iter().all(|page| doubtful.contains(page)));
    for _ in 0..DOUBTS_MAX {
        recalled.learn(&report(&[], &[501]), has);
    }
    assert!(!read(&mut recalled).0.contains(&501), "what nobody wants leaves");
    recalled.recall(&decode(b"FFWSET1\nsomething else entirely"), |_, _| false);
    assert_eq!(read(&mut recalled).0.len(), 64, "garbage changes nothing");
}
