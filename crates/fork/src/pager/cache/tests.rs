//! The cache with pages that say what they are.

use std::time::Duration;

use farfork_wire::Token;

use super::upkeep::{SILENT_LIMIT, Upkeep};
use super::*;

const SLAB_BYTES: u64 = slabs::SLAB_BYTES as u64;

fn key(seed: &str, token: u8) -> Arc<SeedKey> {
    Arc::new(SeedKey { seed: seed.parse().unwrap(), token: Token::from_bytes([token; 16]) })
}

fn first() -> Arc<SeedKey> {
    key("n1.s0000000000000001", 1)
}

fn second() -> Arc<SeedKey> {
    key("n1.s0000000000000002", 2)
}

fn owner() -> Address {
    "tcp:127.0.0.1:7001".parse().unwrap()
}

/// The bytes of a page.
fn page(seed: &SeedKey, extent: u32, number: u64) -> Vec<u8> {
    let text = format!("{} {extent} {number} ", seed.seed);
    text.bytes().cycle().take(PAGE_SIZE as usize).collect()
}

fn put(cache: &mut PageCache, key: &Arc<SeedKey>, extent: u32, pages: std::ops::Range<u64>, now: Instant) {
    let data: Vec<u8> = pages.clone().flat_map(|number| page(key, extent, number)).collect();
    cache.put(key, &owner(), (ExtentId(extent), pages.start), &data, now);
}

/// No pages.
const NONE: [u64; 0] = [];

/// Which of these pages are there; each is checked to be right.
fn there(cache: &mut PageCache, key: &SeedKey, extent: u32, pages: std::ops::Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    for number in pages {
        let bytes = cache.get(key, ExtentId(extent), number, 1, Instant::now());
        if !bytes.is_empty() {
            assert_eq!(bytes, page(key, extent, number), "page {number}");
            found.push(number);
        }
    }
    found
}

#[test]
fn pages_are_found_under_their_seed_and_token_only() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    put(&mut cache, &first(), 3, 10..20, now);
    assert_eq!(there(&mut cache, &first(), 3, 8..22), (10..20).collect::<Vec<_>>());
    assert_eq!(there(&mut cache, &first(), 4, 10..20), NONE);
    assert_eq!(there(&mut cache, &second(), 3, 10..20), NONE);
    let forged = key("n1.s0000000000000001", 9);
    assert_eq!(there(&mut cache, &forged, 3, 10..20), NONE);
    put(&mut cache, &forged, 3, 20..21, now);
    assert_eq!(there(&mut cache, &first(), 3, 20..21), NONE, "and nothing is put in by who has another token");
    assert_eq!(cache.stats().hits, 10);
}

#[test]
fn neighbours_come_together_within_a_slab() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    put(&mut cache, &first(), 0, 0..100, now);
    let expected: Vec<u8> = (2..64).flat_map(|number| page(&first(), 0, number)).collect();
    assert_eq!(cache.get(&first(), ExtentId(0), 2, 90, now), expected);
    assert_eq!(cache.get(&first(), ExtentId(0), 2, 5, now).len(), 5 * PAGE_SIZE as usize);
}

#[test]
fn the_limit_holds_and_what_was_used_longest_ago_goes() {
    let (mut cache, now) = (PageCache::new(3 * SLAB_BYTES + 5), Instant::now());
    put(&mut cache, &first(), 0, 0..64, now);
    put(&mut cache, &second(), 0, 0..64, now);
    put(&mut cache, &first(), 0, 64..128, now);
    assert_eq!(there(&mut cache, &first(), 0, 0..1), [0], "it is used");
    put(&mut cache, &first(), 0, 128..130, now);
    assert_eq!(there(&mut cache, &second(), 0, 0..64), NONE, "the oldest that nobody used");
    assert_eq!(there(&mut cache, &first(), 0, 0..130).len(), 130);
    let stats = cache.stats();
    assert_eq!((stats.bytes, stats.bytes_max, stats.pages), (3 * SLAB_BYTES, 3 * SLAB_BYTES, 130));
    assert_eq!((stats.seeds, stats.evictions), (1, 64));
}

#[test]
fn a_full_cache_takes_any_number_of_pages() {
    let (mut cache, now) = (PageCache::new(2 * SLAB_BYTES), Instant::now());
    for round in 0..40 {
        for key in [first(), second()] {
            put(&mut cache, &key, round, 0..50, now);
            assert_eq!(there(&mut cache, &key, round, 49..50), [49], "the last one in is there");
        }
        assert!(cache.stats().bytes <= 2 * SLAB_BYTES);
    }
    let mut none = PageCache::new(SLAB_BYTES - 1);
    put(&mut none, &first(), 0, 0..50, now);
    assert_eq!(none.stats().pages, 0, "no room, no pages");
}

#[test]
fn a_seed_leaves_with_all_its_pages() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    put(&mut cache, &first(), 0, 0..100, now);
    put(&mut cache, &second(), 0, 0..10, now);
    cache.forget(&first().seed);
    assert_eq!(there(&mut cache, &first(), 0, 0..100), NONE);
    assert_eq!(there(&mut cache, &second(), 0, 0..10).len(), 10);
    assert_eq!(cache.stats().bytes, SLAB_BYTES);
    put(&mut cache, &first(), 0, 50..52, now);
    assert_eq!(there(&mut cache, &first(), 0, 0..100), [50, 51]);
}

#[test]
fn another_limit_begins_anew_and_the_same_does_not() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    put(&mut cache, &first(), 0, 0..10, now);
    cache.limit(1 << 20);
    assert_eq!(cache.stats().pages, 10);
    cache.limit(1 << 21);
    assert_eq!((cache.stats().pages, cache.stats().bytes), (0, 0));
    put(&mut cache, &first(), 0, 0..10, now);
    assert_eq!(there(&mut cache, &first(), 0, 0..10).len(), 10);
}

#[test]
fn owners_are_asked_and_silent_ones_not_for_ever() {
    let (mut cache, begin) = (PageCache::new(1 << 20), Instant::now());
    put(&mut cache, &first(), 0, 0..10, begin);
    let ask = || Upkeep::Ask(first(), owner());
    let at = |seconds| begin + Duration::from_secs(seconds);
    assert_eq!(cache.upkeep(at(4)), []);
    assert_eq!(cache.upkeep(at(5)), [ask()]);
    assert_eq!(cache.upkeep(at(6)), [], "the answer is on its way");
    cache.confirmed(&first().seed, at(6));
    assert_eq!(cache.upkeep(at(10)), []);
    assert_eq!(cache.upkeep(at(11)), [ask()]);
    assert_eq!(cache.upkeep(at(6) + SILENT_LIMIT), [Upkeep::Forget(first().seed.clone())]);
}
