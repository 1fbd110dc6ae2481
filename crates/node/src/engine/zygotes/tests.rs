//! Places of zygotes whose making ends in an unusual way.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn zygotes() -> Zygotes {
    let run_dir = RunDir::new("/nonexistent");
    Zygotes::new("n1".parse().unwrap(), run_dir, Arc::new(PagerLink::nowhere()), 1)
}

#[tokio::test]
async fn nobody_waits_for_a_zygote_whose_making_panicked() {
    let (zygotes, seed) = (zygotes(), "n1.s0123456789abcdef".parse().unwrap());
    let mut waiter = Box::pin(zygotes.settled(&seed));
    let place = zygotes.reserve(&seed, Hatching::Asked).unwrap();
    assert!(zygotes.reserve(&seed, Hatching::Asked).is_none(), "somebody makes it");
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut waiter).await.is_err(), "it is being made");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _place = place;
        panic!("while it is made");
    }));
    assert!(panicked.is_err());
    tokio::time::timeout(Duration::from_secs(60), waiter).await.unwrap();
    assert!(!zygotes.is_unknown(&seed) && zygotes.reserve(&seed, Hatching::Asked).is_none(), "it is not tried again");
    assert_eq!(zygotes.counts().kept, 0);
}

#[test]
fn a_seed_that_was_dropped_meanwhile_stays_unknown() {
    let (zygotes, seed) = (zygotes(), "n1.s0123456789abcdef".parse().unwrap());
    let place = zygotes.reserve(&seed, Hatching::Asked).unwrap();
    zygotes.retire(&seed);
    drop(place);
    assert!(zygotes.is_unknown(&seed));
}

#[test]
fn a_seed_whose_zygote_was_late_gets_another_one_and_no_other_seed_does() {
    let (zygotes, late, unfit) =
        (zygotes(), "n1.s0123456789abcdef".parse().unwrap(), "n1.sfedcba9876543210".parse().unwrap());
    zygotes.retire_failed(&late, true);
    zygotes.retire_failed(&unfit, false);
    let keep_up = || zygotes.keep_up(|_| false, |_| false);
    keep_up();
    assert!(zygotes.knows(&late) && zygotes.reserve(&late, Hatching::Asked).is_none(), "not at once");
    let expire = |entry: &mut Entry| {
        if let Entry::Unfit { until: Some(until) } = entry {
            *until -= LATE_PAUSE;
        }
    };
    zygotes.table().values_mut().for_each(expire);
    keep_up();
    assert!(zygotes.reserve(&late, Hatching::Asked).is_some());
    assert!(zygotes.knows(&unfit) && zygotes.reserve(&unfit, Hatching::Asked).is_none());
}
