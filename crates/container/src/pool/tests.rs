//! Tests of the pool: the number and kind of the containers that it keeps.

use super::*;
use crate::config::RootSpec;

#[test]
fn unused_container_kinds_are_evicted() {
    let mut state = PoolState::default();
    let (usual, other) = (ContainerSpec::default(), ContainerSpec::from(RootSpec::Shared));
    for kind in [usual, other] {
        state.touch_spec_pool(kind).target_size = 3;
    }
    let now = Instant::now();
    let goes = state.evict_unused(now).expect("one of them expires");
    assert!(goes > now && goes <= now + UNUSED_LIMIT);
    assert_eq!(state.evict_unused(goes), None);
    assert_eq!([usual, other].map(|kind| state.spec_pool(kind).target_size), [3, 0]);
}

#[test]
fn spare_containers_are_built_in_quiet_periods() {
    let (mut state, now, kind) = (PoolState::default(), Instant::now(), ContainerSpec::default());
    state.spec_pool(kind).target_size = 8;
    state.last_taken = Some(now);
    assert!(matches!(state.next_task(now), FillerTask::Build(_)), "none is ready or being built");
    state.spec_pool(kind).building = READY_WHILE_BUSY_MAX;
    assert!(matches!(state.next_task(now), FillerTask::Wait(Some(busy_until)) if busy_until == now + QUIET_PERIOD));
    state.spec_pool(kind).waiting = 1;
    assert!(matches!(state.next_task(now), FillerTask::Build(_)), "a request waits for one more");
    state.spec_pool(kind).waiting = 0;
    assert!(matches!(state.next_task(now + QUIET_PERIOD), FillerTask::Build(_)));
    state.spec_pool(kind).building = 8;
    assert!(matches!(state.next_task(now + QUIET_PERIOD), FillerTask::Wait(None)));
}
