//! Reads the files of `/proc/PID` by the listing of that directory, so that files of later kernels are included.

use std::fs;
use std::path::Path;

use super::identifiers::{IdentifierMap, OUTSIDE};
use super::{ObservationBuilder, ObserveError, bytes_text, error_name};

/// Files and directories that are not read here, with the reason.
const FILES_SKIPPED: &[(&str, &str)] = &[
    ("task", "`threads` reads it"),
    ("fd", "`descriptors` reads it"),
    ("fdinfo", "`descriptors` reads it"),
    ("smaps", "`mappings` reads it"),
    ("maps", "also in `smaps`"),
    ("map_files", "also in `smaps`"),
    ("numa_maps", "`mappings` reads it"),
    ("net", "describes the network, not the process"),
    ("mounts", "also in `mountinfo`"),
    ("mountstats", "also in `mountinfo`"),
    ("mem", "contents of memory, which are fetched when they are touched"),
    ("pagemap", "present pages, which change as they are touched"),
    ("clear_refs", "write-only"),
    ("smaps_rollup", "present pages"),
    ("statm", "present pages"),
    ("ksm_merging_pages", "present pages"),
    ("ksm_stat", "present pages"),
    ("io", "a counter of past activity"),
    ("sched", "counters of past activity; `threads` reads the settings"),
    ("schedstat", "a counter of past activity"),
    ("stack", "where the thread waits now"),
    ("wchan", "where the thread waits now"),
    ("syscall", "where the thread waits now"),
    ("oom_score", "it follows from memory in use and `oom_score_adj`"),
    ("oom_adj", "also in `oom_score_adj`"),
    ("latency", "a counter of past activity"),
    ("patch_state", "a live patch of the kernel"),
    ("cpu_resctrl_groups", "state of the machine"),
    ("exe", "in `LINKS`"),
];

/// Files of a thread that describe its process, and are long.
const THREAD_FILES_SKIPPED: [&str; 5] = ["mountinfo", "environ", "auxv", "cmdline", "limits"];

/// Links, whose targets are compared.
const LINKS: [&str; 3] = ["cwd", "exe", "root"];

/// Longest file whose contents are compared, in bytes. Of a longer file only the length is compared. Environment and mounts
/// may be long.
const FILE_BYTES_MAX: usize = 4 << 20;

/// Fields of `stat`, starting with the third (proc_pid_stat(5)).
const STAT: [&str; 50] = [
    "state",
    "ppid",
    "pgrp",
    "session",
    "tty_nr",
    "tpgid",
    "flags",
    "minflt",
    "cminflt",
    "majflt",
    "cmajflt",
    "utime",
    "stime",
    "cutime",
    "cstime",
    "priority",
    "nice",
    "num_threads",
    "itrealvalue",
    "starttime",
    "vsize",
    "rss",
    "rsslim",
    "startcode",
    "endcode",
    "startstack",
    "kstkesp",
    "kstkeip",
    "signal",
    "blocked",
    "sigignore",
    "sigcatch",
    "wchan",
    "nswap",
    "cnswap",
    "exit_signal",
    "processor",
    "rt_priority",
    "policy",
    "delayacct_blkio_ticks",
    "guest_time",
    "cguest_time",
    "start_data",
    "end_data",
    "start_brk",
    "arg_start",
    "arg_end",
    "env_start",
    "env_end",
    "exit_code",
];

/// The fields that are process ids.
const STAT_IDS: [&str; 4] = ["ppid", "pgrp", "session", "tpgid"];

/// Lines of `status` with process ids.
const STATUS_IDS: [&str; 8] = ["Tgid", "Pid", "PPid", "TracerPid", "NStgid", "NSpid", "NSpgid", "NSsid"];

/// Ids in `stat` and `status` that every process has. The kernel shows 0 if the process with that id is in a pid namespace
/// that the reader does not see (pid_namespaces(7)). An example is the session of a process that was started from outside a
/// container.
const IDS_ALWAYS_SET: [&str; 7] = ["ppid", "pgrp", "session", "tpgid", "PPid", "NSpgid", "NSsid"];

/// Reads all files of a process.
pub(super) fn read_process_files(pid: i32, fields: &mut ObservationBuilder) -> Result<(), ObserveError> {
    read_folder(&format!("/proc/{pid}"), "", fields)?;
    for folder in ["ns", "attr"] {
        read_folder(&format!("/proc/{pid}/{folder}"), &format!("{folder}/"), fields)?;
    }
    for link in LINKS {
        read_link(&format!("/proc/{pid}/{link}"), link, fields);
    }
    Ok(())
}

/// Reads the files in a directory of a process or thread, except those in the tables of skipped files.
pub(super) fn read_folder(folder: &str, prefix: &str, fields: &mut ObservationBuilder) -> Result<(), ObserveError> {
    let entries = fs::read_dir(folder).map_err(ObserveError::read(folder))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_of_process = prefix.starts_with("thread/") && THREAD_FILES_SKIPPED.contains(&&*name);
        let is_left_out =
            is_of_process || FILES_SKIPPED.iter().any(|(unread, _)| *unread == name) || LINKS.contains(&&*name);
        match entry.file_type() {
            Ok(kind) if kind.is_symlink() && !is_left_out => {
                read_link_at(&entry.path(), &format!("{prefix}{name}"), fields)
            }
            Ok(kind) if kind.is_file() && !is_left_out => read_file(&entry.path(), &format!("{prefix}{name}"), fields),
            _ => {}
        }
    }
    Ok(())
}

fn read_link(path: &str, field: &str, fields: &mut ObservationBuilder) {
    read_link_at(Path::new(path), field, fields);
}

fn read_link_at(path: &Path, field: &str, fields: &mut ObservationBuilder) {
    fields.put_result(field, fs::read_link(path).map(|target| target.to_string_lossy().into_owned()));
}

fn read_file(path: &Path, field: &str, fields: &mut ObservationBuilder) {
    let bytes = match fs::read(path) {
        Ok(bytes) if bytes.len() <= FILE_BYTES_MAX => bytes,
        Ok(bytes) => return fields.put(field, format!("{} bytes", bytes.len())),
        Err(error) => return fields.put(field, error_name(&error)),
    };
    let text = String::from_utf8_lossy(&bytes).replace('\0', "\n");
    match field.rsplit('/').next().unwrap_or_default() {
        "status" => read_status(&text, field, fields),
        "stat" => read_stat(&text, field, fields),
        "limits" => read_limits(&text, field, fields),
        "timers" => read_timers(&text, field, fields),
        "children" => read_children(&text, field, fields),
        "auxv" => read_auxiliary_vector(&bytes, field, fields),
        _ => fields.put(field, text.trim_end()),
    }
}

fn read_status(text: &str, field: &str, fields: &mut ObservationBuilder) {
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let first = value.split_whitespace().next().unwrap_or_default();
        let is_id = STATUS_IDS.contains(&name);
        let value = if is_id { translate_line_ids(name, first, &fields.names) } else { value.trim().to_owned() };
        fields.put(&format!("{field}/{name}"), value);
    }
}

fn read_stat(text: &str, field: &str, fields: &mut ObservationBuilder) {
    let values = text.rsplit_once(") ").map_or("", |(_, values)| values);
    for (name, value) in STAT.iter().zip(values.split_whitespace()) {
        let is_id = STAT_IDS.contains(name);
        let value = if is_id { translate_line_ids(name, value, &fields.names) } else { value.to_owned() };
        fields.put(&format!("{field}/{name}"), value);
    }
}

fn translate_line_ids(name: &str, id: &str, names: &IdentifierMap) -> String {
    if id == "0" && IDS_ALWAYS_SET.contains(&name) { OUTSIDE.to_owned() } else { names.translate_text(id) }
}

/// Reads `limits`. Columns: name, soft limit, hard limit, unit; separated by two spaces or more.
fn read_limits(text: &str, field: &str, fields: &mut ObservationBuilder) {
    for line in text.lines().skip(1) {
        let (name, value) = line.split_once("  ").unwrap_or((line, ""));
        fields.put(&format!("{field}/{name}"), value.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

/// Reads `timers`. A line such as `notify: signal/tid.4711` has the id of a thread or process on this machine.
fn read_timers(text: &str, field: &str, fields: &mut ObservationBuilder) {
    let named = |line: &str| match line.rsplit_once('.') {
        Some((before, id)) if line.starts_with("notify:") => format!("{before}.{}", fields.names.translate_text(id)),
        _ => line.to_owned(),
    };
    let text = text.lines().map(named).collect::<Vec<_>>().join("; ");
    fields.put(field, text);
}

fn read_children(text: &str, field: &str, fields: &mut ObservationBuilder) {
    // Templates of seeds are not processes of the tree.
    let names = text.split_whitespace().map(|id| fields.names.translate_text(id));
    let mut ids: Vec<String> = names.filter(|name| name != OUTSIDE).collect();
    ids.sort();
    fields.put(field, ids.join(" "));
}

fn read_auxiliary_vector(bytes: &[u8], field: &str, fields: &mut ObservationBuilder) {
    for pair in bytes.chunks_exact(16) {
        fields.put(&format!("{field}/{}", bytes_text(&pair[..8])), bytes_text(&pair[8..]));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Observation;
    use super::*;

    /// In a container whose init was started from outside, the session is not visible. A child has its own session, and "no
    /// terminal" stays 0.
    #[test]
    fn an_invisible_session_is_reported_as_outside() {
        let (observation, prefix, names) = (Observation::new(), "7".to_owned(), IdentifierMap::default());
        let mut fields = ObservationBuilder { observation, prefix, names, epoll_registrations: Vec::new() };
        read_stat("7 (sh) S 0 0 0 0 -1 0", "stat", &mut fields);
        read_status("PPid:\t0\nTracerPid:\t0\nNSpgid:\t0\nNSsid:\t0\n", "status", &mut fields);
        for never_none in ["stat/ppid", "stat/pgrp", "stat/session", "status/PPid", "status/NSpgid", "status/NSsid"] {
            assert_eq!(fields.observation[&format!("7/{never_none}")], OUTSIDE, "{never_none}");
        }
        assert_eq!(fields.observation["7/status/TracerPid"], "0");
    }
}
