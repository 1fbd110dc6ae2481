//! Tests of the page cache, with pages whose bytes name their seed, extent and number.

use std::time::Duration;

use farfork_wire::Token;

use super::revalidation::{OWNER_SILENT_LIMIT, RevalidationAction};
use super::*;

const SLAB_BYTES: u64 = slab_allocator::SLAB_BYTES as u64;

fn seed_key(seed: &str, token: u8) -> Arc<SeedKey> {
    Arc::new(SeedKey { seed: seed.parse().unwrap(), token: Token::from_bytes([token; 16]) })
}

fn first_seed() -> Arc<SeedKey> {
    seed_key("n1.s0000000000000001", 1)
}

fn second_seed() -> Arc<SeedKey> {
    seed_key("n1.s0000000000000002", 2)
}

fn owner() -> Address {
    "tcp:127.0.0.1:7001".parse().unwrap()
}

/// The bytes of a page.
fn page_bytes(seed: &SeedKey, extent: u32, number: u64) -> Vec<u8> {
    let text = format!("{} {extent} {number} ", seed.seed);
    text.bytes().cycle().take(PAGE_SIZE as usize).collect()
}

fn insert_pages(cache: &mut PageCache, key: &Arc<SeedKey>, extent: u32, pages: std::ops::Range<u64>, now: Instant) {
    let data: Vec<u8> = pages.clone().flat_map(|number| page_bytes(key, extent, number)).collect();
    cache.insert(key, &owner(), PageKey { extent: ExtentId(extent), page: pages.start }, &data, now);
}

/// No pages.
const NONE: [u64; 0] = [];

/// Returns which of these pages are cached. Checks the bytes of each.
fn cached_pages(cache: &mut PageCache, key: &SeedKey, extent: u32, pages: std::ops::Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    for number in pages {
        let bytes = cache.get(key, ExtentId(extent), number, 1, Instant::now());
        if !bytes.is_empty() {
            assert_eq!(bytes, page_bytes(key, extent, number), "page {number}");
            found.push(number);
        }
    }
    found
}

#[test]
fn cached_pages_are_found_only_with_their_seed_and_token() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    insert_pages(&mut cache, &first_seed(), 3, 10..20, now);
    assert_eq!(cached_pages(&mut cache, &first_seed(), 3, 8..22), (10..20).collect::<Vec<_>>());
    assert_eq!(cached_pages(&mut cache, &first_seed(), 4, 10..20), NONE);
    assert_eq!(cached_pages(&mut cache, &second_seed(), 3, 10..20), NONE);
    let forged = seed_key("n1.s0000000000000001", 9);
    assert_eq!(cached_pages(&mut cache, &forged, 3, 10..20), NONE);
    insert_pages(&mut cache, &forged, 3, 20..21, now);
    assert_eq!(cached_pages(&mut cache, &first_seed(), 3, 20..21), NONE, "a wrong token inserts nothing");
    assert_eq!(cache.stats().hits, 10);
}

#[test]
fn adjacent_cached_pages_are_returned_up_to_the_slab_end() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    insert_pages(&mut cache, &first_seed(), 0, 0..100, now);
    let expected: Vec<u8> = (2..64).flat_map(|number| page_bytes(&first_seed(), 0, number)).collect();
    assert_eq!(cache.get(&first_seed(), ExtentId(0), 2, 90, now), expected);
    assert_eq!(cache.get(&first_seed(), ExtentId(0), 2, 5, now).len(), 5 * PAGE_SIZE as usize);
}

#[test]
fn the_cache_evicts_the_least_recently_used_pages() {
    let (mut cache, now) = (PageCache::new(3 * SLAB_BYTES + 5), Instant::now());
    insert_pages(&mut cache, &first_seed(), 0, 0..64, now);
    insert_pages(&mut cache, &second_seed(), 0, 0..64, now);
    insert_pages(&mut cache, &first_seed(), 0, 64..128, now);
    assert_eq!(cached_pages(&mut cache, &first_seed(), 0, 0..1), [0], "looking up the page marks it as used");
    insert_pages(&mut cache, &first_seed(), 0, 128..130, now);
    assert_eq!(cached_pages(&mut cache, &second_seed(), 0, 0..64), NONE, "the least recently used pages are evicted");
    assert_eq!(cached_pages(&mut cache, &first_seed(), 0, 0..130).len(), 130);
    let stats = cache.stats();
    assert_eq!((stats.bytes, stats.bytes_max, stats.pages), (3 * SLAB_BYTES, 3 * SLAB_BYTES, 130));
    assert_eq!((stats.seeds, stats.evictions), (1, 64));
}

#[test]
fn a_full_cache_accepts_any_number_of_pages() {
    let (mut cache, now) = (PageCache::new(2 * SLAB_BYTES), Instant::now());
    for round in 0..40 {
        for key in [first_seed(), second_seed()] {
            insert_pages(&mut cache, &key, round, 0..50, now);
            assert_eq!(cached_pages(&mut cache, &key, round, 49..50), [49], "the latest inserted page is cached");
        }
        assert!(cache.stats().bytes <= 2 * SLAB_BYTES);
    }
    let mut none = PageCache::new(SLAB_BYTES - 1);
    insert_pages(&mut none, &first_seed(), 0, 0..50, now);
    assert_eq!(none.stats().pages, 0, "a cache without room stores no pages");
}

#[test]
fn removing_a_seed_removes_all_its_pages() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    insert_pages(&mut cache, &first_seed(), 0, 0..100, now);
    insert_pages(&mut cache, &second_seed(), 0, 0..10, now);
    cache.remove_seed(&first_seed().seed);
    assert_eq!(cached_pages(&mut cache, &first_seed(), 0, 0..100), NONE);
    assert_eq!(cached_pages(&mut cache, &second_seed(), 0, 0..10).len(), 10);
    assert_eq!(cache.stats().bytes, SLAB_BYTES);
    insert_pages(&mut cache, &first_seed(), 0, 50..52, now);
    assert_eq!(cached_pages(&mut cache, &first_seed(), 0, 0..100), [50, 51]);
}

#[test]
fn a_changed_limit_empties_the_cache() {
    let (mut cache, now) = (PageCache::new(1 << 20), Instant::now());
    insert_pages(&mut cache, &first_seed(), 0, 0..10, now);
    cache.set_limit(1 << 20);
    assert_eq!(cache.stats().pages, 10);
    cache.set_limit(1 << 21);
    assert_eq!((cache.stats().pages, cache.stats().bytes), (0, 0));
    insert_pages(&mut cache, &first_seed(), 0, 0..10, now);
    assert_eq!(cached_pages(&mut cache, &first_seed(), 0, 0..10).len(), 10);
}

#[test]
fn owners_are_revalidated_until_they_are_silent_too_long() {
    let (mut cache, begin) = (PageCache::new(1 << 20), Instant::now());
    insert_pages(&mut cache, &first_seed(), 0, 0..10, begin);
    let ask = || RevalidationAction::CheckOwner(first_seed(), owner());
    let at = |seconds| begin + Duration::from_secs(seconds);
    assert_eq!(cache.due_revalidations(at(4)), []);
    assert_eq!(cache.due_revalidations(at(5)), [ask()]);
    assert_eq!(cache.due_revalidations(at(6)), [], "an owner is not asked twice within the interval");
    cache.confirm_seed(&first_seed().seed, at(6));
    assert_eq!(cache.due_revalidations(at(10)), []);
    assert_eq!(cache.due_revalidations(at(11)), [ask()]);
    assert_eq!(
        cache.due_revalidations(at(6) + OWNER_SILENT_LIMIT),
        [RevalidationAction::RemoveSeed(first_seed().seed.clone())]
    );
}
