//! The floor of a fan-out in containers: the kernel's work for each child, and nothing else. `container.cpp` is the
//! program, and lists that work.

use std::io;
use std::path::PathBuf;

use super::local_fanout::{ChildNetwork, LocalFanout};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::machine::program::EmbeddedProgram;

/// The program.
pub(crate) const CONTAINER: EmbeddedProgram =
    EmbeddedProgram { name: "container", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/container")) };

/// Why this machine lacks the floor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BareContainerRefusal {
    #[error("there is no unified hierarchy of control groups (cgroup2)")]
    NoUnifiedHierarchy,
    #[error("none can be made in {group}: {cause}")]
    CgroupDenied { group: PathBuf, cause: io::Error },
}

/// Installs the program, and starts it with this much memory. Its children are in this kind of network.
pub(crate) fn start(
    machine: &dyn Machine,
    mib: u64,
    network: ChildNetwork,
) -> Result<Result<LocalFanout, BareContainerRefusal>, BenchError> {
    let Some(group) = super::unified_cgroup_for(super::CONTAINERS_GROUP)? else {
        return Ok(Err(BareContainerRefusal::NoUnifiedHierarchy));
    };
    start_in(machine, mib, network, group)
}

fn start_in(
    machine: &dyn Machine,
    mib: u64,
    network: ChildNetwork,
    group: PathBuf,
) -> Result<Result<LocalFanout, BareContainerRefusal>, BenchError> {
    CONTAINER.install(machine)?;
    let mut command = CONTAINER.command(machine);
    command.args([mib, network as u64].map(|number| number.to_string())).arg(&group);
    let mut program = machine.start(CONTAINER.name, &command)?;
    Ok(match program.read_answer("ready")? {
        [0] => Ok(LocalFanout::from_program(program, mib)),
        [errno] => Err(BareContainerRefusal::CgroupDenied { group, cause: io::Error::from_raw_os_error(errno as i32) }),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{BareContainerRefusal, ChildNetwork, start, start_in};
    use crate::baseline::{CONTAINERS_GROUP, unified_cgroup_for};
    use crate::machine::namespace::NamespaceMachine;

    /// Time limit for the end of killed processes that are not children of this test.
    const GONE_LIMIT: Duration = Duration::from_secs(60);

    fn wait_until_gone(group: &Path) {
        let give_up = Instant::now() + GONE_LIMIT;
        while group.exists() {
            assert!(Instant::now() < give_up, "{} is left", group.display());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn children_have_namespaces_and_leave_nothing_after_kills() {
        let scratch = tempfile::tempdir().unwrap();
        let machine = NamespaceMachine::own(scratch.path());
        let Some(group) = unified_cgroup_for(CONTAINERS_GROUP).unwrap() else {
            assert!(matches!(
                start(&machine, 4, ChildNetwork::Host),
                Ok(Err(BareContainerRefusal::NoUnifiedHierarchy))
            ));
            return;
        };
        for network in [ChildNetwork::Private, ChildNetwork::Shared, ChildNetwork::Host] {
            let mut crowd = start(&machine, 4, network).unwrap().unwrap();
            assert!(group.exists());
            let (took, answers) = crowd.fan_out(7, 20).unwrap();
            assert_eq!(answers.len(), 20);
            assert!(answers.iter().all(|answer| answer.result < answer.answer && answer.answer < took));
            // Kill the program while it creates children.
            crowd.request_fork(1, 10_000).unwrap();
            while fs::read_dir(&group).unwrap().flatten().all(|entry| entry.file_type().unwrap().is_file()) {}
            drop(crowd);
            wait_until_gone(&group);
        }
        let nowhere = group.join("missing");
        let refused = start_in(&machine, 4, ChildNetwork::Host, nowhere).unwrap().unwrap_err();
        assert!(refused.to_string().contains("farfork-bench") && refused.to_string().contains("No such file"));
    }
}
