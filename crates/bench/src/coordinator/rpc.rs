//! The course of `farfork bench rpc`: for each case, floors and peers and farfork's own calls in turn, several times, so
//! that what else the machine does meets all of them.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::stage::{Stage, end_command};
use crate::baseline::echo::{ECHO, Echo};
use crate::end::specification::{CLIENT, End, Load, SERVER, Side, System};
use crate::error::BenchError;
use crate::links::Links;
use crate::plan::rpc::{Key, Measured, RpcCase, RpcPlan, RunOutcome};
use crate::program::Program;
use crate::progress::{Show, tell};
use crate::report::rpc::RpcReport;
use crate::samples::Samples;

/// Measures. `show` may end it before a step. `farfork` is the program whose `bench end` command the ends are.
///
/// # Errors
/// What ended it early.
pub fn run_rpc(plan: &RpcPlan, farfork: &Path, show: Show<'_>) -> Result<RpcReport, BenchError> {
    let samples = Samples::written_to(plan.samples_file.as_deref())?;
    let clients = plan.cases.iter().map(|case| case.clients).max().unwrap_or(1);
    let stage = Stage::new("rpc", farfork, clients)?;
    let echo = ECHO.install(stage.scratch.path())?;
    let mut course = Course { plan, stage, echo, samples, outcomes: Vec::new() };
    let steps: Vec<_> = plan.cases.iter().flat_map(|case| course.steps(case)).collect();
    let total = steps.len() * plan.runs;
    let mut done = 0;
    for case_steps in steps.chunk_by(|left, right| left.0 == right.0) {
        for _ in 0..plan.runs {
            for (case, measured) in case_steps {
                tell(show, done, total, describe(case, *measured))?;
                course.step(case, *measured)?;
                done += 1;
            }
        }
    }
    course.samples.flush()?;
    Ok(RpcReport::new(plan, course.samples, course.outcomes))
}

fn describe(case: &RpcCase, measured: Measured) -> String {
    let what = match measured {
        Measured::Calls(system) => system.name(),
        Measured::Floor => "raw echo",
    };
    format!("{what}: {} × {}", case.connections(), case.window)
}

struct Course<'a> {
    plan: &'a RpcPlan,
    stage: Stage<'a>,
    echo: PathBuf,
    samples: Samples<Key>,
    outcomes: Vec<(RpcCase, RunOutcome)>,
}

impl Course<'_> {
    fn steps(&self, case: &RpcCase) -> Vec<(RpcCase, Measured)> {
        let mut steps = vec![Measured::Calls(System::Farfork)];
        if self.plan.floors && case.has_floor() {
            steps.insert(0, Measured::Floor);
        }
        if self.plan.floors && case.has_peers() {
            let peers = [System::Tokio, System::TonicStream, System::Tarpc, System::TonicUnary];
            steps.extend(peers.map(Measured::Calls));
        }
        steps.into_iter().map(|measured| (*case, measured)).collect()
    }

    fn step(&mut self, case: &RpcCase, measured: Measured) -> Result<(), BenchError> {
        let per_s = match measured {
            Measured::Floor => self.floor(case)?,
            Measured::Calls(system) => {
                let outcome = run_once(&self.stage, self.plan, case, system, &mut |_, _| ControlFlow::Continue(()))?;
                let per_s = outcome.per_s;
                if system == System::Farfork {
                    self.add(case, measured, "p50_us", outcome.latency_us[0])?;
                    self.outcomes.push((*case, outcome));
                }
                per_s
            }
        };
        self.add(case, measured, "per_s", per_s)
    }

    fn add(&mut self, case: &RpcCase, measured: Measured, figure: &'static str, value: f64) -> Result<(), BenchError> {
        self.samples.add(Key { case: *case, measured, figure }, value)
    }

    /// The bare echo of the same kind; with several in flight the better of spinning and sleeping, that nobody be
    /// flattered.
    fn floor(&self, case: &RpcCase) -> Result<f64, BenchError> {
        let (connections, window, pinned) = (case.connections(), case.window * case.sessions, case.is_pinned());
        let seconds = self.plan.client_seconds / if window > 1 { 2.0 } else { 1.0 };
        let echo = Echo { program: &self.echo, connections, window, seconds, spins: case.spins, pinned };
        let per_s = echo.per_s(&self.stage.links)?;
        if window == 1 {
            return Ok(per_s);
        }
        Ok(per_s.max(Echo { spins: !echo.spins, ..echo }.per_s(&self.stage.links)?))
    }
}

/// One run of one case: a server and its clients. `on_interval` is told of each interval's throughput as it passes.
pub(crate) fn run_once(
    stage: &Stage<'_>,
    plan: &RpcPlan,
    case: &RpcCase,
    system: System,
    on_interval: &mut dyn FnMut(usize, &RunOutcome) -> ControlFlow<()>,
) -> Result<RunOutcome, BenchError> {
    let pinned = |processor: usize| if case.is_pinned() { vec![processor] } else { Vec::new() };
    let (name, spins, Stage { links, farfork, .. }) = (system.name(), case.spins, stage);
    let side = Side::Server { ip: [0, 0, 0, 0].into(), threads: case.server_threads, seconds: plan.server_seconds };
    let end = End { system, side, spins, identity: stage.identity(case.protection, SERVER), processors: pinned(0) };
    let mut server = Program::start(name, &end_command(links.on_server(), farfork, &end))?;
    let [port] = server.answer("listening")?;
    let load = Load {
        threads: case.threads,
        connections: case.connections_per_thread,
        sessions: case.sessions,
        window: case.window,
        payload_bytes: case.payload_bytes,
        seconds: plan.client_seconds,
        interval_seconds: plan.interval_seconds,
    };
    let client = |number: usize| {
        let to = SocketAddr::new(Links::server_ip(number).into(), port as u16);
        let (side, identity) = (Side::Client { to, load }, stage.identity(case.protection, CLIENT));
        let end = End { system, side, spins, identity, processors: pinned(1) };
        let mut client = Program::start(name, &end_command(links.on_client(number), farfork, &end))?;
        let [] = client.answer("ready")?;
        Ok(client)
    };
    let mut clients = (0..case.clients).map(client).collect::<Result<Vec<_>, BenchError>>()?;
    clients.iter_mut().try_for_each(|client| client.tell(b'g'))?;
    let mut outcome = RunOutcome::default();
    for interval in 0..load.intervals() as usize {
        let mut per_s = 0.0;
        (outcome.errors, outcome.damaged) = (0, 0);
        for client in &mut clients {
            let [answers, ns, errors, damaged] = client.answer("interval")?;
            per_s += answers as f64 / (ns as f64 / 1e9);
            outcome.errors += errors as u64;
            outcome.damaged += damaged as u64;
        }
        outcome.intervals_per_s.push(per_s);
        if on_interval(interval, &outcome).is_break() {
            return Err(BenchError::Interrupted);
        }
    }
    finish(&mut clients, outcome)
}

fn finish(clients: &mut [Program], mut outcome: RunOutcome) -> Result<RunOutcome, BenchError> {
    (outcome.errors, outcome.damaged) = (0, 0);
    for client in clients {
        let [answers, ns, errors, damaged, _count, latencies @ ..] = client.answer::<10>("done")?;
        outcome.per_s += answers as f64 / (ns as f64 / 1e9);
        outcome.errors += errors as u64;
        outcome.damaged += damaged as u64;
        for (slowest, ns) in outcome.latency_us.iter_mut().zip(latencies) {
            *slowest = slowest.max(ns as f64 / 1e3);
        }
    }
    Ok(outcome)
}
