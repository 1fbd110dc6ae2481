//! The course of `farfork bench connect`: for each number of clients and threads, the floor and farfork's connections with
//! each protection in turn, several times, so that what else the machine does meets all of them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::stage::{Stage, end_command};
use crate::baseline::connect::{CONNECT, Connect};
use crate::end::specification::{CLIENT, End, SERVER, Side, System};
use crate::error::BenchError;
use crate::links::Links;
use crate::plan::connect::{ConnectCase, ConnectPlan, Key, Made, P50_US, P99_US, PER_S, PROTECTIONS};
use crate::plan::protection::Protection;
use crate::program::Program;
use crate::progress::{Show, tell};
use crate::report::connect::ConnectReport;
use crate::samples::Samples;

/// How long a server outlives the clients' time: they have to be started, too.
const SERVER_SECONDS_MORE: f64 = 10.0;

/// Measures. `show` may end it before a step. `farfork` is the program whose `bench end` command the ends are.
///
/// # Errors
/// What ended it early.
pub fn run_connect(plan: &ConnectPlan, farfork: &Path, show: Show<'_>) -> Result<ConnectReport, BenchError> {
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let clients = plan.cases.iter().map(|case| case.clients).max().unwrap_or(1);
    let stage = Stage::new("connect", farfork, clients)?;
    let floor = CONNECT.install(stage.scratch.path())?;
    let server_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut course = Course { seconds: plan.seconds, server_threads, stage, floor, samples };
    let steps = plan.cases.len() * plan.runs * (PROTECTIONS.len() + 1);
    let mut done = 0;
    for case in &plan.cases {
        for _ in 0..plan.runs {
            for made in std::iter::once(Made::Floor).chain(PROTECTIONS.map(Made::Connections)) {
                tell(show, done, steps, describe(case, made))?;
                course.step(case, made)?;
                done += 1;
            }
        }
    }
    course.samples.flush()?;
    Ok(ConnectReport::new(plan, server_threads, course.samples))
}

fn describe(case: &ConnectCase, made: Made) -> String {
    let what = match made {
        Made::Floor => "TCP alone",
        Made::Connections(Protection::None) => "unauthenticated",
        Made::Connections(Protection::Authenticated) => "authenticated",
        Made::Connections(Protection::Encrypted) => "encrypted",
    };
    format!("{what}: {} × {}", case.clients, case.threads)
}

struct Course<'a> {
    seconds: f64,
    server_threads: usize,
    stage: Stage<'a>,
    floor: PathBuf,
    samples: Samples<Key>,
}

impl Course<'_> {
    fn step(&mut self, case: &ConnectCase, made: Made) -> Result<(), BenchError> {
        let figures = match made {
            Made::Floor => vec![(PER_S, self.floor(case)?)],
            Made::Connections(protection) => self.connections(case, protection)?.into(),
        };
        let key = |figure| Key { case: *case, made, figure };
        figures.into_iter().try_for_each(|(figure, value)| self.samples.add(key(figure), value))
    }

    fn floor(&self, case: &ConnectCase) -> Result<f64, BenchError> {
        let (clients, threads) = (case.clients, case.threads);
        let (server_threads, seconds) = (self.server_threads, self.seconds);
        Connect { program: &self.floor, clients, threads, server_threads, seconds }.per_s(&self.stage.links)
    }

    /// One run: a server and its clients.
    fn connections(&self, case: &ConnectCase, protection: Protection) -> Result<[(&'static str, f64); 3], BenchError> {
        let (threads, seconds) = (self.server_threads, self.seconds + SERVER_SECONDS_MORE);
        let side = Side::Acceptor { ip: [0, 0, 0, 0].into(), threads, seconds };
        let mut server = self.end(self.stage.links.on_server(), side, SERVER, protection)?;
        let [port] = server.answer("listening")?;
        let client = |number: usize| {
            let to = SocketAddr::new(Links::server_ip(number).into(), port as u16);
            let side = Side::Connector { to, threads: case.threads, seconds: self.seconds };
            let mut client = self.end(self.stage.links.on_client(number), side, CLIENT, protection)?;
            let [] = client.answer("ready")?;
            Ok(client)
        };
        let mut clients = (0..case.clients).map(client).collect::<Result<Vec<_>, BenchError>>()?;
        clients.iter_mut().try_for_each(|client| client.tell(b'g'))?;
        let (mut per_s, mut p50_us, mut p99_us) = (0.0, 0.0_f64, 0.0_f64);
        for client in &mut clients {
            let [made, ns, p50_ns, p99_ns] = client.answer("done")?;
            per_s += made as f64 / (ns as f64 / 1e9);
            p50_us = p50_us.max(p50_ns as f64 / 1e3);
            p99_us = p99_us.max(p99_ns as f64 / 1e3);
        }
        Ok([(PER_S, per_s), (P50_US, p50_us), (P99_US, p99_us)])
    }

    fn end(&self, on: Command, side: Side, name: &str, protection: Protection) -> Result<Program, BenchError> {
        let identity = self.stage.identity(protection, name);
        let end = End { system: System::Farfork, side, spins: false, identity, processors: Vec::new() };
        Program::start("farfork", &end_command(on, self.stage.farfork, &end))
    }
}
