//! [`StepRun`]: one step of a round, on all of its machines.

use std::fs::File;
use std::time::{Duration, Instant};

use farfork_remote::ssh::{HostCommand, OutputLine, OutputStream, RunningCommand};
use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::error::PlanError;
use super::machine::{COORDINATOR, ConnectedMachines, StepMachine};
use super::results::{RunResults, StepOutcome};
use super::template::Values;
use super::{PlanStep, ReadyCondition, StepMachines, StepProgram};
use crate::benchmark::PROGRESS_VARIABLE;

/// Interval between two looks whether a port or a file is there.
const READY_INTERVAL: Duration = Duration::from_millis(100);

/// Succeeds if the machine listens at TCP port $1.
const PORT_SCRIPT: &str = r#"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") [0-9A-F:]* 0A ""#;

/// Succeeds if the machine has file $1.
const FILE_SCRIPT: &str = r#"[ -e "$1" ]"#;

/// Properties that all steps of a round share.
#[derive(Debug)]
pub(super) struct PlanRound<'a> {
    pub(super) machines: &'a ConnectedMachines,
    pub(super) results: &'a RunResults,
    /// `once`, `round-N` or `cleanup`.
    pub(super) name: String,
    pub(super) values: Values,
    /// Whether a failure on one machine leaves the commands of the others alone.
    pub(super) is_cleanup: bool,
}

/// Whether the commands of a round must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRequest {
    None,
    /// All steps are complete, so the services end.
    Complete,
    /// A command has failed, or the plan is interrupted.
    Cancel,
}

/// A step that runs.
#[derive(Debug)]
pub(super) struct StepRun<'a> {
    pub(super) round: &'a PlanRound<'a>,
    pub(super) step: &'a PlanStep,
    pub(super) must_stop: watch::Receiver<StopRequest>,
    /// Gets the step's index when the command of one machine is ready.
    pub(super) ready: mpsc::UnboundedSender<usize>,
    pub(super) index: usize,
}

/// How an attempt ended.
enum AttemptEnd {
    /// The command has ended by itself.
    Ended,
    /// It must end.
    Stopped(StopRequest),
    /// The time limit has passed.
    TimedOut,
}

impl StepRun<'_> {
    /// The number of machines.
    pub(super) fn machines_count(step: &PlanStep) -> usize {
        match &step.machines {
            StepMachines::Coordinator => 1,
            StepMachines::Hosts(hosts) => hosts.len(),
        }
    }

    /// Runs the step on all machines. A step with a condition of readiness runs until it must end.
    pub(super) async fn run(&self) -> Result<(), PlanError> {
        if self.step.is_skipped() {
            let text = b"skipped: `--exclude` omits all of its hosts";
            return self.round.results.log(COORDINATOR, &self.step.name, text);
        }
        let machines: Vec<StepMachine<'_>> = match &self.step.machines {
            StepMachines::Coordinator => vec![StepMachine::Coordinator],
            StepMachines::Hosts(names) => {
                names.iter().filter_map(|name| self.round.machines.host(name)).map(StepMachine::Host).collect()
            }
        };
        let is_failure = |result: &Result<(), PlanError>| result.is_err() && !self.round.is_cleanup;
        if self.step.one_by_one {
            let mut results = Vec::new();
            for machine in machines {
                if *self.must_stop.borrow() == StopRequest::None && !results.iter().any(is_failure) {
                    results.push(self.run_on(machine, &self.must_stop).await);
                }
            }
            return PlanError::collect(results);
        }
        // The first failure stops the commands of the other machines.
        let (stop, must_stop) = watch::channel(StopRequest::None);
        let run_on = async |machine| {
            let result = self.run_on(machine, &must_stop).await;
            if is_failure(&result) {
                let _ = stop.send(StopRequest::Cancel);
            }
            result
        };
        let pass_on = async {
            let _ = stop.send(wait_for_stop(self.must_stop.clone()).await);
            std::future::pending().await
        };
        tokio::select! {
            results = join_all(machines.into_iter().map(run_on)) => PlanError::collect(results),
            () = pass_on => unreachable!("it never ends"),
        }
    }

    async fn run_on(
        &self,
        machine: StepMachine<'_>,
        must_stop: &watch::Receiver<StopRequest>,
    ) -> Result<(), PlanError> {
        let (started, mut attempts) = (Instant::now(), 0);
        let result = loop {
            attempts += 1;
            match self.attempt(machine, must_stop.clone()).await {
                // The next steps rely on a service that was ready.
                Err(error)
                    if attempts <= self.step.retries
                        && *must_stop.borrow() == StopRequest::None
                        && !matches!(error, PlanError::ServiceEnded { .. }) =>
                {
                    let text = format!("attempt {attempts} failed, and is repeated: {error}");
                    self.round.results.log(machine.name(), &self.step.name, text.as_bytes())?;
                }
                result => break result,
            }
        };
        self.round.results.add_outcome(StepOutcome {
            round: self.round.name.clone(),
            values: self.round.values.clone(),
            step: self.step.name.clone(),
            host: machine.name().to_owned(),
            seconds: started.elapsed().as_secs_f64(),
            attempts,
            failure: result.as_ref().err().map(ToString::to_string),
        });
        // The run fails because of something else.
        if matches!(result, Err(PlanError::Cancelled)) { Ok(()) } else { result }
    }

    /// Runs the command once.
    async fn attempt(
        &self,
        machine: StepMachine<'_>,
        must_stop: watch::Receiver<StopRequest>,
    ) -> Result<(), PlanError> {
        let is_experiment = self.step.program == StepProgram::Experiment;
        let (round, name) = (&self.round.name, &self.step.name);
        let file = if is_experiment {
            format!("experiments/{name}-{round}.json")
        } else {
            format!("{round}/{name}.{}.out", machine.name())
        };
        let mut stdout = self.round.results.create_file(&file)?;
        let mut running = self.round.machines.start(machine, &self.command(machine))?;
        let (mut is_ready, limit) = (false, self.step.timeout);
        let end = tokio::select! {
            biased;
            request = wait_for_stop(must_stop) => AttemptEnd::Stopped(request),
            end = self.watch(machine, &mut running, &mut stdout, &mut is_ready) => end?,
        };
        if !matches!(end, AttemptEnd::Ended) {
            running.stop();
            while let Some(line) = running.next_line().await {
                self.add_line(machine, &line, &mut stdout)?;
            }
        }
        let status = match machine {
            StepMachine::Coordinator => running.wait_here().await?,
            StepMachine::Host(connected) => running.wait(&connected.host).await?,
        };
        let (step, machine) = (name.clone(), machine.name().to_owned());
        let log = self.round.results.log_path(&machine);
        match end {
            AttemptEnd::Stopped(StopRequest::Cancel) => Err(PlanError::Cancelled),
            AttemptEnd::Stopped(_) => Ok(()),
            AttemptEnd::TimedOut => {
                let verb = if self.step.ready.is_some() { "was not ready" } else { "did not end" };
                Err(PlanError::Timeout { step, machine, verb, limit, log })
            }
            AttemptEnd::Ended if is_ready => Err(PlanError::ServiceEnded { step, machine, status, log }),
            AttemptEnd::Ended if self.step.ready.is_some() => {
                Err(PlanError::EndedBeforeReady { step, machine, status, log })
            }
            AttemptEnd::Ended if status != 0 => Err(PlanError::Status { step, machine, status, log }),
            AttemptEnd::Ended => Ok(()),
        }
    }

    fn command(&self, machine: StepMachine<'_>) -> HostCommand {
        let values = self.round.machines.values(machine, &self.round.values);
        let render = |template: &super::template::WordTemplate| template.render(&values);
        let mut words: Vec<String> = self.step.words.iter().map(render).collect();
        if self.step.program == StepProgram::Experiment {
            let farfork = self.round.machines.farfork().to_string_lossy().into_owned();
            words = [vec![farfork, "bench".to_owned()], words, vec!["--json".to_owned()]].concat();
        }
        let program = words.remove(0);
        let environment = self.step.environment.iter().map(|(name, value)| (name.clone(), render(value)));
        let progress =
            (self.step.program == StepProgram::Experiment).then(|| (PROGRESS_VARIABLE.to_owned(), String::new()));
        HostCommand {
            program,
            arguments: words,
            directory: self.step.directory.as_ref().map(render),
            environment: environment.chain(progress).collect(),
        }
    }

    /// Keeps the output of a command until it ends or the time limit has passed. The limit of a command that is ready no longer
    /// counts.
    async fn watch(
        &self,
        machine: StepMachine<'_>,
        running: &mut RunningCommand,
        stdout: &mut File,
        is_ready: &mut bool,
    ) -> Result<AttemptEnd, PlanError> {
        let until_ready = async {
            let mut looks = Box::pin(self.wait_ready(machine));
            loop {
                tokio::select! {
                    biased;
                    line = running.next_line() => {
                        let Some(line) = line else { return Ok::<_, PlanError>(true) };
                        self.add_line(machine, &line, stdout)?;
                        if self.is_ready_line(&line) {
                            *is_ready = true;
                        }
                    }
                    looked = &mut looks, if !*is_ready => {
                        looked?;
                        *is_ready = true;
                    }
                }
                if *is_ready {
                    return Ok(false);
                }
            }
        };
        let Ok(has_ended) = timeout(self.step.timeout, until_ready).await else { return Ok(AttemptEnd::TimedOut) };
        if has_ended? {
            return Ok(AttemptEnd::Ended);
        }
        let _ = self.ready.send(self.index);
        while let Some(line) = running.next_line().await {
            self.add_line(machine, &line, stdout)?;
        }
        Ok(AttemptEnd::Ended)
    }

    fn add_line(&self, machine: StepMachine<'_>, line: &OutputLine, stdout: &mut File) -> Result<(), PlanError> {
        let is_document = self.step.program == StepProgram::Experiment && line.stream == OutputStream::Stdout;
        self.round.results.add_line(machine.name(), &self.step.name, line, stdout, !is_document)
    }

    fn is_ready_line(&self, line: &OutputLine) -> bool {
        matches!(&self.step.ready, Some(ReadyCondition::Line(text)) if String::from_utf8_lossy(&line.bytes).contains(text))
    }

    /// Returns when the port or the file is there; never for another condition.
    async fn wait_ready(&self, machine: StepMachine<'_>) -> Result<(), PlanError> {
        let (script, argument) = match &self.step.ready {
            Some(ReadyCondition::Port(port)) => (PORT_SCRIPT, port.to_string()),
            Some(ReadyCondition::File(path)) => (FILE_SCRIPT, path.clone()),
            Some(ReadyCondition::Line(_)) | None => return std::future::pending().await,
        };
        while self.round.machines.test(machine, script, &argument).await? != 0 {
            sleep(READY_INTERVAL).await;
        }
        Ok(())
    }
}

/// Returns when the commands must end.
async fn wait_for_stop(mut must_stop: watch::Receiver<StopRequest>) -> StopRequest {
    let request = must_stop.wait_for(|request| *request != StopRequest::None).await;
    request.map_or(StopRequest::Cancel, |request| *request)
}
