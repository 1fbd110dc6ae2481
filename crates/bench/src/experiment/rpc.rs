//! Runs `farfork bench rpc`: for each case, floors, peers and farfork's own calls. They run several times in turn, so
//! that other load on the machine affects all of them.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::testbed::{Testbed, endpoint_command};
use crate::baseline::echo::{BareEcho, ECHO};
use crate::embedded_program::ChildProgram;
use crate::endpoint::specification::{CLIENT, ClientLoad, EndpointRole, EndpointSpec, RpcSystem, SERVER};
use crate::error::BenchError;
use crate::parameters::rpc::{RpcCase, RpcParameters, RpcRunOutcome, RpcSampleKey, RpcSeries};
use crate::progress::{ProgressCallback, report_progress};
use crate::samples::Samples;
use crate::summary::rpc::RpcSummary;
use crate::veth_network::VethNetwork;

/// Runs the benchmark. `show` may end it before a step. `farfork` is the program whose command `bench end` runs the
/// endpoints.
///
/// # Errors
/// The run ends early.
pub fn run_rpc(plan: &RpcParameters, farfork: &Path, show: ProgressCallback<'_>) -> Result<RpcSummary, BenchError> {
    let samples = Samples::with_file(plan.samples_file.as_deref())?;
    let clients = plan.cases.iter().map(|case| case.clients).max().unwrap_or(1);
    let stage = Testbed::new(farfork, clients)?;
    let echo = ECHO.install(stage.scratch.path())?;
    let mut rpc_run = RpcRun { plan, stage, echo, samples, outcomes: Vec::new() };
    let steps: Vec<_> = plan.cases.iter().flat_map(|case| rpc_run.steps(case)).collect();
    let total = steps.len() * plan.runs;
    let mut done = 0;
    for case_steps in steps.chunk_by(|left, right| left.0 == right.0) {
        for _ in 0..plan.runs {
            for (case, measured) in case_steps {
                report_progress(show, done, total, describe(case, *measured))?;
                rpc_run.step(case, *measured)?;
                done += 1;
            }
        }
    }
    rpc_run.samples.flush()?;
    Ok(RpcSummary::new(plan, rpc_run.samples, rpc_run.outcomes))
}

fn describe(case: &RpcCase, measured: RpcSeries) -> String {
    let what = match measured {
        RpcSeries::Calls(system) => system.name(),
        RpcSeries::Floor => "raw echo",
    };
    format!("{what}: {} × {}", case.connections(), case.window)
}

struct RpcRun<'a> {
    plan: &'a RpcParameters,
    stage: Testbed<'a>,
    echo: PathBuf,
    samples: Samples<RpcSampleKey>,
    outcomes: Vec<(RpcCase, RpcRunOutcome)>,
}

impl RpcRun<'_> {
    fn steps(&self, case: &RpcCase) -> Vec<(RpcCase, RpcSeries)> {
        let mut steps = vec![RpcSeries::Calls(RpcSystem::Farfork)];
        if self.plan.floors && case.has_floor() {
            steps.insert(0, RpcSeries::Floor);
        }
        if self.plan.floors && case.has_peers() {
            let peers = [RpcSystem::Tokio, RpcSystem::TonicStream, RpcSystem::Tarpc, RpcSystem::TonicUnary];
            steps.extend(peers.map(RpcSeries::Calls));
        }
        steps.into_iter().map(|measured| (*case, measured)).collect()
    }

    fn step(&mut self, case: &RpcCase, measured: RpcSeries) -> Result<(), BenchError> {
        let per_s = match measured {
            RpcSeries::Floor => self.measure_floor(case)?,
            RpcSeries::Calls(system) => {
                let outcome = run_once(&self.stage, self.plan, case, system, &mut |_, _| ControlFlow::Continue(()))?;
                let per_s = outcome.per_s;
                if system == RpcSystem::Farfork {
                    self.add(case, measured, "p50_us", outcome.latency_us[0])?;
                    self.outcomes.push((*case, outcome));
                }
                per_s
            }
        };
        self.add(case, measured, "per_s", per_s)
    }

    fn add(&mut self, case: &RpcCase, measured: RpcSeries, figure: &'static str, value: f64) -> Result<(), BenchError> {
        self.samples.add(RpcSampleKey { case: *case, series: measured, figure }, value)
    }

    /// Measures the bare echo with the same number of connections and requests. With several requests in flight,
    /// returns the better result of spinning and sleeping, so that the floor does not favour farfork.
    fn measure_floor(&self, case: &RpcCase) -> Result<f64, BenchError> {
        let (connections, window, pinned) = (case.connections(), case.window * case.sessions, case.is_pinned());
        let seconds = self.plan.client_seconds / if window > 1 { 2.0 } else { 1.0 };
        let echo = BareEcho { program: &self.echo, connections, window, seconds, spins: case.spins, pinned };
        let per_s = echo.measure_per_s(&self.stage.network)?;
        if window == 1 {
            return Ok(per_s);
        }
        Ok(per_s.max(BareEcho { spins: !echo.spins, ..echo }.measure_per_s(&self.stage.network)?))
    }
}

/// One run of a case: a server and its clients. `on_interval` receives the throughput of each interval.
pub(crate) fn run_once(
    stage: &Testbed<'_>,
    plan: &RpcParameters,
    case: &RpcCase,
    system: RpcSystem,
    on_interval: &mut dyn FnMut(usize, &RpcRunOutcome) -> ControlFlow<()>,
) -> Result<RpcRunOutcome, BenchError> {
    let pinned = |processor: usize| if case.is_pinned() { vec![processor] } else { Vec::new() };
    let (name, spins, Testbed { network: links, farfork, .. }) = (system.name(), case.spins, stage);
    let side =
        EndpointRole::Server { ip: [0, 0, 0, 0].into(), threads: case.server_threads, seconds: plan.server_seconds };
    let end = EndpointSpec {
        system,
        role: side,
        spins,
        identity: stage.identity(case.protection, SERVER),
        processors: pinned(0),
    };
    let mut server = ChildProgram::start(name, &endpoint_command(links.server_command(), farfork, &end))?;
    let [port] = server.read_answer("listening")?;
    let load = ClientLoad {
        threads: case.threads,
        connections: case.connections_per_thread,
        sessions: case.sessions,
        window: case.window,
        payload_bytes: case.payload_bytes,
        seconds: plan.client_seconds,
        interval_seconds: plan.interval_seconds,
    };
    let client = |number: usize| {
        let to = SocketAddr::new(VethNetwork::server_ip(number).into(), port as u16);
        let (side, identity) = (EndpointRole::Client { to, load }, stage.identity(case.protection, CLIENT));
        let end = EndpointSpec { system, role: side, spins, identity, processors: pinned(1) };
        let mut client = ChildProgram::start(name, &endpoint_command(links.client_command(number), farfork, &end))?;
        let [] = client.read_answer("ready")?;
        Ok(client)
    };
    let mut clients = (0..case.clients).map(client).collect::<Result<Vec<_>, BenchError>>()?;
    clients.iter_mut().try_for_each(|client| client.send_message(b'g'))?;
    let mut outcome = RpcRunOutcome::default();
    for interval in 0..load.interval_count() as usize {
        let mut per_s = 0.0;
        (outcome.errors, outcome.damaged) = (0, 0);
        for client in &mut clients {
            let [answers, ns, errors, damaged] = client.read_answer("interval")?;
            per_s += answers as f64 / (ns as f64 / 1e9);
            outcome.errors += errors as u64;
            outcome.damaged += damaged as u64;
        }
        outcome.intervals_per_s.push(per_s);
        if on_interval(interval, &outcome).is_break() {
            return Err(BenchError::Interrupted);
        }
    }
    let outcome = finish(&mut clients, outcome)?;
    // A client waits for a server that has ended, so its requests have not failed.
    match server.last_line_if_ended() {
        None => Ok(outcome),
        Some(end) => Err(BenchError::ProgramFailed { program: name, why: format!("the server has ended: {end}") }),
    }
}

fn finish(clients: &mut [ChildProgram], mut outcome: RpcRunOutcome) -> Result<RpcRunOutcome, BenchError> {
    (outcome.errors, outcome.damaged) = (0, 0);
    for client in clients {
        let [answers, ns, errors, damaged, _count, latencies @ ..] = client.read_answer::<10>("done")?;
        outcome.per_s += answers as f64 / (ns as f64 / 1e9);
        outcome.errors += errors as u64;
        outcome.damaged += damaged as u64;
        for (slowest, ns) in outcome.latency_us.iter_mut().zip(latencies) {
            *slowest = slowest.max(ns as f64 / 1e3);
        }
    }
    Ok(outcome)
}
