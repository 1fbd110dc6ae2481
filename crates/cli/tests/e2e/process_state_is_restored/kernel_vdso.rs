//! Children that run as if their kernel had another vDSO than the parent's.

use std::fs;

use super::{Subject, by_each_strategy, require_pass};
use crate::harness::{Cluster, Seed};

/// Treats all children as if their kernel had another vDSO. A child of a child has its vDSO redirected twice.
pub(super) fn other_kernel_vdso() {
    let others = Cluster::start_with(2, &["--bridge-vdso"]);
    by_each_strategy(&others, "vdso");
    by_each_strategy(&others, "process_tree");
    let subject = Subject::start("vdso");
    let seed = Seed::prepare(others.first(), &subject.parent);
    let middle = seed.fork_idle(1, &["--to", others.name(1)]).remove(0);
    assert_ne!(vdso_mapping(subject.parent.pid()), vdso_mapping(middle.pid), "the vDSO is not redirected");
    let again = Seed::prepare_process(others.node(1), &middle.pid.to_string(), &[]);
    require_pass(others.node(1), &again.fork_detached(&["1".to_owned()], &["--to", others.name(0)]));
    subject.check();
}

fn vdso_mapping(pid: i32) -> String {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vdso").to_owned()
}
