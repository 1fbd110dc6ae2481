//! `GroupGuard`: ends the processes of a step if this program is killed. SIGKILL leaves it no time to forward a signal, and the
//! step would continue next to the next run.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Each line of the input names a further process group. The input ends with this program. A stopped process gets the signal
/// only when it continues.
const SCRIPT: &str = "
    others=
    while read -r group; do others=\"$others -$group\"; done
    trap '' TERM
    for signal in TERM CONT; do
        kill -s $signal 0
        [ -z \"$others\" ] || kill -s $signal -- $others
    done";

/// The first process of a group. As long as it is not waited for, no other group has its number.
pub(super) struct GroupGuard(Child);

impl GroupGuard {
    /// Starts the guard in a new process group.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).process_group(0);
        Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// The number of the group.
    pub(super) fn group(&self) -> u32 {
        self.0.id()
    }

    /// Makes the guard end a further group.
    pub(super) fn add_group(&mut self, group: u32) {
        if let Some(input) = &mut self.0.stdin {
            // Fails if the guard was killed: a signal to its group ends it, too.
            let _ = input.write_all(format!("{group}\n").as_bytes());
        }
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const SIGTERM: i32 = 15;

    fn start_sleep(program: &str, guard: &GroupGuard) -> Child {
        Command::new(program).args(["sleep", "100"]).process_group(guard.group().cast_signed()).spawn().unwrap()
    }

    /// The input ends, as when this program is killed.
    #[test]
    fn all_groups_of_a_guard_end_with_its_input() {
        let mut guard = GroupGuard::start().unwrap();
        let member = start_sleep("env", &guard);
        let stopped = start_sleep("env", &guard);
        assert!(Command::new("kill").args(["-s", "STOP", &stopped.id().to_string()]).status().unwrap().success());
        // Has a group of its own when it has called setsid(2).
        let leader = start_sleep("setsid", &guard);
        guard.add_group(leader.id());
        drop(guard.0.stdin.take());
        for mut process in [member, stopped, leader] {
            assert_eq!(process.wait().unwrap().signal(), Some(SIGTERM));
        }
    }

    #[test]
    fn a_guard_that_is_dropped_ends_no_process() {
        let guard = GroupGuard::start().unwrap();
        let mut member = start_sleep("env", &guard);
        drop(guard);
        assert_eq!(member.try_wait().unwrap(), None);
        member.kill().unwrap();
        member.wait().unwrap();
    }
}
