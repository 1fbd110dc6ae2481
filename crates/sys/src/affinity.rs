//! CPU affinity: which CPUs threads run on, and how to move the calling thread. A move does not pin the thread: afterwards
//! the thread may run on the same CPUs as before.

use std::path::Path;
use std::{fs, io, iter};

pub use rustix::thread::sched_getcpu as current;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Number of words in /proc/PID/stat between the name's closing bracket and the CPU number, which is field 39
/// (proc_pid_stat(5)).
const WORDS_BEFORE_CPU: usize = 36;

/// Returns the CPU on which the process's main thread runs or last ran; `None` if there is no such process.
pub fn cpu_of_process(pid: i32) -> Option<usize> {
    parse_stat_cpu(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the CPUs that the process's control group allows: bit N of word M is CPU 32 × M + N. `None` if they cannot be read.
pub fn cpuset_of_process(pid: i32) -> Option<Vec<u32>> {
    let path = fs::read_to_string(format!("/proc/{pid}/cpuset")).ok()?;
    let path = path.trim().trim_start_matches('/');
    // Try cgroup version 1, then version 2. A version 2 group without the cpuset controller uses the CPUs of its nearest
    // ancestor with this controller.
    let first = Path::new("/sys/fs/cgroup/cpuset").join(path).join("cpuset.effective_cpus");
    let unified = Path::new("/sys/fs/cgroup").join(path);
    let second = unified.ancestors().take_while(|group| group.starts_with("/sys/fs/cgroup"));
    let mut files = iter::once(first).chain(second.map(|group| group.join("cpuset.cpus.effective")));
    parse_cpu_list(files.find_map(|file| fs::read_to_string(file).ok())?.trim())
}

/// Restricts the calling thread, and the threads that it starts, to a list of CPUs such as `0-3,6`.
///
/// # Errors
/// `InvalidInput` if `list` does not have this form; otherwise as sched_setaffinity(2).
pub fn restrict_to_cpus(list: &str) -> io::Result<()> {
    let words = parse_cpu_list(list).ok_or(io::ErrorKind::InvalidInput)?;
    let mut cpus = CpuSet::new();
    let is_listed = |cpu: &usize| words.get(cpu / 32).is_some_and(|word| word & 1 << (cpu % 32) != 0);
    (0..CpuSet::MAX_CPU).filter(is_listed).for_each(|cpu| cpus.set(cpu));
    Ok(sched_setaffinity(None, &cpus)?)
}

/// Parses a list such as `0-3,6` into a bit set; `None` if the list is invalid.
pub fn parse_cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut words = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse::<usize>().ok()?..=last.parse::<usize>().ok().filter(|last| *last < CPUS_MAX)? {
            words.resize(words.len().max(cpu / 32 + 1), 0);
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    Some(words)
}

/// Highest number of CPUs that a Linux kernel supports on x86-64.
const CPUS_MAX: usize = 8192;

/// Returns the number of CPUs that the calling thread may use.
///
/// # Errors
/// As sched_getaffinity(2).
pub fn allowed_cpu_count() -> io::Result<usize> {
    Ok(sched_getaffinity(None)?.count() as usize)
}

/// Moves the calling thread to a CPU, if it may run there.
///
/// # Errors
/// As sched_setaffinity(2).
pub fn migrate_to_cpu(cpu: usize) -> io::Result<()> {
    let permitted = sched_getaffinity(None)?;
    if cpu >= CpuSet::MAX_CPU || !permitted.is_set(cpu) {
        return Ok(());
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    migrate_within(&only, &permitted)
}

/// Moves the calling thread away from a CPU, if it may run anywhere else.
///
/// # Errors
/// As sched_setaffinity(2).
pub fn migrate_from_cpu(cpu: usize) -> io::Result<()> {
    let permitted = sched_getaffinity(None)?;
    without_cpu(&permitted, cpu).map_or(Ok(()), |others| migrate_within(&others, &permitted))
}

fn migrate_within(to: &CpuSet, permitted: &CpuSet) -> io::Result<()> {
    sched_setaffinity(None, to)?;
    Ok(sched_setaffinity(None, permitted)?)
}

/// Returns `set` without `avoided`; `None` if no CPU is left.
fn without_cpu(set: &CpuSet, avoided: usize) -> Option<CpuSet> {
    let mut rest = *set;
    if avoided < CpuSet::MAX_CPU {
        rest.unset(avoided);
    }
    (rest.count() > 0).then_some(rest)
}

fn parse_stat_cpu(stat: &str) -> Option<usize> {
    // Search the last bracket: the name may contain any character, including brackets.
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(WORDS_BEFORE_CPU)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    }

    #[test]
    fn cpu_lists_are_parsed_as_sets() {
        assert_eq!(parse_cpu_list("0-2,33"), Some(vec![7, 2]));
        assert_eq!((parse_cpu_list(""), parse_cpu_list("1-x"), parse_cpu_list("9999")), (Some(Vec::new()), None, None));
        assert!(cpuset_of_process(std::process::id() as i32).is_none_or(|cpus| cpus.iter().any(|word| *word != 0)));
    }

    #[test]
    fn the_last_cpu_is_not_removed() {
        assert_eq!(without_cpu(&set(&[0, 3]), 0), Some(set(&[3])));
        assert_eq!(without_cpu(&set(&[3]), 0), Some(set(&[3])));
        assert_eq!(without_cpu(&set(&[3]), 3), None);
        assert_eq!(without_cpu(&set(&[3]), usize::MAX), Some(set(&[3])));
    }

    #[test]
    fn a_thread_moves_and_may_return() {
        let before = sched_getaffinity(None).unwrap();
        // The kernel may move the thread back at any time, but does not always do so.
        let tried =
            |moves: &dyn Fn() -> bool| assert!((0..1000).any(|_| moves()), "the thread did not move in 1000 attempts");
        tried(&|| {
            let cpu = current();
            migrate_from_cpu(cpu).unwrap();
            current() != cpu || before.count() == 1
        });
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)) {
            tried(&|| {
                migrate_to_cpu(cpu).unwrap();
                current() == cpu
            });
        }
        migrate_to_cpu(usize::MAX).unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), before, "the thread may run on the same CPUs as before");
    }

    #[test]
    fn the_cpu_of_a_process_is_parsed() {
        let stat = |name: &str| format!("12 ({name}) S {} 5 0 0", "7 ".repeat(WORDS_BEFORE_CPU - 1));
        assert_eq!(parse_stat_cpu(&stat("a) S 1 (b")), Some(5));
        assert_eq!([parse_stat_cpu(""), parse_stat_cpu("1 (a) S 2 3")], [None; 2]);
        assert!(cpu_of_process(std::process::id() as i32).is_some_and(|cpu| cpu < CpuSet::MAX_CPU));
        assert_eq!(cpu_of_process(0), None);
    }
}
