//! Parses `/proc/PID/status`: credentials, capabilities, signals, ids in nested namespaces.

use std::io;

use super::{malformed, read_once};

const PR_SPEC_DISABLE: u32 = 1 << 2;
const PR_SPEC_FORCE_DISABLE: u32 = 1 << 3;

/// Fields of `/proc/PID/status` that farfork needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcStatus {
    /// One letter: R, S, D, T, t, Z, X, I.
    pub state: String,
    /// Id of the process to which the thread belongs.
    pub process: i32,
    /// Id of its tracer; 0 for none.
    pub tracer: i32,
    /// Its id in each of its pid namespaces, from the reader's namespace to the innermost one.
    pub namespace_ids: Vec<u32>,
    /// Its process group's id in each of these namespaces.
    pub group_ids: Vec<u32>,
    /// Its session's id in each of these namespaces.
    pub session_ids: Vec<u32>,
    /// File mode creation mask.
    pub umask: u32,
    /// Real, effective, saved and file-system user id.
    pub uids: [u32; 4],
    /// Real, effective, saved and file-system group id.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Capability sets: inheritable, permitted, effective, bounding, ambient.
    pub capabilities: [u64; 5],
    /// PR_GET_NO_NEW_PRIVS.
    pub no_new_privileges: bool,
    /// Mode of seccomp(2): 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Number of its seccomp filters.
    pub seccomp_filters: u32,
    /// Signals that are pending for the thread, or for its process.
    pub signals_pending: u64,
    /// Signals that are blocked now, including those that sigsuspend(2) and similar calls block; bit N−1 is signal N.
    pub signals_blocked: u64,
    /// Signals that are ignored.
    pub signals_ignored: u64,
    /// Signals with a handler.
    pub signals_caught: u64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Private memory that it has written, in bytes: resident or swapped out.
    pub anonymous_bytes: u64,
    /// Resident pages of mapped files, in bytes, without the pages that it has copied by writing.
    pub file_bytes: u64,
    /// Locked memory, in bytes.
    pub locked_bytes: u64,
    /// PR_SET_THP_DISABLE is set, or the kernel has no huge pages.
    pub is_thp_disabled: bool,
    /// CPUs that it may run on; bit N of word M is CPU 32 × M + N.
    pub cpus: Vec<u32>,
    /// Whether it has a shadow stack.
    pub has_shadow_stack: bool,
    /// How the thread has disabled speculative store bypass (prctl(2), PR_SET_SPECULATION_CTRL): PR_SPEC_DISABLE,
    /// PR_SPEC_FORCE_DISABLE, or 0 for not at all.
    pub store_bypass: u32,
    /// How the thread has disabled indirect branch speculation, likewise.
    pub indirect_branch: u32,
    /// Number of voluntary context switches (sleeps).
    pub voluntary_switches: u64,
}

/// Formats [`ProcStatus::cpus`] as a list of cpuset(7): `0-3,8`.
pub fn format_cpu_list(cpus: &[u32]) -> String {
    let has = |cpu: usize| cpus.get(cpu / 32).is_some_and(|word| word & 1 << (cpu % 32) != 0);
    let (mut list, mut cpu, end) = (Vec::new(), 0, cpus.len() * 32);
    while cpu < end {
        let first = cpu;
        while has(cpu) {
            cpu += 1;
        }
        match cpu - first {
            0 => cpu += 1,
            1 => list.push(first.to_string()),
            _ => list.push(format!("{first}-{}", cpu - 1)),
        }
    }
    list.join(",")
}

impl ProcStatus {
    /// Reads the fields of a process, or of a thread by its id.
    ///
    /// # Errors
    /// NotFound if it has ended.
    pub fn read(id: i32) -> io::Result<Self> {
        // The name may contain any byte; the rest is ASCII.
        let bytes = read_once(&format!("/proc/{id}/status"))?;
        let status = Self::parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| malformed("status"))?;
        // The kernel writes 0 if the task was reaped after the file was opened.
        if status.process == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(status)
    }

    /// Whether a signal is ignored.
    pub fn ignores(&self, signal: i32) -> bool {
        self.signals_ignored & 1 << (signal - 1).clamp(0, 63) != 0
    }

    /// Whether a signal has a handler.
    pub fn catches(&self, signal: i32) -> bool {
        self.signals_caught & 1 << (signal - 1).clamp(0, 63) != 0
    }

    fn parse(text: &str) -> Option<Self> {
        let mut status = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            status.parse_line(key, value.trim())?;
        }
        (!status.state.is_empty()).then_some(status)
    }

    /// Parses one line; `None` if its value does not have the expected form.
    fn parse_line(&mut self, key: &str, value: &str) -> Option<()> {
        let hex = || u64::from_str_radix(value, 16).ok();
        let bytes = || Some(value.strip_suffix(" kB")?.parse::<u64>().ok()? << 10);
        match key {
            "State" => self.state = value.get(..1)?.to_owned(),
            "Tgid" => self.process = value.parse().ok()?,
            "TracerPid" => self.tracer = value.parse().ok()?,
            "NSpid" => self.namespace_ids = numbers(value)?,
            "NSpgid" => self.group_ids = numbers(value)?,
            "NSsid" => self.session_ids = numbers(value)?,
            "Umask" => self.umask = u32::from_str_radix(value, 8).ok()?,
            "Uid" => self.uids = numbers(value)?.try_into().ok()?,
            "Gid" => self.gids = numbers(value)?.try_into().ok()?,
            "Groups" => self.groups = numbers(value)?,
            "CapInh" => self.capabilities[0] = hex()?,
            "CapPrm" => self.capabilities[1] = hex()?,
            "CapEff" => self.capabilities[2] = hex()?,
            "CapBnd" => self.capabilities[3] = hex()?,
            "CapAmb" => self.capabilities[4] = hex()?,
            "NoNewPrivs" => self.no_new_privileges = value != "0",
            "Seccomp" => self.seccomp = value.parse().ok()?,
            "Seccomp_filters" => self.seccomp_filters = value.parse().ok()?,
            "SigPnd" | "ShdPnd" => self.signals_pending |= hex()?,
            "SigBlk" => self.signals_blocked = hex()?,
            "SigIgn" => self.signals_ignored = hex()?,
            "SigCgt" => self.signals_caught = hex()?,
            "THP_enabled" => self.is_thp_disabled = value == "0",
            "Cpus_allowed" => {
                let words: Option<Vec<u32>> =
                    value.rsplit(',').map(|word| u32::from_str_radix(word, 16).ok()).collect();
                self.cpus = words?;
            }
            "x86_Thread_features" => self.has_shadow_stack = value.split(' ').any(|feature| feature == "shstk"),
            "Speculation_Store_Bypass" => self.store_bypass = parse_disabled_speculation(value),
            "SpeculationIndirectBranch" => self.indirect_branch = parse_disabled_speculation(value),
            "voluntary_ctxt_switches" => self.voluntary_switches = value.parse().ok()?,
            "VmLck" => self.locked_bytes = bytes()?,
            "VmRSS" => self.resident_bytes = bytes()?,
            "RssAnon" | "VmSwap" => self.anonymous_bytes += bytes()?,
            "RssFile" => self.file_bytes = bytes()?,
            _ => {}
        }
        Some(())
    }
}

/// Parses `Speculation_Store_Bypass` or `SpeculationIndirectBranch` (the kernel's `spec_ctrl.rst`). Returns 0 if the thread
/// has not disabled the speculation. That includes PR_SPEC_DISABLE_NOEXEC, which is shown like a CPU without a mitigation.
fn parse_disabled_speculation(value: &str) -> u32 {
    match value {
        "thread mitigated" | "conditional disabled" => PR_SPEC_DISABLE,
        "thread force mitigated" | "conditional force disabled" => PR_SPEC_FORCE_DISABLE,
        _ => 0,
    }
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_of_this_process_is_read() {
        let status = ProcStatus::read(std::process::id() as i32).unwrap();
        assert_eq!(status.process, std::process::id() as i32);
        assert_eq!(status.uids[0], rustix::process::getuid().as_raw());
        assert!(status.resident_bytes > 0 && status.anonymous_bytes > 0 && status.file_bytes > 0);
    }

    #[test]
    fn a_reaped_process_is_not_malformed() {
        let status = ProcStatus::parse("Name:\tsh\nState:\tX (dead)\nTgid:\t0\nPid:\t0\nNSpid:\t0\n").unwrap();
        assert_eq!((status.process, &*status.state), (0, "X"));
        assert!(ProcStatus::parse("Name:\tsh\n").is_none());
        let mut process = std::process::Command::new("true").spawn().unwrap();
        let pid = process.id().cast_signed();
        process.wait().unwrap();
        assert_eq!(ProcStatus::read(pid).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nested_ids_and_signal_sets_are_parsed() {
        let status = ProcStatus::parse(
            "Name:\tx: y\nState:\tS (sleeping)\nTgid:\t9\nNSpid:\t9\t2\nNSpgid:\t8\t1\nNSsid:\t7\t1\nCapBnd:\tff\nUmask:\t0022\nTHP_enabled:\t0\nCpus_allowed:\t1,80000000\nx86_Thread_features:\tshstk wrss \nvoluntary_ctxt_switches:\t7\n",
        );
        let status = status.unwrap();
        assert_eq!((status.namespace_ids, status.capabilities[3], status.umask), (vec![9, 2], 0xff, 0o22));
        assert_eq!(status.group_ids, [8, 1]);
        assert_eq!(status.session_ids, [7, 1]);
        assert_eq!(status.cpus, [0x8000_0000, 1]);
        assert_eq!(format_cpu_list(&status.cpus), "31-32");
        assert_eq!(
            (format_cpu_list(&[0b1011]), format_cpu_list(&[u32::MAX]), format_cpu_list(&[])),
            ("0-1,3".into(), "0-31".into(), String::new())
        );
        assert!(status.has_shadow_stack && status.is_thp_disabled && status.voluntary_switches == 7);
    }

    #[test]
    fn disabled_speculation_is_parsed() {
        let modes = |store_bypass: &str, indirect_branch: &str| {
            let text = format!(
                "State:\tS\nSpeculation_Store_Bypass:\t{store_bypass}\nSpeculationIndirectBranch:\t{indirect_branch}\n"
            );
            let status = ProcStatus::parse(&text).unwrap();
            (status.store_bypass, status.indirect_branch)
        };
        assert_eq!(modes("thread mitigated", "conditional force disabled"), (PR_SPEC_DISABLE, PR_SPEC_FORCE_DISABLE));
        assert_eq!(modes("thread force mitigated", "conditional disabled"), (PR_SPEC_FORCE_DISABLE, PR_SPEC_DISABLE));
        assert_eq!(modes("thread vulnerable", "conditional enabled"), (0, 0));
        assert_eq!(modes("globally mitigated", "always disabled"), (0, 0));
        assert_eq!(modes("not vulnerable", "not affected"), (0, 0));
    }
}
