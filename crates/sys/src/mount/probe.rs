//! Finds the mounts whose file system does not answer: a stopped FUSE server, an unreachable NFS server.
//!
//! A call to such a file system may never return, and its thread may not react to SIGKILL. So another process makes the call
//! (stat(1) with `--file-system`), and the caller waits a limited time for its end. `farfork_container` omits such mounts. A
//! probe without an answer is moved to the topmost control groups, so that the end of a node does not wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cgroup::{self, hierarchy};
use crate::pidfd;

/// Types of file systems that another machine or a user process serves. [`is_served`] recognizes FUSE types by their prefix.
const SERVED_FILESYSTEMS: [&str; 17] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "smb3",
    "smbfs",
    "virtiofs",
];

/// Type of the file system of a mounted volume.
pub const VOLUME_FILESYSTEM: &str = "fuse.farfork";
/// Prefix of the source of a mounted volume. The name of the volume follows.
pub const VOLUME_SOURCE_PREFIX: &str = "farfork:";

/// Longest wait for an answer. Intercontinental networks answer sooner unless they lose packets.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// Whether calls to a file system of this type wait for another process or another machine.
pub fn is_served(filesystem: &str) -> bool {
    let is_fuse = matches!(filesystem, "fuse" | "fuseblk") || filesystem.starts_with("fuse.");
    is_fuse || SERVED_FILESYSTEMS.contains(&filesystem)
}

/// A mount to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbedMount {
    /// Id of the mount.
    pub id: u32,
    /// Its mount point.
    pub point: PathBuf,
}

/// The probes without an answer: at most one process for each mount.
#[derive(Debug, Default)]
pub struct MountProbes {
    pending: Mutex<BTreeMap<u32, Child>>,
    /// Held by the thread that probes.
    probing: Mutex<()>,
}

impl MountProbes {
    /// Probes `mounts`, and returns the ids of the mounts that do not answer. Waits at most half a second for new mounts,
    /// and not at all for mounts that have not answered an earlier probe. Ends the probes of mounts that are not in the
    /// list.
    pub fn find_unresponsive(&self, mounts: &[ProbedMount]) -> BTreeSet<u32> {
        let _one_at_a_time = self.probing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.unresponsive();
        let new = mounts.iter().filter(|mount| !known.contains(&mount.id));
        let started: Vec<(u32, Child)> = new.filter_map(|mount| Some((mount.id, start_probe(mount).ok()?))).collect();
        let deadline = Instant::now() + ANSWER_LIMIT;
        let unanswered: Vec<(u32, Child)> =
            started.into_iter().filter_map(|(id, probe)| Some((id, wait_answer(probe, deadline)?))).collect();
        unanswered.iter().for_each(|(_, probe)| leave_groups(probe));
        let mut pending = self.lock();
        pending.extend(unanswered);
        let (kept, gone) =
            std::mem::take(&mut *pending).into_iter().partition(|(id, _)| mounts.iter().any(|mount| mount.id == *id));
        *pending = kept;
        drop(pending);
        BTreeMap::into_values(gone).for_each(end_probe);
        self.unresponsive()
    }

    /// Returns the ids of mounts that have not answered their last probe yet. Never waits.
    pub fn unresponsive(&self) -> BTreeSet<u32> {
        let mut pending = self.lock();
        pending.retain(|_, probe| matches!(probe.try_wait(), Ok(None)));
        pending.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Child>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MountProbes {
    fn drop(&mut self) {
        std::mem::take(&mut *self.lock()).into_values().for_each(end_probe);
    }
}

fn start_probe(mount: &ProbedMount) -> io::Result<Child> {
    let mut command = Command::new("stat");
    command.args(["--file-system", "--"]).arg(&mount.point).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Waits until `deadline` for the end of a probe. Returns the probe if it has not ended. An error of statfs(2) counts as an
/// answer.
fn wait_answer(mut probe: Child, deadline: Instant) -> Option<Child> {
    let has_ended = |process: &OwnedFd| pidfd::wait_exit(process, deadline.saturating_duration_since(Instant::now()));
    match pidfd::open(probe.id().cast_signed()).and_then(|process| has_ended(&process)) {
        Ok(false) => Some(probe),
        _ => {
            let _ = probe.wait();
            None
        }
    }
}

/// Moves a probe out of the control groups of the process that started it, if that is permitted.
fn leave_groups(probe: &Child) {
    for hierarchy in hierarchy::mounted_hierarchies().unwrap_or_default() {
        let _ = cgroup::move_process(&hierarchy.top, probe.id().cast_signed());
    }
}

/// Kills a probe without waiting for its end: a process that waits for a FUSE server may not react to SIGKILL. The probe may
/// stay a zombie until this process ends.
fn end_probe(mut probe: Child) {
    let _ = probe.kill();
    let _ = probe.try_wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_fuse_file_systems_are_recognized_by_type() {
        for served in ["fuse", "fuse.sshfs", VOLUME_FILESYSTEM, "fuseblk", "nfs4", "9p"] {
            assert!(is_served(served), "{served}");
        }
        for local in ["ext4", "tmpfs", "fusectl", "overlay", "proc"] {
            assert!(!is_served(local), "{local}");
        }
    }

    fn wait_until_answered(probes: &MountProbes) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !probes.unresponsive().is_empty() {
            assert!(Instant::now() < deadline, "no answer: {:?}", probes.unresponsive());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_local_mount_and_a_missing_one_answer() {
        let probes = MountProbes::default();
        let mounts = [(1, "/"), (2, "/nowhere")].map(|(id, point)| ProbedMount { id, point: point.into() });
        // On a busy machine, the probes may answer after the limit. Then the mounts are probed again.
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let began = Instant::now();
            let unresponsive = probes.find_unresponsive(&mounts);
            if unresponsive.is_empty() {
                break;
            }
            let waited = began.elapsed();
            assert!(waited >= ANSWER_LIMIT, "{unresponsive:?} did not answer within {waited:?}");
            assert!(Instant::now() < deadline, "no answer: {unresponsive:?}");
            wait_until_answered(&probes);
        }
        assert_eq!(probes.unresponsive(), BTreeSet::new());
    }

    #[test]
    fn a_probe_without_an_answer_is_pending_until_it_ends() {
        let probes = MountProbes::default();
        let mount = ProbedMount { id: 7, point: "/".into() };
        let silent = || Command::new("sleep").arg("1000").spawn().expect("sleep");
        let probe = wait_answer(silent(), Instant::now() + Duration::from_millis(1)).expect("it has not ended");
        probes.lock().insert(mount.id, probe);
        assert_eq!(probes.find_unresponsive(std::slice::from_ref(&mount)), BTreeSet::from([7]));
        probes.lock().get_mut(&7).expect("it is pending").kill().expect("a child of ours");
        wait_until_answered(&probes);
        probes.lock().insert(7, silent());
        assert_eq!(probes.find_unresponsive(&[]), BTreeSet::new(), "the probe of an unmounted mount is dropped");
    }
}
