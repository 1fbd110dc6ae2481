//! `PlacementArgs`: the CPUs and the memory of a run. taskset(1) and numactl(8) set them for this program, and all
//! processes of the run inherit them.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;
use clap::Args;
use farfork_api::failure::Failure;
use tonic::Code;

/// Set in the environment of a program that has its placement.
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
    /// Replaces this program by itself with the placement, unless it has it already or none is wanted.
    ///
    /// # Errors
    /// The machine has no such NUMA node, or only one; taskset(1) or numactl(8) cannot be executed.
    pub(crate) fn apply(&self) -> anyhow::Result<()> {
        if env::var_os(PLACED).is_some() {
            return Ok(());
        }
        let (mut command, package) = match (&self.cpus, self.numa) {
            (Some(cpus), _) => (placing_command("taskset", &["--cpu-list", cpus]), "util-linux"),
            (None, Some(node)) => {
                require_node(node, &fs::read_to_string(ONLINE_NODES).unwrap_or_default())?;
                let node = node.to_string();
                (placing_command("numactl", &["--cpunodebind", &node, "--membind", &node]), "numactl")
            }
            (None, None) => return Ok(()),
        };
        let program = env::current_exe().context("readlink of /proc/self/exe")?;
        // exec returns only an error.
        let error = command.arg(program).args(env::args_os().skip(1)).env(PLACED, "1").exec();
        let name = command.get_program().display();
        Err(Failure::new(Code::NotFound, format!("program {name}"), error.to_string())
            .with_next_step(format!("install the package {package}"))
            .into())
    }
}

fn placing_command(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments);
    command
}

fn parse_cpus(text: &str) -> Result<String, String> {
    let is_number = |number: &str| number.parse::<u16>().is_ok();
    let is_range = |range: &str| range.split('-').count() <= 2 && range.split('-').all(is_number);
    match text.split(',').all(is_range) {
        true => Ok(text.to_owned()),
        false => Err("write CPU numbers and ranges, such as 0-3,8".to_owned()),
    }
}

/// Checks that the machine has several NUMA nodes, with this one among them. `online` is the content of `ONLINE_NODES`.
fn require_node(node: u32, online: &str) -> anyhow::Result<()> {
    let bounds = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    let nodes: Vec<u32> = online.trim().split(',').filter_map(bounds).flatten().collect();
    let cause = match nodes.len() {
        0 | 1 => "this machine has only one".to_owned(),
        _ if nodes.contains(&node) => return Ok(()),
        _ => format!("this machine has {}", online.trim()),
    };
    Err(Failure::new(Code::InvalidArgument, format!("NUMA node {node}"), cause)
        .with_next_step("run the benchmark without --numa, or choose CPUs with --cpus")
        .into())
}

#[cfg(test)]
mod tests {
    use super::{parse_cpus, require_node};

    #[test]
    fn cpu_lists_have_numbers_and_ranges() {
        assert!(["0", "0-3", "0-3,8"].iter().all(|list| parse_cpus(list).is_ok()));
        assert!(["", "a", "0-", "0-1-2", "0,,1", "--help"].iter().all(|list| parse_cpus(list).is_err()));
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
