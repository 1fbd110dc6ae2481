//! Programs that use the standard streams, in directories that end with a coordinator.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use farfork_remote::ssh::{HostCommand, HostDirectory, RemoteHost};
use rustix::process::{Pid, test_kill_process};

use crate::{
    AWKWARD_WORDS, ESCAPING_SCRIPT, Fixture, block_on, require_end, sleeping_processes, wait_until, with_host,
};

/// The local command of a script on the host, with the lease of a directory.
fn leased_script(host: &RemoteHost, directory: &HostDirectory, script: &str, words: &[&str]) -> std::process::Command {
    let arguments = ["-c", script, "sh"].iter().chain(words).map(|word| (*word).to_owned()).collect();
    let command = HostCommand { program: "sh".into(), arguments, directory: Some("/".into()), environment: Vec::new() };
    let runner = std::env::current_exe().expect("this binary");
    let mut command =
        host.leased_command(runner.to_str().expect("UTF-8"), &directory.lease(), &command).expect("no NUL");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn a_leased_program_has_the_standard_streams() {
    with_host(async |_, host| {
        let directory = host.make_directory("test-1").await.expect("/run is a tmpfs");
        assert_eq!(directory.path(), "/run/farfork-experiment-test-1");
        let script = r#"printf '%s|' "$@"; cat; echo error >&2; exit 3"#;
        let mut running = leased_script(host, &directory, script, &AWKWARD_WORDS).spawn().expect("ssh starts");
        running.stdin.take().expect("it is piped").write_all(b"input").expect("it reads");
        let output = running.wait_with_output().expect("it ends");
        let expected = AWKWARD_WORDS.map(|word| format!("{word}|")).concat() + "input";
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(3), &b"error\n"[..]));
        let program = directory.add_program(host, Path::new("/bin/echo")).await.expect("it is copied");
        let copied = host.script("\"$1\" copied", &[program.to_str().expect("UTF-8")], b"").await.expect("it runs");
        assert_eq!((copied.status, copied.stdout.as_str()), (0, "copied\n"), "{}", copied.stderr);
        directory.remove().await;
        let left = host.script("ls -d /run/farfork-*", &[], b"").await.expect("it runs").stdout;
        assert_eq!(left, "");
    });
}

/// A leased program with an escaped descendant ends when its ssh process ends, and when its directory does.
pub(crate) fn a_leased_program_ends_with_its_directory() {
    let fixture = Fixture::start();
    block_on(async {
        let (inventory, client) = fixture.client();
        let host = client.connect(&inventory.hosts()[0]).await.expect("the host accepts");
        for name in ["test-1", "test-2"] {
            let directory = host.make_directory(name).await.expect("/run is a tmpfs");
            let mut ssh = leased_script(&host, &directory, ESCAPING_SCRIPT, &[]).spawn().expect("ssh starts");
            let find_escaped = async || match sleeping_processes(&fixture.server)[..] {
                [pid] => Pid::from_raw(pid),
                _ => None,
            };
            let escaped = wait_until("a process escapes", find_escaped).await;
            // The end of the input does not end the program.
            drop(ssh.stdin.take());
            let echo = leased_script(&host, &directory, "echo", &[]).output().expect("ssh starts");
            assert!(echo.status.success() && test_kill_process(escaped).is_ok());
            if name == "test-1" {
                ssh.kill().expect("our own child");
                require_end(escaped).await;
                directory.remove().await;
            } else {
                drop(directory);
                require_end(escaped).await;
            }
            ssh.wait().expect("it ends");
        }
        let is_removed = async || {
            let listed = host.script("ls -d /run/farfork-*", &[], b"").await.expect("it runs").stdout;
            listed.is_empty().then_some(())
        };
        wait_until("the directories are removed", is_removed).await;
    });
}

pub(crate) fn more_leased_programs_run_than_a_connection_has_sessions() {
    with_host(async |_, host| {
        let directory = host.make_directory("test-1").await.expect("/run is a tmpfs");
        let start = |_| leased_script(host, &directory, "exec cat", &[]).spawn().expect("ssh starts");
        let programs: Vec<_> = (0..12).map(start).collect();
        for mut program in programs {
            program.stdin.take().expect("it is piped").write_all(b"input").expect("it reads");
            let output = program.wait_with_output().expect("it ends");
            assert_eq!(
                (output.status.code(), &output.stdout[..], &output.stderr[..]),
                (Some(0), &b"input"[..], &b""[..])
            );
        }
        directory.remove().await;
    });
}
