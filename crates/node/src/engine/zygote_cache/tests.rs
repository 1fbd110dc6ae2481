//! Tests of `ZygoteCache`: reservations whose creation ends in an unusual way.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn zygotes() -> ZygoteCache {
    let run_dir = RunDir::new("/nonexistent");
    let limits = ZygoteLimits { count_max: 1, idle_max: Duration::from_secs(20) };
    ZygoteCache::new("n1".parse().unwrap(), run_dir, Arc::new(PagerLink::unconnected()), limits)
}

#[tokio::test]
async fn a_panicked_zygote_creation_ends_its_waits() {
    let (zygotes, seed) = (zygotes(), "n1.s0123456789abcdef".parse().unwrap());
    let mut waiter = Box::pin(zygotes.wait_created(&seed));
    let reservation = zygotes.reserve(&seed, ZygoteTrigger::Requested).unwrap();
    assert!(zygotes.reserve(&seed, ZygoteTrigger::Requested).is_none(), "the zygote is already being made");
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut waiter).await.is_err(), "it is being made");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _reservation = reservation;
        panic!("while it is made");
    }));
    assert!(panicked.is_err());
    tokio::time::timeout(Duration::from_secs(60), waiter).await.unwrap();
    assert!(
        !zygotes.has_no_entry(&seed) && zygotes.reserve(&seed, ZygoteTrigger::Requested).is_none(),
        "the zygote is not made again"
    );
    assert_eq!(zygotes.counts().kept, 0);
}

#[test]
fn a_seed_dropped_during_zygote_creation_has_no_entry() {
    let (zygotes, seed) = (zygotes(), "n1.s0123456789abcdef".parse().unwrap());
    let reservation = zygotes.reserve(&seed, ZygoteTrigger::Requested).unwrap();
    zygotes.retire(&seed);
    drop(reservation);
    assert!(zygotes.has_no_entry(&seed));
}

#[test]
fn only_a_seed_with_a_late_zygote_gets_another_attempt() {
    let (zygotes, late, unsuitable) =
        (zygotes(), "n1.s0123456789abcdef".parse().unwrap(), "n1.sfedcba9876543210".parse().unwrap());
    zygotes.retire_failed(&late, true);
    zygotes.retire_failed(&unsuitable, false);
    let keep_up = || zygotes.evict_unused(|_| false, |_| false);
    keep_up();
    assert!(
        zygotes.is_decided(&late) && zygotes.reserve(&late, ZygoteTrigger::Requested).is_none(),
        "another zygote only after the pause"
    );
    let expire = |entry: &mut ZygoteState| {
        if let ZygoteState::Unsuitable { until: Some(until) } = entry {
            *until -= LATE_PAUSE;
        }
    };
    zygotes.table().values_mut().for_each(expire);
    keep_up();
    assert!(zygotes.reserve(&late, ZygoteTrigger::Requested).is_some());
    assert!(zygotes.is_decided(&unsuitable) && zygotes.reserve(&unsuitable, ZygoteTrigger::Requested).is_none());
}
