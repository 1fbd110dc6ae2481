//! Shows where the threads of a process are in the kernel: the first clue for a process that does not respond.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;

/// Maximum number of functions that are shown of a thread's kernel stack, from the innermost one.
const FUNCTIONS_MAX: usize = 4;

/// Name, state and kernel functions of each thread, with the number of threads for which all of these are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelStackSummary(BTreeMap<String, usize>);

impl KernelStackSummary {
    /// Reads the threads of a process. A thread that ends during the call is omitted.
    ///
    /// # Errors
    /// NotFound if the process has ended.
    pub fn read(pid: i32) -> io::Result<Self> {
        let mut counts = BTreeMap::new();
        for location in super::thread_ids(pid)?.into_iter().filter_map(|tid| thread_location(pid, tid).ok()) {
            *counts.entry(location).or_default() += 1;
        }
        Ok(Self(counts))
    }
}

impl fmt::Display for KernelStackSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (location, count)) in self.0.iter().enumerate() {
            write!(f, "{}{count} {location}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Reads the name, state and innermost kernel functions of a thread (proc(5)). Without CAP_SYS_ADMIN, the functions are
/// missing.
fn thread_location(pid: i32, tid: i32) -> io::Result<String> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
    let (name, stat) = (read("comm")?, read("stat")?);
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
    let stack = read("stack").unwrap_or_default();
    let functions = stack.lines().filter_map(|line| line.split_whitespace().nth(1)?.split('+').next());
    let functions: Vec<&str> = functions.take(FUNCTIONS_MAX).collect();
    Ok(format!("{} {state} {}", name.trim_end(), functions.join(" < ")).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::ProcStatus;
    use super::KernelStackSummary;

    #[test]
    fn a_kernel_stack_has_thread_name_and_state() {
        let stopped = Command::new("sh").args(["-c", "kill -STOP $$"]).spawn();
        let mut stopped = stopped.unwrap();
        let pid = stopped.id().cast_signed();
        let is_stopped = || ProcStatus::read(pid).is_ok_and(|status| status.state == "T");
        while !is_stopped() {
            std::thread::yield_now();
        }
        let summary = KernelStackSummary::read(pid).unwrap().to_string();
        stopped.kill().unwrap();
        stopped.wait().unwrap();
        assert!(summary.starts_with("1 sh T"), "{summary}");
    }
}
