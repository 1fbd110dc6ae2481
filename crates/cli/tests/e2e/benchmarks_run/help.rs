//! `--help` of benchmarks and stress tests, and a missing `farfork-bench`.

use std::path::Path;
use std::process::Command;

use crate::harness::{BINARY, Farfork, programs, scratch};

/// `farfork help bench fork` prints the same as `farfork bench fork --help`.
pub(super) fn explains_each_command() {
    let farfork = Farfork::at(Path::new("/nonexistent"));
    for command in [&["bench"][..], &["bench", "fork"], &["bench", "warm-start"], &["stress"], &["stress", "paging"]] {
        let explained = farfork.run(&[&["help"], command].concat());
        assert!(explained.status.success(), "{command:?}: {}", explained.stderr);
        assert!(explained.stdout.contains(&format!("Usage: farfork {}", command.join(" "))), "{}", explained.stdout);
        assert_eq!(explained.stdout, farfork.run(&[command, &["--help"]].concat()).stdout, "{command:?}");
    }
    let unknown = farfork.run_failing(&["help", "bench", "fly"]);
    assert!(unknown.status == 2 && unknown.message.contains("fly"), "{}", unknown.message);
}

/// Runs a copy of `farfork` without `farfork-bench` next to it, as after `make install`, which installs no benchmarks.
pub(super) fn missing_program() {
    let directory = scratch::directory();
    let lone = directory.path().join("farfork");
    programs::copy(BINARY, &lone);
    for arguments in [&["help", "bench", "fork"][..], &["bench", "fork"], &["stress", "--help"]] {
        let ended = Command::new(&lone).args(arguments).output().expect("the binary under test can be started");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("program farfork-bench") && said.contains("make install-bench"), "{said}");
    }
}
