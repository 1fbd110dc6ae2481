//! Tests of daemons as processes on the loopback interface: how they discover, lose and rediscover each other, and
//! which peers they admit. End-to-end tests in `farfork-cli` cover processes and children. Needs root, as the daemon
//! does.
//!
//! This program is also the daemon and the pager of the tests: it runs as `node NAME DIR [JOIN]`, and as `pager …`,
//! which the daemon starts.

mod admission;
mod harness;
mod neighbours;
mod silent_connections;

use std::path::Path;
use std::time::Duration;

use farfork_fork::pager::{self, PagerConfig};
use farfork_node::daemon;
use farfork_node::options::{Options, SeedBudget, TrustOptions, VolumeOptions};
use farfork_trust::{Credentials, Encryption, JoinToken, TrustDirectory};
use farfork_volume::chain::LogCompression;
use farfork_volume::process::{CopyMethod, OffloadMode, WorkPriority};
use farfork_wire::NodeName;
use libtest_mimic::{Arguments, Trial};

use harness::{block_on, token_file, trust_dir};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["pager", "--run-dir", run_dir, "--trust", trust, "--encryption", "on"] => {
            let credentials = Credentials::open(&TrustDirectory::new(trust), Encryption::On).expect("credentials");
            let config = PagerConfig { run_dir: run_dir.into(), credentials: Some(credentials) };
            pager::run(&config).expect("a pager runs");
        }
        ["node", name, run_dir] => run_node(name, run_dir, None),
        ["node", name, run_dir, join] => run_node(name, run_dir, Some(join)),
        _ => run_tests(),
    }
}

fn run_tests() {
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    let tests = [neighbours::TESTS, admission::TESTS, silent_connections::TESTS].concat();
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit();
}

fn run_node(name: &str, run_dir: &str, join: Option<&str>) {
    let run_dir = Path::new(run_dir);
    let token = std::fs::read_to_string(token_file(run_dir)).ok();
    let trust = TrustOptions {
        directory: trust_dir(run_dir, name),
        encryption: Encryption::On,
        token: token.map(|text| text.parse::<JoinToken>().expect("a token")),
        insecure: false,
    };
    let options = Options {
        name: NodeName::new(name).expect("a name"),
        run_dir: run_dir.into(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        fabric_port: 0,
        join: join.map(|join| join.parse().expect("an address")).into_iter().collect(),
        pool_size: 1,
        bridges_vdso: false,
        xcr0: None,
        zygotes_max: 0,
        zygote_idle_max: Duration::from_secs(20),
        kept_roots_max: 0,
        cache_bytes_max: 1 << 20,
        seed_budget: SeedBudget::default(),
        child_memory_bytes_max: None,
        metrics: None,
        images: None,
        user_ranges: run_dir.join("user-ranges"),
        volumes: VolumeOptions {
            store: run_dir.join("volumes"),
            catalog: Some(run_dir.join("catalog").into()),
            detection_ms: 1000,
            replica_rate_min: VolumeOptions::REPLICA_RATE_MIN,
            scrub_hours: 0,
            copy_method: CopyMethod::default(),
            compression: LogCompression::default(),
            offload_mode: OffloadMode::default(),
            work_priority: WorkPriority::default(),
            offload_cpus: None,
        },
        trust,
    };
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    if let Err(error) = block_on(daemon::run(options)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
