//! Each command honours `--socket`, `--run-dir`, `--node` and `--trust`, or refuses them. An option of the command line
//! takes precedence over the environment: the variable FARFORK_SOCKET is set for all commands of this file.

use std::collections::BTreeSet;
use std::path::Path;

use crate::harness::scratch::TestDirectory;
use crate::harness::{BINARY, Cluster, scratch};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("by_commands_that_make_requests", clients),
    Test::shared("by_the_command_that_mounts_a_volume", mount),
    Test::shared("by_commands_of_the_trust_directory", trust_commands),
    Test::shared("by_commands_that_start_and_stop", local_commands),
    Test::shared("in_every_command", every_command),
];

/// A command, with the arguments that it requires.
#[derive(Clone, Copy)]
struct TestedCommand {
    name: &'static str,
    arguments: &'static [&'static str],
}

impl TestedCommand {
    const fn new(name: &'static str, arguments: &'static [&'static str]) -> Self {
        Self { name, arguments }
    }

    /// The command line with these options.
    fn line<'a>(&self, options: &[&'a str]) -> Vec<&'a str> {
        options.iter().copied().chain(self.name.split(' ')).chain(self.arguments.iter().copied()).collect()
    }

    /// `farfork volume check` has statuses of its own for damages.
    fn failure_status(&self) -> i32 {
        if self.name == "volume check" { 3 } else { 1 }
    }

    /// Requires that the command fails with a message that mentions `part`.
    #[track_caller]
    fn require_failure(&self, cluster: &Cluster, options: &[&str], part: &str) {
        self.require_status(cluster, options, self.failure_status(), part);
    }

    /// Requires a usage error that mentions `part`.
    #[track_caller]
    fn require_usage_error(&self, cluster: &Cluster, options: &[&str], part: &str) {
        self.require_status(cluster, options, 2, part);
    }

    #[track_caller]
    fn require_status(&self, cluster: &Cluster, options: &[&str], status: i32, part: &str) {
        let line = self.line(options);
        let failed = cluster.first().run_failing(&line);
        assert!(failed.status == status && failed.message.contains(part), "{line:?}: no `{part}` in {failed:?}");
    }

    /// Requires that the command does not accept the option.
    #[track_caller]
    fn require_refusal(&self, cluster: &Cluster, option: &str) {
        let value = if option == "--node" { ADDRESS } else { "/dev/null" };
        self.require_usage_error(cluster, &[option, value], &format!("does not use {option}"));
    }

    /// Requires that the command honours both options that select a Unix socket.
    fn require_socket_options(&self, cluster: &Cluster, scratch: &TestDirectory) {
        let (run_dir, socket) = (path_in(scratch, "run"), path_in(scratch, "socket"));
        self.require_failure(cluster, &["--run-dir", &run_dir], &format!("{run_dir}/node.sock"));
        self.require_failure(cluster, &["--socket", &socket], &socket);
        let both = ["--socket", &*socket, "--run-dir", &run_dir];
        self.require_usage_error(cluster, &both, "--run-dir and --socket each select a daemon");
    }
}

/// Commands that make requests to a node, with the arguments that they require.
const CLIENTS: &[TestedCommand] = &[
    TestedCommand::new("check", &["1"]),
    TestedCommand::new("prepare", &["1"]),
    TestedCommand::new("fork", &["x"]),
    TestedCommand::new("prewarm", &["x", "--to", "n1"]),
    TestedCommand::new("wait", &["x"]),
    TestedCommand::new("ps", &[]),
    TestedCommand::new("seeds", &[]),
    TestedCommand::new("nodes", &[]),
    TestedCommand::new("inspect", &["x"]),
    TestedCommand::new("logs", &["x"]),
    TestedCommand::new("kill", &["x"]),
    TestedCommand::new("exec", &["x", "true"]),
    TestedCommand::new("pause", &["x"]),
    TestedCommand::new("unpause", &["x"]),
    TestedCommand::new("settle", &["x"]),
    TestedCommand::new("core", &["x", "-o", "/dev/null"]),
    TestedCommand::new("rm", &["x"]),
    TestedCommand::new("drop", &["x"]),
    TestedCommand::new("volume create", &["x", "--replicas", "n1"]),
    TestedCommand::new("volume ls", &[]),
    TestedCommand::new("volume status", &["x"]),
    TestedCommand::new("volume check", &["x"]),
    TestedCommand::new("volume replace", &["x", "n1", "n2"]),
    TestedCommand::new("volume drop", &["x"]),
    TestedCommand::new("volume export-catalog", &["/dev/null/x"]),
];

/// The command that mounts a volume of a node of this machine.
const MOUNT: TestedCommand = TestedCommand::new("volume mount", &["x", "/mnt"]);

/// Commands that read or change a trust directory.
const TRUST_COMMANDS: &[TestedCommand] = &[
    TestedCommand::new("cluster token", &[]),
    TestedCommand::new("cluster issue", &["x", "--role", "client", "--out", "/dev/null/x"]),
    TestedCommand::new("cluster revoke", &["x"]),
    TestedCommand::new("cluster rotate", &["--authority"]),
    TestedCommand::new("cluster set-catalog", &["/dev/null/x"]),
    TestedCommand::new("cluster show", &[]),
];

/// Other commands, and the options that they use, or refuse by themselves.
const LOCAL_COMMANDS: &[(TestedCommand, &[&str])] = &[
    (TestedCommand::new("up", &["--restart"]), &["--run-dir"]),
    (TestedCommand::new("down", &[]), &["--run-dir"]),
    (TestedCommand::new("run", &["true"]), &["--run-dir"]),
    (TestedCommand::new("node", &["--name", "n1", "--listen", "127.0.0.1:0"]), &["--run-dir", "--trust"]),
    (TestedCommand::new("doctor", &[]), &["--socket", "--run-dir"]),
    (TestedCommand::new("cluster init", &[]), &["--node", "--trust"]),
    (TestedCommand::new("cluster join", JOIN_ARGUMENTS), &["--node", "--trust"]),
    (TestedCommand::new("cluster deploy", &["--inventory", "/dev/null"]), &[]),
    (TestedCommand::new("cluster undeploy", &["--inventory", "/dev/null"]), &[]),
    (TestedCommand::new("cluster rotate", &[]), &["--socket", "--run-dir", "--node"]),
    (TestedCommand::new("volume umount", &["/"]), &[]),
    (TestedCommand::new("volume import-catalog", &["/dev/null"]), &["--socket", "--run-dir", "--node", "--trust"]),
    (TestedCommand::new("demo", &[]), &[]),
    (TestedCommand::new("demo agent", &[]), &[]),
    (TestedCommand::new("bench", &[]), &[]),
    (TestedCommand::new("stress", &[]), &[]),
    (TestedCommand::new("man", &[]), &[]),
    (TestedCommand::new("completions", &["bash"]), &[]),
];

/// A token file that does not exist: the command fails before it connects.
const JOIN_ARGUMENTS: &[&str] = &["--name", "n9", "--join", ADDRESS, "--token-file", "/dev/null/token"];

/// An address at which no daemon listens.
const ADDRESS: &str = "127.0.0.1:1";

/// The path of an entry of a directory, which need not exist.
fn path_in(directory: &TestDirectory, name: &str) -> String {
    directory.path().join(name).to_str().expect("UTF-8").to_owned()
}

fn clients(cluster: &Cluster) {
    let scratch = scratch::directory();
    let missing = path_in(&scratch, "trust");
    let run_dir = cluster.run_dir(0).to_str().expect("UTF-8").to_owned();
    let trust = format!("{run_dir}/trust");
    for command in CLIENTS {
        command.require_socket_options(cluster, &scratch);
        command.require_failure(cluster, &["--node", ADDRESS, "--trust", &trust], ADDRESS);
        command.require_failure(cluster, &["--node", ADDRESS, "--trust", &missing], &missing);
        command.require_usage_error(cluster, &["--trust", &trust], "--trust is used with --node only");
    }
    let listed = cluster.node(1).json(&["nodes", "--run-dir", &run_dir]);
    let mut nodes = listed["nodes"].as_array().expect("nodes").iter();
    let own = nodes.find(|node| node["is_self"] == true).expect("this node");
    assert_eq!(own["name"], cluster.name(0), "--run-dir must take precedence over FARFORK_SOCKET");
}

fn mount(cluster: &Cluster) {
    MOUNT.require_socket_options(cluster, &scratch::directory());
    MOUNT.require_failure(cluster, &["--node", ADDRESS], &format!("--node {ADDRESS}"));
    MOUNT.require_refusal(cluster, "--trust");
}

fn trust_commands(cluster: &Cluster) {
    let scratch = scratch::directory();
    let missing = path_in(&scratch, "trust");
    for command in TRUST_COMMANDS {
        command.require_failure(cluster, &["--trust", &missing], &missing);
        command.require_failure(cluster, &["--node", ADDRESS], "drop --node");
        command.require_refusal(cluster, "--socket");
        command.require_refusal(cluster, "--run-dir");
    }
    assert!(!Path::new(&missing).exists());
    cluster.first().json(&["cluster", "init", "--trust", &missing]);
    assert_eq!(cluster.first().json(&["cluster", "show", "--trust", &missing])["trust"], *missing);
}

fn local_commands(cluster: &Cluster) {
    for (command, used) in LOCAL_COMMANDS {
        let unused = ["--socket", "--run-dir", "--node", "--trust"].into_iter().filter(|option| !used.contains(option));
        unused.for_each(|option| command.require_refusal(cluster, option));
    }
    for command in [TestedCommand::new("man", &["fork"]), TestedCommand::new("completions", &["bash"])] {
        command.require_usage_error(cluster, &["--json"], "does not use --json");
    }
    let scratch = scratch::directory();
    let (run_dir, trust) = (path_in(&scratch, "run"), path_in(&scratch, "trust"));
    let rotate = TestedCommand::new("cluster rotate", &[]);
    rotate.require_socket_options(cluster, &scratch);
    rotate.require_failure(cluster, &["--node", ADDRESS], "drop --node");
    for command in [TestedCommand::new("up", &["--restart"]), TestedCommand::new("down", &[])] {
        command.require_failure(cluster, &["--run-dir", &run_dir], &format!("no cluster runs in {run_dir}"));
    }
    let name_file = format!("{run_dir}/parents/warm");
    let named = ["run", "--name", "warm", "--run-dir", &*run_dir, "--", "test", "-s", &name_file];
    assert!(cluster.first().run(&named).status.success());
    let join = TestedCommand::new("cluster join", JOIN_ARGUMENTS);
    join.require_failure(cluster, &["--node", ADDRESS], "drop --node");
    join.require_failure(cluster, &["--trust", &trust], "/dev/null/token");
    let node = TestedCommand::new("node", &["--name", "n1", "--listen", "127.0.0.1:0"]);
    node.require_failure(cluster, &["--run-dir", &run_dir, "--trust", &trust], &trust);
    cluster.first().json(&["cluster", "init", "--trust", &trust]);
    node.require_failure(cluster, &["--run-dir", BINARY, "--trust", &trust], BINARY);
    join.require_failure(cluster, &["--trust", &trust], &trust);
}

/// The tables have all commands that have a manual page, except groups of commands.
fn every_command(cluster: &Cluster) {
    let scratch = scratch::directory();
    let written = cluster.first().json(&["man", "--output", &path_in(&scratch, "man")]);
    let pages = written["pages"].as_array().expect("pages").iter().filter_map(|page| page.as_str());
    let names: Vec<String> = pages.map(|page| page.trim_end_matches(".1").to_owned()).collect();
    let is_group = |name: &str| names.iter().any(|other| other.starts_with(&format!("{name}-")));
    let commands = names.iter().filter_map(|name| name.strip_prefix("farfork-"));
    let is_of_bench_program = |command: &&str| command.starts_with("bench-") || command.starts_with("stress-");
    let commands = commands.filter(|command| !is_of_bench_program(command));
    let commands = commands.filter(|command| !["cluster", "volume"].contains(command));
    let tables = [CLIENTS, &[MOUNT], TRUST_COMMANDS].concat();
    let listed = tables.iter().chain(LOCAL_COMMANDS.iter().map(|(command, _)| command));
    let listed: BTreeSet<String> = listed.map(|command| command.name.replace(' ', "-")).collect();
    assert!(is_group("farfork-cluster") && is_group("farfork-volume"), "{names:?}");
    assert_eq!(commands.map(str::to_owned).collect::<BTreeSet<_>>(), listed);
}
