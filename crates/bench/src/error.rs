//! The errors that end a benchmark early.

use std::io;
use std::path::PathBuf;

use farfork_api::failure::Failure;
use farfork_cluster::local::LocalError;

use crate::baseline::criu::error::CriuError;

/// Why a benchmark ends early. What it had started is ended with it.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The nodes cannot be started.
    #[error("the benchmark's nodes: {0}")]
    Nodes(#[from] LocalError),
    /// The nodes run, but do not hear of each other.
    #[error("the benchmark's nodes do not know each other after {seconds} s: see node.log in {run_dir}")]
    NodesNotConnected {
        /// How long was waited.
        seconds: u64,
        /// Where their files are.
        run_dir: PathBuf,
    },
    /// A node refused a request.
    #[error(transparent)]
    Request(#[from] Failure),
    /// Files of the benchmark's own.
    #[error("cannot write {path}: {cause}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A program that is measured, or measured against, cannot be started or spoken to.
    #[error("program `{program}`: {cause}")]
    Program {
        /// Its name.
        program: &'static str,
        /// Why.
        cause: io::Error,
    },
    /// A program said something else than it should.
    #[error("program `{program}` says `{output}` where `{expected}` should come")]
    UnexpectedAnswer {
        /// Its name.
        program: &'static str,
        /// A line, or nothing at its end.
        output: String,
        /// How the line should begin.
        expected: &'static str,
    },
    /// A child ended in another way than by itself.
    #[error("child {child}: {how}")]
    ChildFailed {
        /// Its id.
        child: String,
        /// What became of it.
        how: String,
    },
    /// Memory was not what it should have been.
    #[error("{count} {what} are not as they should be: the figures are worth nothing")]
    WrongMemory {
        /// How many.
        count: u64,
        /// Of what: `pages of a child`.
        what: &'static str,
    },
    /// A function returned something else in its second call.
    #[error("function `{function}`: two calls return different results, so the results of children cannot be checked")]
    UnsteadyFunction {
        /// Its name.
        function: String,
    },
    /// A child's function returned something else than the parent's.
    #[error("function `{function}`: a child's result differs from the parent's: the figures are worth nothing")]
    WrongResult {
        /// Its name.
        function: String,
    },
    /// The packages of the embedded functions cannot be installed.
    #[error(
        "the functions' Python packages cannot be installed: {cause}; connect this machine to PyPI, or name a Python that has them: --python"
    )]
    FunctionPackages {
        /// The last message of the command that failed.
        cause: String,
    },
    /// A process of a node could not be sent a signal.
    #[error("process {pid} of the node in {} cannot be sent signal {signal}: {cause}", run_dir.display())]
    Signal {
        /// Its number.
        signal: i32,
        /// The process.
        pid: i32,
        /// Where the node's files are.
        run_dir: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A peer that was to be measured cannot be.
    #[error(transparent)]
    Criu(#[from] CriuError),
    /// Somebody wanted it to end.
    #[error("the benchmark was interrupted")]
    Interrupted,
    /// The plan does not fit the machine.
    #[error(
        "{mib} MiB need about {needed_mib} MiB of free memory, {available_mib} are there; measure smaller sizes: {option}"
    )]
    NotEnoughMemory {
        /// The largest size of the plan.
        mib: u64,
        /// What a run of that size takes.
        needed_mib: u64,
        /// What is free.
        available_mib: u64,
        /// The option that sets the size.
        option: &'static str,
    },
}
