//! The floor of a fan-out whose children have the guarantees of a container: what the kernel has to do for them, and nothing
//! else. `container.cpp` says what that is.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::crowd::{ChildNetwork, LocalCrowd};
use crate::error::BenchError;
use crate::program::{Image, Program};

/// The program.
pub(crate) const CONTAINER: Image =
    Image { name: "container", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/container")) };

/// Why this machine has no such floor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("there is no unified hierarchy of control groups (cgroup2)")]
    NoUnifiedHierarchy,
    #[error("none can be made in {group}: {cause}")]
    Refused { group: PathBuf, cause: io::Error },
}

/// Starts the program with so much memory, whose children have such networks.
pub(crate) fn start(
    program: &Path,
    mib: u64,
    network: ChildNetwork,
) -> Result<Result<LocalCrowd, Refusal>, BenchError> {
    let Some(group) = super::unified_group("containers")? else { return Ok(Err(Refusal::NoUnifiedHierarchy)) };
    start_in(program, mib, network, group)
}

fn start_in(
    program: &Path,
    mib: u64,
    network: ChildNetwork,
    group: PathBuf,
) -> Result<Result<LocalCrowd, Refusal>, BenchError> {
    let mut command = Command::new(program);
    command.args([mib, network as u64].map(|number| number.to_string())).arg(&group);
    let mut program = Program::start(CONTAINER.name, &command)?;
    Ok(match program.answer("ready")? {
        [0] => Ok(LocalCrowd::of(program, mib)),
        [errno] => Err(Refusal::Refused { group, cause: io::Error::from_raw_os_error(errno as i32) }),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{CONTAINER, ChildNetwork, Refusal, start, start_in};
    use crate::baseline::unified_group;

    /// For processes that nobody waits for to have ended.
    const GONE_LIMIT: Duration = Duration::from_secs(60);

    fn wait_until_gone(group: &Path) {
        let give_up = Instant::now() + GONE_LIMIT;
        while group.exists() {
            assert!(Instant::now() < give_up, "{} is left", group.display());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn children_are_contained_and_nothing_is_left_whoever_is_killed() {
        let scratch = tempfile::tempdir().unwrap();
        let program = CONTAINER.install(scratch.path()).unwrap();
        let Some(group) = unified_group("containers").unwrap() else {
            assert!(matches!(start(&program, 4, ChildNetwork::Host), Ok(Err(Refusal::NoUnifiedHierarchy))));
            return;
        };
        for network in [ChildNetwork::Private, ChildNetwork::Shared, ChildNetwork::Host] {
            let mut crowd = start(&program, 4, network).unwrap().unwrap();
            assert!(group.exists());
            let (took, answers) = crowd.fan_out(7, 20).unwrap();
            assert_eq!(answers.len(), 20);
            assert!(answers.iter().all(|answer| answer.result < answer.answered && answer.answered < took));
            // It is killed while it makes children.
            crowd.order(1, 10_000).unwrap();
            while fs::read_dir(&group).unwrap().flatten().all(|entry| entry.file_type().unwrap().is_file()) {}
            drop(crowd);
            wait_until_gone(&group);
        }
        let nowhere = group.join("missing");
        let refused = start_in(&program, 4, ChildNetwork::Host, nowhere).unwrap().unwrap_err();
        assert!(refused.to_string().contains("farfork-bench") && refused.to_string().contains("No such file"));
    }
}
