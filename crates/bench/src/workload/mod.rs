//! The measured programs and loads. Each has one file, next to its C++ program if it has one.

pub(crate) mod child_task;
pub(crate) mod clustering;
pub(crate) mod file_tree;
pub(crate) mod file_writer;
pub(crate) mod filebench;
pub(crate) mod fork_workload;
pub(crate) mod functions;
pub(crate) mod handshakes;
pub(crate) mod leveldb;
pub(crate) mod memory_walk;
pub(crate) mod micro;
pub(crate) mod page_touch;
pub(crate) mod parent_root;
pub(crate) mod rpc_load;
pub(crate) mod sparse;
pub(crate) mod warm_function;

use self::functions::FunctionParent;
use self::micro::PAYLOAD_PATH;
use self::parent_root::ParentRoot;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::{EmbeddedProgram, RunningProgram};

/// The program of a running parent. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) enum ParentProgram {
    Cpp(RunningProgram),
    Function(Box<FunctionParent>),
}

impl ParentProgram {
    /// The process id on its machine.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Cpp(program) => program.pid(),
            Self::Function(function) => function.pid(),
        }
    }

    /// The parent's function, if it has one.
    pub(crate) fn function(&mut self) -> Option<&mut FunctionParent> {
        match self {
            Self::Cpp(_) => None,
            Self::Function(function) => Some(function),
        }
    }
}

/// Starts an installed program as a parent with `mib` of private memory, in `root` if it is given. Its children read their
/// commands from the file [`PAYLOAD_PATH`]. `parent.h` has the code that waits for the file.
pub(crate) fn start_parent(
    program: &EmbeddedProgram,
    machine: &dyn Machine,
    mib: u64,
    root: Option<&ParentRoot>,
) -> Result<RunningProgram, BenchError> {
    let mut command = program.command(machine);
    command.arg(mib.to_string()).arg(PAYLOAD_PATH);
    if let Some(root) = root {
        command = root.wrap(&command);
    }
    machine.start(program.name, &command)?.ready()
}
