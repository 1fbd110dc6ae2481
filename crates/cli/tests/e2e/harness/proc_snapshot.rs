//! A snapshot of a process's state in `/proc`, to compare before and after a capture. It contains only values that a
//! capture could change but the process itself does not change.

use std::fs;
use std::io::ErrorKind;

/// The lines of `/proc/PID/status` in the snapshot: ids, signals, privileges, tracer and others.
const KEYS: [&str; 20] = [
    "Name:",
    "Umask:",
    "State:",
    "TracerPid:",
    "Pid:",
    "PPid:",
    "Uid:",
    "Gid:",
    "FDSize:",
    "Threads:",
    "SigPnd:",
    "ShdPnd:",
    "SigBlk:",
    "SigIgn:",
    "SigCgt:",
    "CapEff:",
    "NoNewPrivs:",
    "Seccomp:",
    "Cpus_allowed:",
    "THP_enabled:",
];

/// Files of `/proc/PID` in the snapshot. They change only by the process's own actions.
const FILES: [&str; 8] =
    ["maps", "cgroup", "limits", "timers", "oom_score_adj", "personality", "timerslack_ns", "coredump_filter"];

/// Reads the snapshot as lines of text.
pub(crate) fn read_proc_snapshot(pid: i32) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_else(|e| panic!("{name}: {e}"));
    let status = read("status");
    let kept = status.lines().filter(|line| KEYS.iter().any(|key| line.starts_with(key)));
    // Ignore whether the process sleeps or runs at this moment.
    let mut lines: Vec<String> = kept.map(|line| line.replace("R (running)", "S (sleeping)")).collect();
    for file in FILES {
        lines.extend(read(file).lines().map(|line| format!("{file}: {line}")));
    }
    for number in numbers_in(&format!("/proc/{pid}/fd")) {
        let link = match fs::read_link(format!("/proc/{pid}/fd/{number}")) {
            // The kernel does not show a path longer than PATH_MAX.
            Err(error) if error.kind() == ErrorKind::InvalidFilename => "a long path".into(),
            link => link.unwrap_or_else(|e| panic!("fd {number}: {e}")),
        };
        lines.push(format!("fd {number}: {} {}", link.display(), read(&format!("fdinfo/{number}"))));
    }
    lines
}

fn numbers_in(directory: &str) -> Vec<u32> {
    let names = fs::read_dir(directory).expect("the process lives").flatten();
    let mut numbers: Vec<u32> = names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
