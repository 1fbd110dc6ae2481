//! `ProcessTree`: a tree of processes that are paused together. `process_tree.cpp` is the program.

use std::path::Path;
use std::process::Command;

use super::micro::ns_to_ms;
use crate::embedded_program::{ChildProgram, EmbeddedProgram};
use crate::error::BenchError;

/// The program.
pub(crate) const PROCESS_TREE: EmbeddedProgram =
    EmbeddedProgram { name: "process_tree", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/process_tree")) };

/// A running tree. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ProcessTree(ChildProgram);

impl ProcessTree {
    /// Starts the installed program with this many processes. Each has `mib` of private memory; all share `shared_mib`.
    pub(crate) fn start(program: &Path, processes: u64, mib: u64, shared_mib: u64) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.args([processes, mib, shared_mib].map(|number| number.to_string()));
        let mut program = ChildProgram::start(PROCESS_TREE.name, &command)?;
        let [] = program.read_answer("ready")?;
        Ok(Self(program))
    }

    /// The pid of the tree's first process.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Makes every process write to all of its pages, so that the next fork finds them as a busy program leaves them.
    pub(crate) fn write_all(&mut self) -> Result<(), BenchError> {
        let [_ns] = self.0.request(b'w', "written")?;
        Ok(())
    }

    /// Measures the sum of the times of fork(2) in all processes, in ms.
    pub(crate) fn measure_forks_ms(&mut self) -> Result<f64, BenchError> {
        let [ns] = self.0.request(b'f', "forked")?;
        Ok(ns_to_ms(ns))
    }

    /// Measures the time of memcpy(3) for the shared memory, in ms.
    pub(crate) fn measure_copy_ms(&mut self) -> Result<f64, BenchError> {
        let [ns] = self.0.request(b'm', "copied")?;
        Ok(ns_to_ms(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::{PROCESS_TREE, ProcessTree};

    #[test]
    fn processes_of_a_tree_fork_and_end_with_the_first_process() {
        let scratch = tempfile::tempdir().unwrap();
        let program = PROCESS_TREE.install(scratch.path()).unwrap();
        let mut tree = ProcessTree::start(&program, 3, 1, 1).unwrap();
        let children = format!("/proc/{}/task/{0}/children", tree.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let children: Vec<&str> = children.split_ascii_whitespace().collect();
        assert_eq!(children.len(), 2);
        tree.write_all().unwrap();
        assert!(tree.measure_forks_ms().unwrap() > 0.0 && tree.measure_copy_ms().unwrap() > 0.0);
        drop(tree);
        // An ended process is gone, or is a zombie until the reaper of this pid namespace waits for it.
        let ends = |child: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        while !children.iter().all(|child| ends(child)) {
            std::thread::yield_now();
        }
    }
}
