//! Programs whose state is refused: by `check` and `prepare`, or only at the stop.

use super::Subject;
use crate::harness::{Cluster, proc_snapshot};

/// prepare and check refuse the program for the same reason, and change nothing.
pub(super) fn refused(cluster: &Cluster, name: &'static str, words: &[&str]) {
    let subject = Subject::start(name);
    let pid = subject.parent.pid_text();
    let checked = cluster.first().run(&["check", &pid]);
    let said = format!("{}{}", checked.stdout, checked.stderr).to_lowercase();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|word| said.contains(&word.to_lowercase())), "check says {said}");
    require_refusal(cluster, subject, words);
}

/// The state is visible only while the process is stopped. `check` does not stop the process, so only prepare refuses.
pub(super) fn refused_at_stop(cluster: &Cluster, name: &'static str, words: &[&str]) {
    require_refusal(cluster, Subject::start(name), words);
}

/// The state may change until the process is stopped. `check` only notes it; prepare refuses it for the same reason.
pub(super) fn refused_with_note(cluster: &Cluster, name: &'static str, words: &[&str]) {
    refused_with_notes(cluster, name, words, &[]);
}

/// As `refused_with_note`. prepare names only the first object that it refuses, and `check` names others with `also_noted`.
pub(super) fn refused_with_notes(cluster: &Cluster, name: &'static str, words: &[&str], also_noted: &[&str]) {
    let subject = Subject::start(name);
    let checked = cluster.first().run(&["check", &subject.parent.pid_text()]);
    let said = format!("{}{}", checked.stdout, checked.stderr);
    assert_eq!(checked.status.code(), Some(0), "{said}");
    let has_all = words.iter().chain(also_noted).all(|word| said.contains(word));
    assert!(has_all && said.contains("a prepare is refused while"), "{said}");
    require_refusal(cluster, subject, words);
}

/// Number of ticks that show that a parent continues.
const TICKS: usize = 40;

/// The error names the object. The process has the same state as before, continues to tick, and finds its own state
/// unchanged. `parent_runs_on_unharmed::a_refused_prepare_stops_it_only_briefly` tests how long the process is
/// stopped.
fn require_refusal(cluster: &Cluster, mut subject: Subject, words: &[&str]) {
    let parent = &mut subject.parent;
    parent.wait_for_ticks(TICKS);
    let (pid, before) = (parent.pid_text(), proc_snapshot::read_proc_snapshot(parent.pid()));
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&[&*pid], words].concat());
    assert_eq!(before, proc_snapshot::read_proc_snapshot(parent.pid()));
    parent.wait_for_ticks(TICKS);
    assert_eq!(before, proc_snapshot::read_proc_snapshot(parent.pid()));
    subject.check();
}
