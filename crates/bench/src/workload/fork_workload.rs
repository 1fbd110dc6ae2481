//! `ForkWorkload`: a program whose children a load forks, and its running parent. Experiments treat the C++ program
//! `sparse`, the embedded functions and a user's function alike.

use serde::Serialize;

use super::child_task::ChildTask;
use super::functions::{FunctionOptions, FunctionParent, FunctionSource};
use super::sparse::SPARSE;
use super::{ParentProgram, start_parent};
use crate::error::BenchError;
use crate::experiment::local_cluster::BenchCluster;

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
    /// The parent's resident memory, in KiB.
    pub(crate) resident_kib: u64,
    /// The task of the parent's children.
    pub(crate) task: ChildTask,
    pub(crate) program: ParentProgram,
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

    /// Installs the workload, and starts a parent on the first node. `options` are for functions.
    ///
    /// # Errors
    /// The program cannot be started, or a function's results differ between calls.
    pub(crate) fn start(
        &self,
        cluster: &BenchCluster,
        options: &FunctionOptions,
    ) -> Result<WorkloadParent, BenchError> {
        let machine = cluster.machine();
        match self {
            Self::Sparse { mib } => {
                cluster.install(&SPARSE)?;
                let parent = start_parent(&SPARSE, machine, *mib, None)?;
                Ok(WorkloadParent {
                    resident_kib: mib * 1024,
                    task: ChildTask::Sparse { mib: *mib },
                    program: ParentProgram::Cpp(parent),
                })
            }
            Self::Function { source, payload } => {
                let parent = FunctionParent::start(source, options, machine, payload, None)?;
                Ok(WorkloadParent {
                    resident_kib: parent.resident_kib.unsigned_abs(),
                    task: parent.task(payload),
                    program: ParentProgram::Function(Box::new(parent)),
                })
            }
        }
    }
}
