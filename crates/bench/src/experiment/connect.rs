//! Runs `farfork bench connect`: for each number of clients and threads, the floor and farfork's connections with each
//! protection. They alternate several times, so that other load on the machine affects all of them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::testbed::{Testbed, endpoint_command};
use crate::baseline::connect::{BareConnect, CONNECT};
use crate::embedded_program::ChildProgram;
use crate::endpoint::specification::{CLIENT, EndpointRole, EndpointSpec, RpcSystem, SERVER};
use crate::error::BenchError;
use crate::parameters::connect::{
    ConnectCase, ConnectParameters, ConnectSampleKey, ConnectSeries, P50_US, P99_US, PER_S, PROTECTIONS,
};
use crate::parameters::protection::ConnectionSecurity;
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::connect::ConnectSummary;
use crate::veth_network::VethNetwork;

/// The server runs this much longer than the clients, which take time to start.
const SERVER_EXTRA_SECONDS: f64 = 10.0;

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program whose command `bench end` runs the
/// endpoints.
///
/// # Errors
/// The run ends early.
pub fn run_connect(
    plan: &ConnectParameters,
    farfork: &Path,
    show: ProgressCallback<'_>,
) -> Result<ConnectSummary, BenchError> {
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let clients = plan.cases.iter().map(|case| case.clients).max().unwrap_or(1);
    let stage = Testbed::new(farfork, clients)?;
    let floor = CONNECT.install(stage.scratch.path())?;
    let server_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut connect_run = ConnectRun { seconds: plan.seconds, server_threads, stage, floor, samples };
    let steps = plan.cases.len() * plan.runs * (PROTECTIONS.len() + 1);
    let mut done = 0;
    for case in &plan.cases {
        for _ in 0..plan.runs {
            for made in std::iter::once(ConnectSeries::Floor).chain(PROTECTIONS.map(ConnectSeries::Connections)) {
                report_progress(show, done, steps, describe(case, made))?;
                connect_run.step(case, made)?;
                done += 1;
            }
        }
    }
    connect_run.samples.flush()?;
    Ok(ConnectSummary::new(plan, server_threads, connect_run.samples))
}

fn describe(case: &ConnectCase, made: ConnectSeries) -> String {
    let what = match made {
        ConnectSeries::Floor => "TCP alone",
        ConnectSeries::Connections(ConnectionSecurity::None) => "unauthenticated",
        ConnectSeries::Connections(ConnectionSecurity::Authenticated) => "authenticated",
        ConnectSeries::Connections(ConnectionSecurity::Encrypted) => "encrypted",
    };
    format!("{what}: {} × {}", case.clients, case.threads)
}

struct ConnectRun<'a> {
    seconds: f64,
    server_threads: usize,
    stage: Testbed<'a>,
    floor: PathBuf,
    samples: Samples<ConnectSampleKey>,
}

impl ConnectRun<'_> {
    fn step(&mut self, case: &ConnectCase, made: ConnectSeries) -> Result<(), BenchError> {
        let figures = match made {
            ConnectSeries::Floor => vec![(PER_S, self.measure_floor(case)?)],
            ConnectSeries::Connections(protection) => self.measure_connections(case, protection)?.into(),
        };
        let key = |figure| ConnectSampleKey { case: *case, series: made, figure };
        figures.into_iter().try_for_each(|(figure, value)| self.samples.add(key(figure), value))
    }

    fn measure_floor(&self, case: &ConnectCase) -> Result<f64, BenchError> {
        let (clients, threads) = (case.clients, case.threads);
        let (server_threads, seconds) = (self.server_threads, self.seconds);
        BareConnect { program: &self.floor, clients, threads, server_threads, seconds }
            .measure_per_s(&self.stage.network)
    }

    /// One run: a server and its clients.
    fn measure_connections(
        &self,
        case: &ConnectCase,
        protection: ConnectionSecurity,
    ) -> Result<[(&'static str, f64); 3], BenchError> {
        let (threads, seconds) = (self.server_threads, self.seconds + SERVER_EXTRA_SECONDS);
        let side = EndpointRole::Acceptor { ip: [0, 0, 0, 0].into(), threads, seconds };
        let mut server = self.start_endpoint(self.stage.network.server_command(), side, SERVER, protection)?;
        let [port] = server.read_answer("listening")?;
        let client = |number: usize| {
            let to = SocketAddr::new(VethNetwork::server_ip(number).into(), port as u16);
            let side = EndpointRole::Connector { to, threads: case.threads, seconds: self.seconds };
            let mut client =
                self.start_endpoint(self.stage.network.client_command(number), side, CLIENT, protection)?;
            let [] = client.read_answer("ready")?;
            Ok(client)
        };
        let mut clients = (0..case.clients).map(client).collect::<Result<Vec<_>, BenchError>>()?;
        clients.iter_mut().try_for_each(|client| client.send_message(b'g'))?;
        let (mut per_s, mut p50_us, mut p99_us) = (0.0, 0.0_f64, 0.0_f64);
        for client in &mut clients {
            let [made, ns, p50_ns, p99_ns] = client.read_answer("done")?;
            per_s += made as f64 / (ns as f64 / 1e9);
            p50_us = p50_us.max(p50_ns as f64 / 1e3);
            p99_us = p99_us.max(p99_ns as f64 / 1e3);
        }
        Ok([(PER_S, per_s), (P50_US, p50_us), (P99_US, p99_us)])
    }

    fn start_endpoint(
        &self,
        on: Command,
        side: EndpointRole,
        name: &str,
        protection: ConnectionSecurity,
    ) -> Result<ChildProgram, BenchError> {
        let identity = self.stage.identity(protection, name);
        let end =
            EndpointSpec { system: RpcSystem::Farfork, role: side, spins: false, identity, processors: Vec::new() };
        ChildProgram::start("farfork", &endpoint_command(on, self.stage.farfork, &end))
    }
}
