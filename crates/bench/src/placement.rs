//! `PlacementArgs`: the CPUs and the memory of a run. All processes of the run inherit them from this program.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs, io};

use anyhow::Context as _;
use clap::Args;
use farfork_api::failure::Failure;
use farfork_sys::affinity::{parse_cpu_list, restrict_to_cpus};
use tonic::Code;

/// Set in the environment of a program that numactl(8) has started.
const PLACED: &str = "FARFORK_BENCH_PLACED";

/// The NUMA nodes of this machine, as a list such as `0-1`; see the kernel's
/// `Documentation/ABI/stable/sysfs-devices-node`.
const ONLINE_NODES: &str = "/sys/devices/system/node/online";

/// Where the processes of a run are.
#[derive(Args, Clone)]
pub(crate) struct PlacementArgs {
    /// Run all processes of the benchmark on these CPUs only, such as 0-3,8.
    #[arg(long, value_name = "LIST", global = true, display_order = 101, value_parser = parse_cpus)]
    cpus: Option<String>,
    /// Run all processes of the benchmark on the CPUs of this NUMA node, and allocate their memory there. Needs numactl.
    #[arg(long, value_name = "NODE", global = true, display_order = 102, conflicts_with = "cpus")]
    numa: Option<u32>,
}

impl PlacementArgs {
    /// Whether the user has chosen CPUs or a NUMA node.
    pub(crate) fn is_specified(&self) -> bool {
        self.cpus.is_some() || self.numa.is_some()
    }

    /// Restricts this thread, and the processes that it starts. Call it before other threads are started.
    ///
    /// # Errors
    /// The machine has none of the CPUs, no such NUMA node, or only one; numactl(8) cannot be executed.
    pub(crate) fn apply(&self) -> anyhow::Result<()> {
        if let Some(cpus) = &self.cpus {
            restrict_to_cpus(cpus).map_err(|error| cpus_failure(cpus, &error))?;
        }
        match self.numa {
            Some(node) if env::var_os(PLACED).is_none() => execute_on_numa_node(node),
            _ => Ok(()),
        }
    }
}

/// See sched_setaffinity(2).
fn cpus_failure(cpus: &str, error: &io::Error) -> Failure {
    let cause = match error.kind() {
        io::ErrorKind::InvalidInput => "this program may run on none of them".to_owned(),
        _ => error.to_string(),
    };
    Failure::new(Code::InvalidArgument, format!("CPUs {cpus}"), cause)
        .with_next_step("choose some that nproc(1) counts")
}

/// Replaces this program by numactl(8), which executes it again.
fn execute_on_numa_node(node: u32) -> anyhow::Result<()> {
    require_node(node, &fs::read_to_string(ONLINE_NODES).unwrap_or_default())?;
    let program = env::current_exe().context("readlink of /proc/self/exe")?;
    let mut command = Command::new("numactl");
    command.arg(format!("--cpunodebind={node}")).arg(format!("--membind={node}")).arg(program);
    // exec returns only an error.
    let error = command.args(env::args_os().skip(1)).env(PLACED, "1").exec();
    let failure = Failure::new(Code::NotFound, "program numactl", error.to_string());
    Err(failure.with_next_step("install the package numactl").into())
}

fn parse_cpus(text: &str) -> Result<String, String> {
    match parse_cpu_list(text) {
        Some(cpus) if !cpus.is_empty() => Ok(text.to_owned()),
        _ => Err("write CPU numbers and ranges, such as 0-3,8".to_owned()),
    }
}

/// Checks that the machine has several NUMA nodes, with this one among them. `online` is the content of `ONLINE_NODES`.
fn require_node(node: u32, online: &str) -> anyhow::Result<()> {
    let nodes = parse_cpu_list(online.trim()).unwrap_or_default();
    let is_online = nodes.get(node as usize / 32).is_some_and(|word| word & 1 << (node % 32) != 0);
    let cause = match nodes.iter().map(|word| word.count_ones()).sum() {
        0 | 1 => "this machine has only one".to_owned(),
        _ if is_online => return Ok(()),
        _ => format!("this machine has {}", online.trim()),
    };
    Err(Failure::new(Code::InvalidArgument, format!("NUMA node {node}"), cause)
        .with_next_step("run the benchmark without --numa, or choose CPUs with --cpus")
        .into())
}

#[cfg(test)]
mod tests {
    use super::{cpus_failure, parse_cpus, require_node, restrict_to_cpus};

    #[test]
    fn cpu_lists_have_numbers_and_ranges() {
        assert!(["0", "0-3", "0-3,8"].iter().all(|list| parse_cpus(list).is_ok()));
        assert!(["", "a", "0-", "0-1-2", "--help"].iter().all(|list| parse_cpus(list).is_err()));
    }

    #[test]
    fn missing_cpus_are_named() {
        let error = restrict_to_cpus("1023").unwrap_err();
        assert!(cpus_failure("1023", &error).to_string().contains("CPUs 1023: this program may run on none of them"));
    }

    #[test]
    fn a_numa_node_must_be_one_of_several() {
        assert!(require_node(1, "0-1\n").is_ok());
        assert!(require_node(3, "0,2-3\n").is_ok());
        let error = |online| require_node(1, online).unwrap_err().to_string();
        assert!(error("0\n").contains("only one"), "{}", error("0\n"));
        assert!(error("0,2\n").contains("this machine has 0,2"), "{}", error("0,2\n"));
    }
}
