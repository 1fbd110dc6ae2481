//! Zygotes: their forks are transferred to separate children. Each test is one scenario.

use std::fs;
use std::os::fd::AsFd;

use farfork_fork::pager::{ClientError, MemoryPlan, PagerCounters, PagingStrategy};
use farfork_sys::fd_passing;
use farfork_wire::{ChildId, NodeName, Token};

use crate::bed::{Bed, Program, soon};
use crate::seed::{Owner, TestSeed};
use crate::series::Series;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("copies_of_a_zygote_are_served_while_processes_are_killed", copies),
    ("a_zygote_prefetches_touched_pages", prefetches_touched_pages),
];

const PAGES: u64 = 1024;

/// Makes the newest copy of a zygote a child, with its own plan or the shared plan. Returns the number of userfaultfds
/// in its stub's queue.
fn transfer(bed: &Bed, zygote: &Program, child: &ChildId, plan: Option<&MemoryPlan>) -> Result<usize, ClientError> {
    let dir = bed.dir.path().join(child.to_string());
    fs::create_dir_all(&dir).unwrap();
    match plan {
        Some(plan) => plan.write(&dir).unwrap(),
        None => MemoryPlan::link_for_copy(&zygote.dir, &dir).unwrap(),
    }
    let (keep, kept) = fd_passing::seqpacket_pair().unwrap();
    let pid = zygote.process.id() as i32;
    bed.client.transfer(&zygote.id, child, &dir, pid, keep.as_fd())?;
    Ok(fd_passing::receive(kept.as_fd(), &mut [0; 4], 1).unwrap().1.len())
}

fn copies() {
    let seed = TestSeed::new(PAGES, false);
    let owner = Owner::start(&seed);
    let bed = Bed::new();
    let plan = seed.plan(owner.address(), PagingStrategy::default());
    let mut zygote = bed.start("bear_copies", PAGES, &MemoryPlan { is_zygote: true, ..plan.clone() });
    let children: Vec<ChildId> =
        (0..5).map(|number| ChildId::new(NodeName::new("n3").unwrap(), 1000 + number)).collect();
    let mut inherited = 0;
    for (round, child) in children.iter().enumerate() {
        if round == 3 {
            let zygotes = bed.stats(&zygote).counters;
            assert!(zygotes.faults < 100, "copies are transferred before most of their faults: {zygotes:?}");
            assert!(zygotes.zero_pages > 0, "the zygote has zero pages for later copies: {zygotes:?}");
        }
        zygote.meet();
        if round == 2 {
            inherited = bed.stats(&zygote).counters.zero_pages;
        }
        zygote.let_go();
        zygote.meet();
        if round == 1 || round == 4 {
            bed.kill_pager();
        }
        if round == 2 {
            let mut others = plan.clone();
            others.sources[0].token = Token::from_bytes([9; 16]);
            let refused = transfer(&bed, &zygote, child, Some(&others)).unwrap_err().to_string();
            assert!(refused.contains("differs from its zygote's"), "{refused}");
        }
        let own = Some(&plan).filter(|_| round == 2);
        assert_eq!(transfer(&bed, &zygote, child, own).unwrap(), 1, "its userfaultfd is kept");
        if round == 0 || round == 3 {
            bed.kill_pager();
        }
        zygote.let_go();
    }
    zygote.expect_success();
    for child in &children[..3] {
        let counters = bed.client.stats(child).unwrap().counters;
        assert!(
            counters.pages_fetched > seed.populated_pages() / 2,
            "the child itself fetched most pages: {counters:?}"
        );
    }
    let counters = [0, 1, 2].map(|child| bed.client.stats(&children[child]).unwrap().counters);
    check_inherited_zero_pages(inherited, counters);
    for child in &children {
        bed.client.release(child).unwrap();
    }
    bed.finish(zygote);
    bed.end();
}

/// Checks that a zygote got the zero pages for which its second copy waited, and that the third copy inherited them.
/// `inherited` is the zygote's number of zero pages before the third copy was forked. The zygote got none for the first
/// copy, because the pager was killed before that copy touched a page.
///
/// Each copy consists of two processes, and each of them touches every zero page. So the second copy waited for
/// different pages in at least half of its faults, and both processes of the third copy inherit each page.
fn check_inherited_zero_pages(inherited: u64, [first, second, third]: [PagerCounters; 3]) {
    assert!(inherited >= second.faults_zero.div_ceil(2), "the zygote has {inherited} zero pages: {second:?}");
    assert!(
        third.zero_pages + 2 * inherited <= first.zero_pages,
        "later copies inherit the {inherited} zero pages of their zygote: {first:?}, {third:?}"
    );
}

/// In 64 MiB, a first child touches a twentieth at random, and readahead fetches far more.
fn prefetches_touched_pages() {
    let pages = 16 * PAGES;
    let series = Series::new(pages);
    let first = series.run_to_end("touch_sparsely", PagingStrategy::default());
    soon("a whole set", || (series.seed.set_pages() >= first.pages_fetched).then_some(()));
    let plan = series.plan(PagingStrategy::default());
    let mut zygote = series.bed.start("pause_then_touch_sparsely", pages, &MemoryPlan { is_zygote: true, ..plan });
    zygote.meet();
    soon("a filled zygote", || (!series.bed.client.is_zygote_filling(&zygote.id).unwrap()).then_some(()));
    let given = series.bed.stats(&zygote).counters.pages_fetched;
    assert!(
        (first.faults / 2..=first.faults).contains(&given),
        "of {} pages {given}: {first:?}",
        series.seed.set_pages()
    );
    assert!(2 * given < series.seed.set_pages(), "{given} of {}", series.seed.set_pages());
    zygote.let_go();
    zygote.meet();
    zygote.let_go();
    series.end(zygote);
    series.bed.end();
}
