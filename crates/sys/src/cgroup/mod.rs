//! Control groups: directories of a hierarchy, the processes in them, and the values in their files. The caller chooses
//! groups and limits.

pub mod daemon_leaf;
pub mod freezer;
pub mod hierarchy;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::hierarchy::CgroupVersion;

/// Pause between two attempts to remove a group whose last processes have not ended yet, in milliseconds.
const REMOVE_RETRY_MS: u64 = 2;

/// Maximum number of attempts to create a path. A node that exits may remove an empty group of a shared path before another
/// node creates a group in it.
const CREATE_TRIES_MAX: u32 = 10;

/// Creates the nested groups of the relative path `name` below `base`; existing groups are kept. In version 2, each group of
/// the path enables `controllers` for the groups below it.
///
/// # Errors
/// As mkdir(2). If a controller cannot be enabled, no error is returned, but the groups lack the controller's files.
pub fn create_path(base: &Path, name: &Path, version: CgroupVersion, controllers: &[String]) -> io::Result<()> {
    for _ in 1..CREATE_TRIES_MAX {
        match create_path_once(base, name, version, controllers) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return outcome,
        }
    }
    create_path_once(base, name, version, controllers)
}

fn create_path_once(base: &Path, name: &Path, version: CgroupVersion, controllers: &[String]) -> io::Result<()> {
    let mut directory = base.to_owned();
    for part in name {
        directory.push(part);
        create(&directory)?;
        if version == CgroupVersion::V2 {
            let _ = enable_for_children(&directory, controllers);
        }
    }
    Ok(())
}

/// Creates one group, unless it exists.
///
/// # Errors
/// As mkdir(2).
pub fn create(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Lists the group and all groups below it, each before its parent.
///
/// # Errors
/// As reading directories. A group that is removed during the call is omitted.
pub fn subtree(group: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut groups = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            groups.extend(subtree(&entry.path())?);
        }
    }
    groups.push(group.to_owned());
    Ok(groups)
}

/// Opens a group's directory, to start a process in the group (version 2: CLONE_INTO_CGROUP).
///
/// # Errors
/// As open(2).
pub fn open(group: &Path) -> io::Result<File> {
    File::open(group)
}

/// Moves a process, with all its threads, into the group.
///
/// # Errors
/// ESRCH if there is no such process. EINVAL if a controller refuses the process (version 1's `cpu` refuses real-time
/// tasks). EBUSY or EOPNOTSUPP if a version 2 group may hold no processes.
pub fn move_process(group: &Path, pid: i32) -> io::Result<()> {
    write(group, "cgroup.procs", &pid.to_string())
}

/// Moves only the calling thread into a version 1 group. Threads and processes that it starts then start in the group.
///
/// # Errors
/// As [`move_process`].
pub fn move_thread(group: &Path) -> io::Result<()> {
    write(group, "tasks", "0")
}

/// Reads the processes of the group itself, without the groups below, as process ids of the caller's pid namespace.
///
/// # Errors
/// As reading `cgroup.procs`.
pub fn processes(group: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    // A process that is not visible in this pid namespace reads as 0.
    Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect())
}

/// Reads a file of the group that holds one number.
///
/// # Errors
/// As reading the file; `InvalidData` if it holds something else.
pub fn read_number(group: &Path, file: &str) -> io::Result<u64> {
    let text = fs::read_to_string(group.join(file))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads a number from a file of the group whose lines are a name and a number (`memory.events`).
///
/// # Errors
/// As reading the file; `InvalidData` if there is no such line.
pub fn read_keyed_number(group: &Path, file: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(group.join(file))?;
    let value = text.lines().find_map(|line| line.split_once(' ').filter(|(found, _)| *found == name));
    value.and_then(|(_, value)| value.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Writes a file of the group.
///
/// # Errors
/// As open(2) and write(2): ENOENT if the group lacks the controller.
pub fn write(group: &Path, file: &str, value: &str) -> io::Result<()> {
    use std::io::Write;
    // Without O_CREAT and O_TRUNC, for which the file system returns a misleading error.
    File::options().write(true).open(group.join(file))?.write_all(value.as_bytes())
}

/// Reads the controllers that a version 2 group has.
///
/// # Errors
/// As reading `cgroup.controllers`.
pub fn controllers(group: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(group.join("cgroup.controllers"))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Enables controllers of a version 2 group for the groups below it: all or, on an error, none.
///
/// # Errors
/// EBUSY if the group itself holds processes; ENOENT if it lacks a controller.
pub fn enable_for_children(group: &Path, controllers: &[String]) -> io::Result<()> {
    // The kernel would enable a controller for threads, such as `cpu`, even so. The group would become a threaded one
    // (`domain threaded` in cgroup.type), and the groups below could hold no processes.
    if !is_root(group) && holds_processes(group)? {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let words: Vec<String> = controllers.iter().map(|controller| format!("+{controller}")).collect();
    // One write(2), which the kernel applies completely or not at all.
    write(group, "cgroup.subtree_control", &words.join(" "))
}

/// Disables all controllers of a version 2 group for the groups below it.
///
/// # Errors
/// EBUSY if one of the groups below uses a controller; otherwise as open(2) and write(2).
pub fn disable_for_children(group: &Path) -> io::Result<()> {
    let enabled = fs::read_to_string(group.join("cgroup.subtree_control"))?;
    let words: Vec<String> = enabled.split_whitespace().map(|controller| format!("-{controller}")).collect();
    write(group, "cgroup.subtree_control", &words.join(" "))
}

/// Whether a version 2 group is the root of the hierarchy, which may hold processes next to groups with controllers.
fn is_root(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

/// Whether the group itself holds processes, also of other pid namespaces.
fn holds_processes(group: &Path) -> io::Result<bool> {
    fs::read(group.join("cgroup.procs")).map(|listed| !listed.is_empty())
}

/// Removes a group; waits at most `limit` until its last processes have ended. Succeeds if the group does not exist.
///
/// # Errors
/// EBUSY if after `limit` the group still has processes, or groups below it; otherwise as rmdir(2).
pub fn remove(group: &Path, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(REMOVE_RETRY_MS));
            }
            outcome => return outcome,
        }
    }
}
