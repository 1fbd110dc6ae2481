//! Floors of a fan-out: local forks of a process with as much memory as the parent. They do the work of farfork's
//! children, with or without a container's namespaces. `local_fanout.cpp` is the program.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, RunningProgram};
use crate::workload::sparse;

/// The program.
pub(crate) const LOCAL_FANOUT: EmbeddedProgram =
    EmbeddedProgram { name: "local_fanout", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/local_fanout")) };

/// Number of children at the same time: as many as a node starts at once.
const CONCURRENT_CHILDREN: u64 = 8;

/// Number of namespace sets that local forks use in turn. It exceeds the number of local forks at the same time.
pub(crate) const NAMESPACE_SETS: u64 = 16;

/// The network of the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildNetwork {
    /// A network for each child.
    Private,
    /// One for all children of a fan-out on a node.
    Shared,
    /// The network of the node.
    Host,
}

impl ChildNetwork {
    /// The text for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Private => "a network each",
            Self::Shared => "a network for all of a node",
            Self::Host => "in their node's network",
        }
    }
}

/// The times of a child, since the start of the fan-out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildLatency {
    /// Time at which the child had its result.
    pub(crate) result: Duration,
    /// Time at which the requester had the result.
    pub(crate) answer: Duration,
}

/// A process that forks many children. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct LocalFanout {
    program: RunningProgram,
    mib: u64,
}

impl LocalFanout {
    /// Starts the installed process with this much memory. Its children use `containers` sets of namespaces with this kind of
    /// network in turn; none if 0.
    pub(crate) fn start(
        machine: &dyn Machine,
        mib: u64,
        containers: u64,
        network: ChildNetwork,
    ) -> Result<Self, BenchError> {
        let arguments = [mib, CONCURRENT_CHILDREN, containers, network as u64].map(|number| number.to_string());
        Ok(Self::from_program(LOCAL_FANOUT.start(machine, arguments)?.ready()?, mib))
    }

    /// Wraps a running program that takes the requests of `local_fanout.cpp`.
    pub(super) fn from_program(program: RunningProgram, mib: u64) -> Self {
        Self { program, mib }
    }

    /// Forks children with these numbers. Returns the time until the last answer, and the times of each child.
    pub(crate) fn fan_out(&mut self, first: u64, count: u64) -> Result<(Duration, Vec<ChildLatency>), BenchError> {
        self.request_fork(first, count)?;
        let ns = |ns: i64| Duration::from_nanos(ns.unsigned_abs());
        let [took] = self.program.read_answer("fanned")?;
        let one = |_| {
            let [number, value, result, answered] = self.program.read_answer("answered")?;
            sparse::check_value(number, value, number.unsigned_abs(), self.mib)?;
            Ok(ChildLatency { result: ns(result), answer: ns(answered) })
        };
        let all: Vec<ChildLatency> = (0..count).map(one).collect::<Result<_, BenchError>>()?;
        Ok((ns(took), all))
    }

    /// Requests children, without reading their answers.
    pub(super) fn request_fork(&mut self, first: u64, count: u64) -> Result<(), BenchError> {
        self.program.send_text(&format!("{count} {first}\n"))
    }

    /// Forks a child that does the work of a fan-out's child, then runs until the next request. Returns its pid.
    pub(crate) fn fork_held(&mut self, number: u64) -> Result<i32, BenchError> {
        self.program.send_text(&format!("0 {number}\n"))?;
        let [pid] = self.program.read_answer("held")?;
        Ok(i32::try_from(pid).unwrap_or(0))
    }
}
