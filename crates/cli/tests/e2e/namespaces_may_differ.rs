//! A parent in its own namespaces: `check` and `prepare` refuse it, and name what its children would lack. With
//! `--namespaces node`, the children use the node's namespaces. Other differences are notes.

use std::process::Command;

use crate::harness::{Cluster, Parent, Program, Seed};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("unchanged_namespaces_are_accepted_with_notes", unchanged),
    Test::shared("a_changed_host_name_is_refused", |cluster| {
        refused(cluster, &["--uts"], "hostname own-name", &["host name", "own-name"]);
    }),
    Test::shared("a_changed_ipc_limit_is_refused", |cluster| {
        refused(cluster, &["--ipc"], "echo 7777 > /proc/sys/kernel/msgmax", &["/proc/sys/kernel/msgmax", "7777"]);
    }),
    Test::shared("a_current_directory_on_a_private_mount_is_refused", |cluster| {
        let script = "mount -t tmpfs own-mount /mnt && cd /mnt";
        refused(cluster, &["--mount"], script, &["current directory", "/mnt"]);
    }),
    Test::shared("an_open_directory_on_a_private_mount_is_refused", |cluster| {
        refused(cluster, &["--mount"], "mount -t tmpfs own-mount /mnt && exec 7</mnt", &["fd 7", "/mnt"]);
    }),
    Test::shared("a_socket_of_another_network_is_refused", |cluster| {
        let script = "ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec 7<>/dev/udp/192.0.2.1/9 8<>/dev/udp/127.0.0.1/9";
        refused(cluster, &["--net"], script, &["fd 7", "network"]);
    }),
    Test::shared("a_private_root_directory_is_refused", root_directory),
];

/// Options of unshare(1) for all kinds of namespaces that a parent may have for itself.
const ALL: [&str; 5] = ["--mount", "--uts", "--ipc", "--net", "--cgroup"];

/// Starts a parent in new namespaces. There, a shell runs a script before it executes the program.
fn start(namespaces: &[&str], script: &str) -> Parent {
    let program = Program::Waits.command();
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["bash", "-c", &format!(r#"{script} && exec "$0" "$@""#)]);
    Parent::start_command(command.arg(program.get_program()).args(program.get_args()).arg("4"))
}

fn refused(cluster: &Cluster, namespaces: &[&str], script: &str, words: &[&str]) {
    let mut parent = start(namespaces, script);
    let pid = parent.pid_text();
    let checked = cluster.first().json_ignoring_status(&["check", &pid]);
    let refusals = checked["refusals"].as_array().expect("a list");
    assert_eq!(refusals.len(), 1, "{checked}");
    let told = refusals[0].to_string();
    assert!(words.iter().all(|word| told.contains(word)), "check says {told}");
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&[&*pid, "--namespaces node"], words].concat());
    parent.require_unharmed();

    let accepted = cluster.first().json(&["check", &pid, "--namespaces", "node"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--namespaces", "node"]);
    let told = cluster.first().json(&["inspect", seed.id()])["notes"].clone();
    let has_words = |note: &serde_json::Value| words.iter().all(|word| note.to_string().contains(word));
    assert!(told.as_array().is_some_and(|notes| notes.iter().any(has_words)), "{told}");
    let noted_before =
        |note: &serde_json::Value| accepted["notes"].as_array().is_some_and(|notes| notes.contains(note));
    assert!(told.as_array().is_some_and(|notes| notes.iter().all(noted_before)), "{told}, and before {accepted}");
    seed.fork_and_check(&parent, 5, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}

/// The parent has namespaces of its own, but its children lack nothing. Notes name the differences. A seed of a child
/// has no notes, because children of the child are in the same kinds of namespaces.
fn unchanged(cluster: &Cluster) {
    let mut parent = start(&ALL, "true");
    let checked = cluster.first().json(&["check", &parent.pid_text()]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let told = cluster.first().json(&["inspect", seed.id()])["notes"].clone();
    let notes = told.as_array().expect("a list").clone();
    for word in ["mounts", "host name", "IPC", "network", "control groups"] {
        let is_of_it = |note: &&serde_json::Value| note.to_string().contains(word);
        assert_eq!(notes.iter().filter(is_of_it).count(), 1, "{word}: {told}");
    }
    assert!(
        notes.iter().all(|note| checked["notes"].as_array().is_some_and(|noted| noted.contains(note))),
        "{checked}"
    );
    seed.fork_and_check(&parent, 5, &["--to", cluster.name(1)]);

    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    let again = Seed::prepare_process(cluster.node(1), &child.pid.to_string(), &[]);
    assert_eq!(cluster.node(1).json(&["inspect", again.id()])["notes"], serde_json::json!([]));
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    parent.require_unharmed();
}

/// The parent has its own root directory, like a program in a container. Children find its files, although its root is
/// not the node's.
fn root_directory(cluster: &Cluster) {
    let script = "mount -t tmpfs own-mount /mnt && mkdir /mnt/upper /mnt/work /mnt/top \
         && mount -t overlay own-mount -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/top \
         && mount --rbind /proc /mnt/top/proc && cd /mnt/top && pivot_root . mnt && cd / && umount -l /mnt";
    let mut parent = start(&["--mount"], script);
    let pid = parent.pid_text();
    let checked = cluster.first().json_ignoring_status(&["check", &pid]);
    assert_eq!(checked["refusals"].as_array().map(Vec::len), Some(1), "{checked}");
    cluster.first().run_failing(&["prepare", &pid]).require_mentions(&[&pid, "root directory", "--namespaces node"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--namespaces", "node"]);
    seed.fork_and_check(&parent, 5, &["--to", cluster.name(1)]);
    parent.require_unharmed();
}
