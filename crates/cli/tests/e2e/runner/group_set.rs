//! `GroupSet`: a control group with the same name in every hierarchy that can limit, freeze or find processes.
//! ```text
//! BASE/farfork-tests-PID-START                       limits of the run
//! BASE/farfork-tests-PID-START/w1                    below it: groups of the nodes that worker 1 starts
//! BASE/farfork-tests-PID-START/w1/farfork-daemon     the worker, its parents and commands
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::cgroup::hierarchy::{self, CgroupVersion, DAEMON_LEAF, Hierarchy};
use farfork_sys::cgroup::{self, freezer};
use farfork_sys::pidfd;
use rustix::io::Errno;
use rustix::process::Signal;

use super::{identity, run_directory};
use crate::harness::leftovers;

/// The controllers that limit a run.
const LIMITING: [&str; 2] = ["memory", "pids"];

/// The controllers that the runner needs. It does not use a version 1 hierarchy without any of them.
const USEFUL: [&str; 3] = ["memory", "pids", "freezer"];

/// With RT_GROUP_SCHED, a new group of this controller refuses real-time threads. Tests and nodes need such threads.
const HARMFUL: &str = "cpu";

const ADVICE: &str = "the tests need control groups that root can write: mount cgroup2 at /sys/fs/cgroup";

/// The files with the limit on processes, and with the limit on memory in bytes of either version.
pub(super) const PIDS_FILES: [&str; 1] = ["pids.max"];
pub(super) const MEMORY_FILES: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];

/// Maximum depth at which the groups of an ended run are found. Groups of login sessions are at depth 5, and containers in
/// containers have deeper ones.
const GROUP_DEPTH_MAX: usize = 64;

/// Prefix of the names of groups that tests make to freeze a single process. The pid of the worker follows.
const FREEZER_GROUP_PREFIX: &str = "farfork-test-freezer-";

/// Maximum number of processes that are killed at once. Each needs a descriptor, and a fork bomb has more processes than this
/// process may have descriptors.
const CHUNK_PROCESSES_MAX: usize = 32;

/// Interval between two rounds of kills.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// Longest wait until the last processes of a group have left it.
const REMOVE_LIMIT: Duration = Duration::from_secs(5);

/// Limits for all processes of a run together.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunLimits {
    pub(super) pids: u64,
    pub(super) memory_bytes: u64,
}

/// The processes that were in the groups when these were killed.
pub(super) struct KilledProcesses {
    /// All killed processes.
    pub(super) all: BTreeSet<i32>,
    /// The processes that have not ended in time.
    pub(super) left: BTreeSet<i32>,
}

/// One group of the set.
#[derive(Debug, Clone)]
struct Group {
    directory: PathBuf,
    version: CgroupVersion,
    controllers: Vec<String>,
}

/// The groups of a run, or of a worker.
#[derive(Debug, Clone)]
pub(super) struct GroupSet(Vec<Group>);

impl GroupSet {
    /// Requires that the machine has hierarchies for the groups. Without them, nothing would contain the tests.
    pub(super) fn require_hierarchies() -> io::Result<()> {
        if useful_hierarchies()?.is_empty() {
            let expected = USEFUL.join(", ");
            let cause = format!("no control group hierarchy is mounted, neither version 2 nor one of {expected}");
            return Err(io::Error::other(format!("{cause}; {ADVICE}")));
        }
        Ok(())
    }

    /// Makes the groups of a run.
    ///
    /// # Errors
    /// The group that cannot be made or limited, the cause, and what to do.
    pub(super) fn create(name: &str, limits: RunLimits) -> io::Result<Self> {
        let set = Self::named(name)?;
        let made = set.make(name, limits);
        made.map_err(|error| io::Error::other(format!("control groups {name}: {error}; {ADVICE}")))?;
        Ok(set)
    }

    fn make(&self, name: &str, limits: RunLimits) -> io::Result<()> {
        for group in &self.0 {
            let base = group.directory.parent().expect("the group has a parent");
            cgroup::create_path(base, Path::new(name), group.version, &group.controllers)?;
        }
        let write = |file: &str, value: u64| self.write_where_present(file, &value.to_string());
        PIDS_FILES.iter().try_for_each(|file| write(file, limits.pids))?;
        MEMORY_FILES.iter().try_for_each(|file| write(file, limits.memory_bytes))
    }

    /// Returns the names of the limits that no group of the set has: a container may hide a controller, or keep it for itself.
    pub(super) fn missing_limits(&self) -> Vec<&'static str> {
        let limits = [("pids", &PIDS_FILES[..]), ("memory", &MEMORY_FILES)];
        let has_file = |file: &&str| self.0.iter().any(|group| group.directory.join(file).exists());
        limits.into_iter().filter(|(_, files)| !files.iter().any(has_file)).map(|(name, _)| name).collect()
    }

    /// Returns the groups that a run with this name has, or would have.
    pub(super) fn named(name: &str) -> io::Result<Self> {
        let groups = useful_hierarchies()?.into_iter().map(|hierarchy| {
            let base = hierarchy.creation_base(&LIMITING);
            Group { directory: base.directory.join(name), version: hierarchy.version, controllers: base.controllers }
        });
        Ok(Self(groups.collect()))
    }

    /// Returns the groups of a run that has ended, wherever they are. A run that was started in another login session has
    /// them below the group of the session.
    pub(super) fn find(name: &str) -> io::Result<Self> {
        let mut found = Vec::new();
        for Hierarchy { version, top, controllers, .. } in useful_hierarchies()? {
            let mut directories = Vec::new();
            leftovers::find_groups(&top, name, GROUP_DEPTH_MAX, &mut directories);
            // A user may have got a part of the hierarchy, with the right to make groups of any name.
            directories.retain(|directory| identity::is_own_entry(directory));
            found.extend(directories.into_iter().map(|directory| Group {
                directory,
                version,
                controllers: controllers.clone(),
            }));
        }
        Ok(Self(found))
    }

    /// Returns the smallest limit in one of these files of the groups that contain the groups of a run; `None` without a limit.
    pub(super) fn limit_above(files: &[&str]) -> io::Result<Option<u64>> {
        let mut limits = Vec::new();
        for hierarchy in useful_hierarchies()? {
            let base = hierarchy.creation_base(&LIMITING).directory;
            for group in base.ancestors().take_while(|group| group.starts_with(&hierarchy.top)) {
                // Reading fails if the group has no such file, and if its text is `max`.
                limits.extend(files.iter().filter_map(|file| cgroup::read_number(group, file).ok()));
            }
        }
        Ok(limits.into_iter().min())
    }

    /// Returns the parent groups of all runs.
    pub(super) fn bases() -> io::Result<Vec<PathBuf>> {
        Ok(useful_hierarchies()?.iter().map(|hierarchy| hierarchy.creation_base(&LIMITING).directory).collect())
    }

    /// Makes a group below each group, with a leaf group for processes. A version 2 group cannot have both processes
    /// and controllers for subgroups. Nodes recognize the leaf by its name, and make their groups next to it.
    pub(super) fn create_below(&self, name: &str) -> io::Result<Self> {
        let below = |group: &Group| {
            cgroup::create_path(&group.directory, Path::new(name), group.version, &group.controllers)?;
            let directory = group.directory.join(name);
            cgroup::create(&directory.join(DAEMON_LEAF))?;
            Ok(Group { directory, ..group.clone() })
        };
        Ok(Self(self.0.iter().map(below).collect::<io::Result<_>>()?))
    }

    /// Locks the groups, so that runs in other pid and mount namespaces recognize that this run has not ended.
    pub(super) fn lock(&self) -> io::Result<Vec<File>> {
        self.0.iter().map(|group| run_directory::lock(&group.directory)).collect()
    }

    /// Returns the leaf groups for processes.
    pub(super) fn leaves(&self) -> Vec<PathBuf> {
        self.0.iter().map(|group| group.directory.join(DAEMON_LEAF)).collect()
    }

    /// Returns the processes that are in the leaf groups of all hierarchies. Processes of nodes are in other groups in
    /// at least one.
    pub(super) fn leaf_members(&self) -> BTreeSet<i32> {
        let leaves = self.leaves().into_iter();
        let members = leaves.map(|leaf| cgroup::processes(&leaf).unwrap_or_default().into_iter().collect());
        members.reduce(|all: BTreeSet<i32>, members| &all & &members).unwrap_or_default()
    }

    /// Returns all processes in the groups and their subgroups.
    ///
    /// # Errors
    /// As reading the groups: EMFILE without a free descriptor.
    pub(super) fn members(&self) -> io::Result<BTreeSet<i32>> {
        let mut members = BTreeSet::new();
        for group in &self.0 {
            for group in cgroup::subtree(&group.directory)? {
                match cgroup::processes(&group) {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::MFILE) => return Err(error),
                    // A group that was removed has no processes.
                    found => members.extend(found.unwrap_or_default()),
                }
            }
        }
        Ok(members)
    }

    /// Kills all processes in the groups and their subgroups until there are none, or until `limit` has passed.
    pub(super) fn kill(&self, limit: Duration) -> KilledProcesses {
        // A process may fork before SIGKILL takes effect, so forks are disabled first.
        let _ = self.write_where_present("pids.max", "0");
        let freezers = freezers();
        let mut all: BTreeSet<i32> = BTreeSet::new();
        let deadline = Instant::now() + limit;
        loop {
            let members = self.members();
            let has_ended = members.as_ref().is_ok_and(BTreeSet::is_empty);
            let members = members.unwrap_or_default();
            if has_ended || Instant::now() >= deadline {
                return KilledProcesses { all, left: members };
            }
            all.extend(&members);
            let _ = self.write_where_present("cgroup.kill", "1");
            for pids in Vec::from_iter(members).chunks(CHUNK_PROCESSES_MAX) {
                self.kill_members(pids, &freezers);
            }
            self.thaw();
            thread::sleep(KILL_INTERVAL);
        }
    }

    /// Kills those of the processes that are still in the groups.
    fn kill_members(&self, pids: &[i32], freezers: &[Hierarchy]) {
        let open = |pid: &i32| Some((*pid, pidfd::open(*pid).ok()?));
        let processes: Vec<(i32, OwnedFd)> = pids.iter().filter_map(open).collect();
        // The members are listed again after their pidfds were opened: a reused process id would not be in both lists.
        let members = self.members().unwrap_or_default();
        for (pid, process) in processes.iter().filter(|(pid, _)| members.contains(pid)) {
            let _ = pidfd::send_signal(process, Signal::KILL.as_raw());
            freezers.iter().for_each(|freezer| thaw_group_of(*pid, freezer));
        }
    }

    /// Thaws the groups and their subgroups. A frozen group also freezes the processes in the groups below it.
    fn thaw(&self) {
        for Group { directory, version, .. } in &self.0 {
            let groups = cgroup::subtree(directory).unwrap_or_default();
            for frozen in groups.iter().filter(|group| freezer::is_frozen(group, *version)) {
                let _ = freezer::thaw(frozen, *version);
            }
        }
    }

    /// Removes the groups and their subgroups.
    pub(super) fn remove(&self) -> io::Result<()> {
        for group in &self.0 {
            for below in cgroup::subtree(&group.directory)? {
                cgroup::remove(&below, REMOVE_LIMIT)
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", below.display())))?;
            }
        }
        Ok(())
    }

    /// Returns whether one of the groups exists.
    pub(super) fn exists(&self) -> bool {
        self.0.iter().any(|group| group.directory.exists())
    }

    fn write_where_present(&self, file: &str, value: &str) -> io::Result<()> {
        let present = self.0.iter().filter(|group| group.directory.join(file).exists());
        present.map(|group| cgroup::write(&group.directory, file, value)).fold(Ok(()), io::Result::and)
    }
}

fn useful_hierarchies() -> io::Result<Vec<Hierarchy>> {
    let has = |hierarchy: &Hierarchy, name: &str| hierarchy.controllers.iter().any(|controller| controller == name);
    let is_useful = |hierarchy: &Hierarchy| {
        let is_useful_v1 = USEFUL.iter().any(|name| has(hierarchy, name)) && !has(hierarchy, HARMFUL);
        hierarchy.version == CgroupVersion::V2 || is_useful_v1
    };
    Ok(hierarchy::mounted_hierarchies()?.into_iter().filter(is_useful).collect())
}

/// Returns the hierarchies with a freezer. SIGKILL does not end a process that a version 1 freezer has frozen.
fn freezers() -> Vec<Hierarchy> {
    let can_freeze = |hierarchy: &Hierarchy| {
        hierarchy.version == CgroupVersion::V2 || hierarchy.controllers.iter().any(|controller| controller == "freezer")
    };
    useful_hierarchies().unwrap_or_default().into_iter().filter(can_freeze).collect()
}

/// A group in which a test freezes a single process.
pub(crate) struct FreezerGroup {
    /// The group. The test makes it.
    pub(crate) directory: PathBuf,
    /// The group of this process, and of the processes that it starts.
    pub(crate) home: PathBuf,
    pub(crate) version: CgroupVersion,
}

impl FreezerGroup {
    /// Chooses the group of this worker; `None` if no mounted hierarchy can freeze processes. The group is next to the worker's
    /// own group, so it is removed with the groups of the run.
    pub(crate) fn of_worker() -> Option<Self> {
        // Version 1 is the stricter test: SIGKILL does not end a process that it has frozen.
        let freezer = freezers().into_iter().min_by_key(|hierarchy| hierarchy.version == CgroupVersion::V2)?;
        let name = format!("{FREEZER_GROUP_PREFIX}{}", std::process::id());
        let directory = freezer.creation_base(&[]).directory.join(name);
        Some(Self { directory, home: freezer.own, version: freezer.version })
    }
}

/// Thaws the group of a process, wherever the group is.
fn thaw_group_of(pid: i32, freezer: &Hierarchy) {
    let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        (controllers == freezer.controllers.join(",")).then_some(path)
    });
    let group = path.map(|path| freezer.top.join(path.trim_start_matches('/')));
    if let Some(group) = group.filter(|group| freezer::is_frozen(group, freezer.version)) {
        let _ = freezer::thaw(&group, freezer.version);
    }
}
