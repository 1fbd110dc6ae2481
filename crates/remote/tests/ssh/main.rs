//! Connections to real servers, with the system's ssh and sshd. Needs root: each server has its own namespaces.
//!
//! The hosts run this binary as their runner, so its `main` is not libtest's.
#![forbid(unsafe_code)]

mod copies;
mod leases;
mod server;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use farfork_remote::inventory::Inventory;
use farfork_remote::runner;
use farfork_remote::ssh::{
    HostCommand, HostKeyPolicy, OutputStream, RemoteError, RemoteHost, RunningCommand, SshClient,
};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, test_kill_process};
use server::{SshServer, free_port};
use tempfile::TempDir;

/// Longest wait for something that a host does, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Words that shells, ssh and programs could misread.
const AWKWARD_WORDS: [&str; 12] =
    ["", " ", "a b", "it's", "\"$HOME\"", "$(id)", "a\nb\n", "-oProxyCommand=id", "--", "\\", "*", "é;&|"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|command| command == "remote-runner") {
        let (options, line) =
            arguments.split_at(arguments.iter().position(|word| word == "--").expect("a program") + 1);
        let lease = (options.len() > 2).then(|| Path::new(&options[2]));
        let status = block_on(runner::run_program(&line[0], &line[1..], lease)).expect("the runner works");
        return ExitCode::from(u8::try_from(status).expect("a status of a shell"));
    }
    assert!(rustix::process::geteuid().is_root(), "these tests make namespaces: run them as root");
    let tests: Vec<(&str, fn())> = vec![
        ("arguments_are_preserved", arguments_are_preserved),
        ("exit_status_is_that_of_the_program", exit_status_is_that_of_the_program),
        ("host_keys_are_checked", host_keys_are_checked),
        ("a_login_is_refused_without_a_question", a_login_is_refused_without_a_question),
        ("a_host_that_is_down_is_named_in_time", a_host_that_is_down_is_named_in_time),
        ("a_host_with_a_jump_host", a_host_with_a_jump_host),
        ("files_are_copied_if_they_differ", copies::files_are_copied_if_they_differ),
        ("directories_are_copied_if_they_differ", copies::directories_are_copied_if_they_differ),
        ("only_own_copies_are_replaced_and_removed", copies::only_own_copies_are_replaced_and_removed),
        ("a_lost_connection_adds_no_output", a_lost_connection_adds_no_output),
        ("a_program_of_this_machine_ends_with_its_descendants", a_program_of_this_machine_ends_with_its_descendants),
        ("one_coordinator_has_the_lock", one_coordinator_has_the_lock),
        ("output_is_streamed", output_is_streamed),
        ("a_program_ends_with_its_coordinator", a_program_ends_with_its_coordinator),
        ("descendants_end_with_their_program", descendants_end_with_their_program),
        ("a_leased_program_has_the_standard_streams", leases::a_leased_program_has_the_standard_streams),
        ("a_leased_program_ends_with_its_directory", leases::a_leased_program_ends_with_its_directory),
        (
            "more_leased_programs_run_than_a_connection_has_sessions",
            leases::more_leased_programs_run_than_a_connection_has_sessions,
        ),
        ("a_socket_of_the_host_is_forwarded", a_socket_of_the_host_is_forwarded),
    ];
    let trials = tests.into_iter().map(|(name, body)| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

/// A server, and a directory with an inventory and a file of known hosts for it.
struct Fixture {
    server: SshServer,
    directory: TempDir,
}

impl Fixture {
    fn start() -> Self {
        let server = SshServer::start("127.0.0.1");
        let fixture = Self { directory: tempfile::tempdir().expect("a directory"), server };
        fixture.write_known_hosts(&fixture.server.known_host_with_key_of(&fixture.server));
        fixture
    }

    fn write_known_hosts(&self, text: &str) {
        fs::write(self.directory.path().join("known_hosts"), text).expect("a small file can be written");
    }

    /// An inventory with these tables.
    fn inventory(&self, hosts: &str) -> Inventory {
        let text = format!("known_hosts = \"known_hosts\"\nconnect_timeout_s = 30\n{hosts}");
        Inventory::parse(&self.directory.path().join("hosts.toml"), &text).expect("a valid inventory")
    }

    async fn connect_with(&self, policy: HostKeyPolicy) -> Result<RemoteHost, RemoteError> {
        let inventory = self.inventory(&self.server.inventory_host("n1"));
        SshClient::new(&inventory, policy)?.connect(&inventory.hosts()[0]).await
    }

    fn client(&self) -> (Inventory, SshClient) {
        let inventory = self.inventory(&self.server.inventory_host("n1"));
        let client = SshClient::new(&inventory, HostKeyPolicy::RequireKnown).expect("the configuration can be written");
        (inventory, client)
    }
}

/// Runs `body` with a connected host.
fn with_host(body: impl AsyncFnOnce(&Fixture, &RemoteHost)) {
    let fixture = Fixture::start();
    block_on(async {
        let (inventory, client) = fixture.client();
        let host = client.connect(&inventory.hosts()[0]).await.expect("the host accepts");
        body(&fixture, &host).await;
        host.close().await;
    });
}

fn arguments_are_preserved() {
    with_host(async |_, host| {
        let print = r#"for word do printf '%s\0' "$word"; done; cat"#;
        let output = host.script(print, &AWKWARD_WORDS, b"input").await.expect("the script runs");
        let words: Vec<&str> = output.stdout.split('\0').collect();
        assert_eq!(words, [&AWKWARD_WORDS[..], &["input"]].concat(), "{}", output.stderr);
        let refused = host.script("true", &["a\0b"], b"").await;
        assert!(matches!(refused, Err(RemoteError::Argument { .. })), "{refused:?}");
        assert_eq!(host.address().to_string(), "127.0.0.1");
    });
}

fn exit_status_is_that_of_the_program() {
    with_host(async |_, host| {
        for (script, status) in [("exit 0", 0), ("exit 3", 3), ("exit 255", 255)] {
            assert_eq!(host.script(script, &[], b"").await.expect("it runs").status, status, "{script}");
        }
        let failed = host.require_script("do it", "echo no >&2; exit 2", &[], b"").await.unwrap_err().to_string();
        assert_eq!(failed, "host n1: cannot do it: no");
    });
}

fn host_keys_are_checked() {
    let (fixture, other) = (Fixture::start(), SshServer::start("127.0.0.1"));
    block_on(async {
        fixture.write_known_hosts("");
        let unknown = fixture.connect_with(HostKeyPolicy::RequireKnown).await;
        assert!(matches!(unknown, Err(RemoteError::HostKey { is_changed: false, .. })), "{unknown:?}");
        let text = unknown.unwrap_err().to_string();
        assert!(text.contains("is not in the file") && text.contains("--accept-new-host-keys"), "{text}");
        fixture.connect_with(HostKeyPolicy::AcceptNew).await.expect("the policy accepts it").close().await;
        fixture.connect_with(HostKeyPolicy::RequireKnown).await.expect("now the key is known").close().await;
        fixture.write_known_hosts(&fixture.server.known_host_with_key_of(&other));
        for policy in [HostKeyPolicy::RequireKnown, HostKeyPolicy::AcceptNew] {
            let changed = fixture.connect_with(policy).await;
            assert!(matches!(changed, Err(RemoteError::HostKey { is_changed: true, .. })), "{changed:?}");
            // Nothing of ssh's warning, which has a screen of lines.
            let text = changed.unwrap_err().to_string();
            assert!(
                text.contains("has changed: the host sends SHA256:") && text.contains("known_hosts:1 has"),
                "{text}"
            );
            assert!(text.len() < 400 && !text.contains("WARNING"), "{text}");
        }
    });
}

fn a_login_is_refused_without_a_question() {
    let fixture = Fixture::start();
    fs::write(fixture.server.path("user_key.pub"), "").expect("a small file can be written");
    let refused = block_on(fixture.connect_with(HostKeyPolicy::RequireKnown));
    assert!(matches!(refused, Err(RemoteError::Login { .. })), "{refused:?}");
}

fn a_host_that_is_down_is_named_in_time() {
    let fixture = Fixture::start();
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let silent_port = silent.local_addr().expect("it is bound").port();
    block_on(async {
        // ssh itself may need longer than a second to start.
        for (port, is_silent, limit_s) in [(free_port("127.0.0.1"), false, 60), (silent_port, true, 1)] {
            let host = format!(
                "connect_timeout_s = {limit_s}\n[[hosts]]\nname = \"n9\"\naddress = \"127.0.0.1\"\nport = {port}\n"
            );
            let inventory = Inventory::parse(Path::new("hosts.toml"), &host).expect("valid");
            let client = SshClient::new(&inventory, HostKeyPolicy::RequireKnown).expect("a directory");
            let began = Instant::now();
            let refused = client.connect(&inventory.hosts()[0]).await.unwrap_err();
            assert!(refused.to_string().starts_with("host n9: "), "{refused}");
            match refused {
                RemoteError::Unreachable { detail, .. } if !is_silent => {
                    assert!(detail.contains("refused"), "{detail}")
                }
                // ssh and this process have the same limit.
                RemoteError::Timeout { .. } | RemoteError::Unreachable { .. } if is_silent => {}
                other => panic!("{other:?}"),
            }
            assert!(began.elapsed() < 2 * LIMIT, "the limit is {limit_s} s");
        }
    });
    drop(fixture);
}

fn a_host_with_a_jump_host() {
    let (fixture, inner) = (Fixture::start(), SshServer::start("127.0.0.2"));
    let known = [&fixture.server, &inner].map(|server| server.known_host_with_key_of(server)).concat();
    fixture.write_known_hosts(&known);
    let hosts = format!("{}jump = \"gw\"\n{}", inner.inventory_host("inner"), fixture.server.inventory_host("gw"));
    let inventory = fixture.inventory(&hosts);
    block_on(async {
        let client = SshClient::new(&inventory, HostKeyPolicy::RequireKnown).expect("a directory");
        let host = client.connect(&inventory.hosts()[0]).await.expect("the host accepts");
        assert_eq!(host.address().to_string(), "127.0.0.2");
        host.close().await;
        // The key of the jump host is checked, too.
        fixture.write_known_hosts(&inner.known_host_with_key_of(&inner));
        let refused = client.connect(&inventory.hosts()[0]).await;
        assert!(matches!(refused, Err(RemoteError::HostKey { .. })), "{refused:?}");
    });
}

fn a_lost_connection_adds_no_output() {
    with_host(async |fixture, host| {
        let mut running = start_script(host, "echo started; sleep 1000", &[]);
        assert_eq!(running.next_line().await.expect("a line").bytes, b"started");
        fixture.server.kill();
        assert_eq!(running.next_line().await, None);
        let lost = running.wait(host).await;
        assert!(matches!(lost, Err(RemoteError::Disconnected { .. })), "{lost:?}");
        // Without the connection, ssh runs its ProxyCommand.
        let mut late = start_script(host, "true", &[]);
        assert_eq!(late.next_line().await, None);
        let late = late.wait(host).await.unwrap_err().to_string();
        assert!(late.starts_with("host n1: the connection ended") && !late.contains("exec"), "{late}");
    });
}

fn a_program_of_this_machine_ends_with_its_descendants() {
    block_on(async {
        let runner = std::env::current_exe().expect("this program");
        let script = "setsid sleep 1000 & echo $!; printf '%s ' \"$@\" \"$NAME\"; pwd; exec sleep 1000";
        let command = HostCommand {
            program: "sh".to_owned(),
            arguments: ["-c", script, "sh", "a b", "$HOME"].map(str::to_owned).to_vec(),
            directory: Some("/proc".to_owned()),
            environment: vec![("NAME".to_owned(), "it's".to_owned())],
        };
        let mut running = RunningCommand::start_here(&runner, &command).expect("it starts");
        let mut line = async || String::from_utf8(running.next_line().await.expect("a line").bytes).expect("UTF-8");
        let descendant = Pid::from_raw(line().await.parse().expect("a process id")).expect("not 0");
        assert_eq!(line().await, "a b $HOME it's /proc");
        running.stop();
        assert_eq!(running.wait_here().await.expect("it ends"), 128 + 15);
        require_end(descendant).await;
    });
}

fn one_coordinator_has_the_lock() {
    with_host(async |fixture, host| {
        let file = fixture.directory.path().join("lock");
        let path = file.to_str().expect("UTF-8");
        let second = fixture.connect_with(HostKeyPolicy::RequireKnown).await.expect("the host accepts");
        let lock = host.lock(path, "alice at\nc1").await.expect("the lock is free");
        let refused = second.lock(path, "bob at c2").await.unwrap_err();
        assert!(matches!(&refused, RemoteError::Locked { holder, .. } if holder == "alice at c1"), "{refused}");
        lock.release().await;
        assert!(!file.exists(), "the file is removed with the lock");
        let lock = second.lock(path, "bob at c2").await.expect("the lock was released");
        drop(second);
        wait_until("the lock ends with its connection", async || host.lock(path, "alice").await.ok()).await;
        drop(lock);
        // A user who cannot write the directory has a lock in the home directory.
        let name = format!("farfork-test-{}.lock", std::process::id());
        let lock = host.lock(&format!("/nowhere/{name}"), "alice").await.expect("the lock is free");
        let home = host.script(r#"rm -- "$HOME/.$1""#, &[&name], b"").await.expect("it runs");
        assert_eq!(home.status, 0, "{}", home.stderr);
        lock.release().await;
    });
}

/// Calls `condition` until it returns a value.
async fn wait_until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {} s", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts a script with this binary as the runner.
fn start_script(host: &RemoteHost, script: &str, words: &[&str]) -> RunningCommand {
    let runner = std::env::current_exe().expect("this binary").to_str().expect("UTF-8").to_owned();
    let arguments = ["-c", script, "sh"].iter().chain(words).map(|word| (*word).to_owned()).collect();
    let environment = vec![("WORDS".to_owned(), "a 'b'\n$c".to_owned())];
    let command = HostCommand { program: "sh".into(), arguments, directory: Some("/tmp".into()), environment };
    host.start(&runner, &command).expect("ssh starts")
}

fn output_is_streamed() {
    with_host(async |_, host| {
        let script = r#"echo "$PWD"; printf '%s|' "$WORDS" "$@"; echo; echo error >&2; cat; exit 7"#;
        let mut running = start_script(host, script, &AWKWARD_WORDS);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(line) = running.next_line().await {
            let text = String::from_utf8(line.bytes).expect("UTF-8");
            if line.stream == OutputStream::Stdout { stdout.push(text) } else { stderr.push(text) }
        }
        assert_eq!(running.wait(host).await.expect("the program ends"), 7, "{stderr:?}");
        let words = [&["a 'b'\n$c"], &AWKWARD_WORDS[..]].concat().join("|");
        assert_eq!((stdout.join("\n"), stderr), (format!("/tmp\n{words}|"), vec!["error".to_owned()]));
        let signaled = start_script(host, "kill -9 $$", &[]).wait(host).await.expect("the program ends");
        assert_eq!(signaled, 128 + 9);
        let command = HostCommand { program: "/nowhere/program".into(), ..HostCommand::default() };
        let runner = std::env::current_exe().expect("this binary");
        let missing = host.start(runner.to_str().expect("UTF-8"), &command).expect("ssh starts");
        assert_eq!(missing.wait(host).await.expect("the runner ends"), 127);
    });
}

/// A program with a descendant that has left its session and its parent. Prints the process ids that this machine sees.
const ESCAPING_SCRIPT: &str = r#"
trap '' HUP
setsid sh -c 'echo escaped; exec sleep 1000' &
echo started
wait"#;

/// Returns the processes that run `sleep 1000` in the process namespace of the server.
fn sleeping_processes(server: &SshServer) -> Vec<i32> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let directory = server.path("sshd_config");
    let is_server = |pid: &String| {
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with("sshd:") && line.contains(directory.to_str().expect("UTF-8")))
    };
    let pids: Vec<String> = fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.parse::<i32>().is_ok())
        .collect();
    let own = pids.iter().find(|pid| is_server(pid)).and_then(|pid| namespace(pid)).expect("the server runs");
    let is_sleep = |pid: &&String| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x001000\x00")
            && namespace(pid).as_ref() == Some(&own)
    };
    pids.iter().filter(is_sleep).filter_map(|pid| pid.parse().ok()).collect()
}

/// Starts the escaping program, and returns it with the escaped process.
async fn start_escaping(fixture: &Fixture, host: &RemoteHost, end: &str) -> (RunningCommand, Pid) {
    let mut running = start_script(host, &ESCAPING_SCRIPT.replace("wait", end), &[]);
    let mut lines = Vec::new();
    while lines.len() < 2 {
        lines.push(running.next_line().await.expect("two lines").bytes);
    }
    let find_escaped = async || match sleeping_processes(&fixture.server)[..] {
        [pid] => Pid::from_raw(pid),
        _ => None,
    };
    (running, wait_until("a process escapes", find_escaped).await)
}

async fn require_end(process: Pid) {
    wait_until("the process ends with its coordinator", async || test_kill_process(process).err()).await;
}

fn a_program_ends_with_its_coordinator() {
    let fixture = Fixture::start();
    block_on(async {
        let (inventory, client) = fixture.client();
        let host = client.connect(&inventory.hosts()[0]).await.expect("the host accepts");
        // Its ssh process is killed.
        let (running, escaped) = start_escaping(&fixture, &host, "wait").await;
        drop(running);
        require_end(escaped).await;
        // The coordinator tells the runner to end it.
        let (mut running, escaped) = start_escaping(&fixture, &host, "wait").await;
        running.stop();
        assert_eq!(running.wait(&host).await.expect("the connection is kept"), 128 + 15);
        require_end(escaped).await;
        // The connection ends.
        let (running, escaped) = start_escaping(&fixture, &host, "wait").await;
        host.close().await;
        require_end(escaped).await;
        drop(running);
    });
}

fn descendants_end_with_their_program() {
    let fixture = Fixture::start();
    block_on(async {
        let (inventory, client) = fixture.client();
        let host = client.connect(&inventory.hosts()[0]).await.expect("the host accepts");
        let may_end = fixture.server.path("may-end");
        let wait_for_file = format!("until [ -e {} ]; do sleep 0.05; done; exit 4", may_end.display());
        let (running, escaped) = start_escaping(&fixture, &host, &wait_for_file).await;
        fs::write(&may_end, "").expect("a file of the server");
        assert_eq!(running.wait(&host).await.expect("the program ends"), 4);
        require_end(escaped).await;
    });
}

fn a_socket_of_the_host_is_forwarded() {
    with_host(async |fixture, host| {
        let path = fixture.server.path("service.sock");
        let local = host.forward_socket(path.to_str().expect("UTF-8")).await.expect("ssh forwards it");
        // The socket need not exist before.
        let listener = UnixListener::bind(&path).expect("a path in a new directory");
        let answer = std::thread::spawn(move || listener.accept().expect("a connection").0.write_all(b"answer"));
        let mut text = String::new();
        UnixStream::connect(local).expect("ssh accepts").read_to_string(&mut text).expect("an answer");
        assert_eq!(text, "answer");
        answer.join().expect("no panic").expect("the connection is open");
    });
}
