//! A soak test that injects every kind of failure finds no wrong page, no child that ends unexpectedly, and no leak on
//! a node.

use std::time::Duration;

use serde_json::Value;

use crate::harness::Farfork;
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("for_thirty_seconds", || drop(soak("30"))).within(|| RUN_LIMIT + Duration::from_secs(10)),
    Test::alone("for_five_minutes_with_each_kind_of_fault", five_minutes).long(),
];

/// Time limit of the soak test. The test starts rounds for the requested time. Then, for up to two minutes, nodes release
/// memory, and the page rate is measured.
const RUN_LIMIT: Duration = Duration::from_secs(900);

/// Runs the soak test, and returns its report. The random choices follow from a fixed seed, so a failure can be
/// reproduced.
fn soak(seconds: &str) -> Value {
    let arguments = ["stress", "paging", "--seconds", seconds, "--seed", "1", "--json"];
    let ended = Farfork::at("/nonexistent".as_ref()).run_within(RUN_LIMIT, &arguments);
    ended.require_success();
    let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let outcome = said["outcome"].clone();
    for done in ["rounds", "sound", "pages_verified", "seeds"] {
        assert!(outcome[done].as_u64() > Some(0), "{said}");
    }
    assert!(outcome["rate_after"]["of_floor"].as_f64() > Some(0.0), "{said}");
    assert!(outcome["counts"].as_array().is_some_and(|counts| !counts.is_empty()), "{said}");
    // On a slow machine, the run may end after one round. The first round of this seed has no actions. The second has
    // fan-outs and others.
    if outcome["rounds"].as_u64() > Some(1) {
        require_several_kinds_of_actions(&outcome);
    }
    outcome
}

fn require_several_kinds_of_actions(outcome: &Value) {
    let deeds = outcome["deeds"].as_object().expect("deeds by kind");
    assert!(deeds["fan_out"].as_u64() > Some(0) && deeds.len() > 1, "{outcome}");
}

/// Five minutes are enough for each kind of round.
fn five_minutes() {
    require_several_kinds_of_actions(&soak("300"));
}
