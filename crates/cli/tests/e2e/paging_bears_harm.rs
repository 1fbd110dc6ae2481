//! Paging bears harm: a soak with everything that may fail failing finds no wrong byte, no child that ends as it should not, and
//! nothing that a node does not let go of. It runs beside other tests, which wait most of the time.

use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Farfork, deadline};
use crate::test::Test;

/// Stands in front of the tests that it runs beside.
pub(crate) const BEGINNING: &[Test] = &[Test::alone("for_long", begins)];

/// Stands behind them.
pub(crate) const END: &[Test] =
    &[Test::alone("and_loses_nothing", ends).within(|| RUN_LIMIT + Duration::from_secs(10))];

/// The same choices in each run, so that what fails can be looked at again.
const ARGUMENTS: [&str; 7] = ["stress", "paging", "--seconds", "60", "--seed", "1", "--json"];

/// Rounds begin for a minute, the last one may have to wait for another, and for two at most nodes let go of things and are
/// timed.
const RUN_LIMIT: Duration = Duration::from_secs(240);

/// The soak, from its beginning to its end.
static SOAK: Mutex<Option<Child>> = Mutex::new(None);

fn start() -> Child {
    Farfork::at("/nonexistent".as_ref()).spawn(&ARGUMENTS)
}

fn begins() {
    let mut soak = SOAK.lock().unwrap_or_else(PoisonError::into_inner);
    let running = soak.get_or_insert_with(start);
    let ended = running.try_wait().expect("our own child");
    assert!(ended.is_none(), "it ended before it could begin: {ended:?}");
}

fn ends() {
    let begun = SOAK.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Where nothing else was to be run, or the beginning was not.
    let soak = begun.unwrap_or_else(start);
    let ended = deadline::wait_with_output(soak, "farfork stress paging", RUN_LIMIT);
    assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let outcome = &said["outcome"];
    for done in ["rounds", "sound", "pages_verified", "seeds"] {
        assert!(outcome[done].as_u64() > Some(0), "{said}");
    }
    assert!(outcome["rate_after"]["of_floor"].as_f64() > Some(0.0), "{said}");
    let deeds = outcome["deeds"].as_object().expect("deeds by kind");
    assert!(deeds["fan_out"].as_u64() > Some(0), "{said}");
    assert!(deeds.len() > 1 && outcome["counts"].as_array().is_some_and(|counts| !counts.is_empty()), "{said}");
}
