//! `ForkWorkload`: a program whose children a load forks, and its running parent. Experiments treat the C++ program
//! `sparse`, the embedded functions and a user's function alike.

use serde::Serialize;

use super::child_task::ChildTask;
use super::functions::{FunctionOptions, FunctionParent, FunctionSource};
use super::parent::ParentProgram;
use super::sparse::SPARSE;
use crate::error::BenchError;
use crate::machine::Machine;

/// A program to fork children of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ForkWorkload {
    /// A C++ program with this much private memory. Each child touches four pages and computes a value from them.
    Sparse {
        /// Private memory, in MiB.
        mib: u64,
    },
    /// A Python function. Each child calls it once.
    Function {
        /// The function.
        source: FunctionSource,
        /// The payload of every call, a JSON document.
        payload: String,
    },
}

/// A running parent. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct WorkloadParent {
    pid: u32,
    resident_kib: u64,
    task: ChildTask,
    program: WorkloadProgram,
}

/// The program of a running parent. It is killed when this value is dropped.
#[derive(Debug)]
enum WorkloadProgram {
    Sparse(#[expect(dead_code, reason = "it ends the program when it is dropped")] ParentProgram),
    Function(Box<FunctionParent>),
}

impl ForkWorkload {
    /// The name of the workload in summaries.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Sparse { .. } => SPARSE.name,
            Self::Function { source, .. } => &source.name,
        }
    }

    /// Whether it is a Python function.
    pub(crate) fn is_function(&self) -> bool {
        matches!(self, Self::Function { .. })
    }

    /// Writes the workload's files to a machine, and starts a parent there. `options` are for functions.
    ///
    /// # Errors
    /// The program cannot be started, or a function's results differ between calls.
    pub(crate) fn start(&self, machine: &dyn Machine, options: &FunctionOptions) -> Result<WorkloadParent, BenchError> {
        match self {
            Self::Sparse { mib } => {
                SPARSE.install(machine)?;
                let parent = ParentProgram::start(machine, &SPARSE, *mib)?;
                Ok(WorkloadParent {
                    pid: parent.pid(),
                    resident_kib: mib * 1024,
                    task: ChildTask::Sparse { mib: *mib },
                    program: WorkloadProgram::Sparse(parent),
                })
            }
            Self::Function { source, payload } => {
                let parent = FunctionParent::start(source, options, machine, payload, None)?;
                Ok(WorkloadParent {
                    pid: parent.pid(),
                    resident_kib: parent.resident_kib.unsigned_abs(),
                    task: parent.task(payload),
                    program: WorkloadProgram::Function(Box::new(parent)),
                })
            }
        }
    }
}

impl WorkloadParent {
    /// The process id of the parent.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The parent's resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.resident_kib
    }

    /// The task of the parent's children.
    pub(crate) fn task(&self) -> &ChildTask {
        &self.task
    }

    /// The parent's function, if it has one.
    pub(crate) fn function(&mut self) -> Option<&mut FunctionParent> {
        match &mut self.program {
            WorkloadProgram::Sparse(_) => None,
            WorkloadProgram::Function(function) => Some(function),
        }
    }
}
