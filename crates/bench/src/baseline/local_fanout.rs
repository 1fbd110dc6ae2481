//! Floors of a fan-out: local forks of the same memory that do the same work, with or without a container's namespaces
//! for each. `local_fanout.cpp` is the program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;
use crate::workload::sparse;

/// The program.
pub(crate) const LOCAL_FANOUT: EmbeddedProgram =
    EmbeddedProgram { name: "local_fanout", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/local_fanout")) };

/// Children at once: as many as a node starts at once.
const CONCURRENT_CHILDREN: u64 = 8;

/// Which network children are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildNetwork {
    /// Each in its own.
    Private,
    /// All of a fan-out, on a node, in one.
    Shared,
    /// In the node's.
    Host,
}

/// What became of a child, since the fan-out began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildLatency {
    /// When it had its result.
    pub(crate) result: Duration,
    /// When whoever asked had it.
    pub(crate) answer: Duration,
}

/// A process that forks crowds; it ends with this value.
#[derive(Debug)]
pub(crate) struct LocalFanout {
    program: ChildProgram,
    mib: u64,
}

impl LocalFanout {
    /// Starts it, with so much memory; its children are in so many containers by turns, of such networks, or in none.
    pub(crate) fn start(
        program: &Path,
        mib: u64,
        (containers, network): (u64, ChildNetwork),
    ) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        let network = network as u64;
        command.args([mib, CONCURRENT_CHILDREN, containers, network].map(|number| number.to_string()));
        let mut program = ChildProgram::start(LOCAL_FANOUT.name, &command)?;
        let [] = program.read_answer("ready")?;
        Ok(Self::from_program(program, mib))
    }

    /// A program that was started and takes the same requests.
    pub(super) fn from_program(program: ChildProgram, mib: u64) -> Self {
        Self { program, mib }
    }

    /// Forks children of these numbers; gives how long it took until the last answer, and what became of each.
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

    /// Has children forked, whose answers are not read yet.
    pub(super) fn request_fork(&mut self, first: u64, count: u64) -> Result<(), BenchError> {
        self.program.send_text(&format!("{count} {first}\n"))
    }

    /// Forks a child that stays until the next request, having done what all do; its process id.
    pub(crate) fn fork_held(&mut self, number: u64) -> Result<i32, BenchError> {
        self.program.send_text(&format!("0 {number}\n"))?;
        let [pid] = self.program.read_answer("held")?;
        Ok(i32::try_from(pid).unwrap_or(0))
    }
}
