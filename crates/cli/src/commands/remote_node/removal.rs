//! Removes the node of this machine: its daemon, unit, programs, keys, logs and directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use farfork_node::options::STATE_DIR;
use farfork_sys::cgroup::daemon_leaf::is_systemd_running;
use farfork_trust::TrustDirectory;
use farfork_volume::process::VolumeStore;
use serde::{Deserialize, Serialize};

use super::settings::{NodeSettings, PROGRAMS};
use super::{daemon, systemd};

/// The removed objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovalReport {
    /// Names of files, directories and processes.
    pub(crate) removed: Vec<String>,
}

impl RemovalReport {
    /// Removes a file or a directory with its contents.
    fn remove_path(&mut self, path: &Path) -> anyhow::Result<()> {
        let remove = || match fs::symlink_metadata(path)?.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
        match remove() {
            Ok(()) => self.removed.push(path.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", path.display())),
        }
        Ok(())
    }
}

/// Stops the daemon, which kills its children and drops its seeds, and removes everything. Removes the keys last but for the
/// programs, so that a removal that failed can be repeated.
pub(super) fn remove(settings: &NodeSettings, with_volumes: bool) -> anyhow::Result<RemovalReport> {
    let state = Path::new(STATE_DIR).join(settings.name.as_str());
    refuse_volumes(&VolumeStore::new(&state.join("volumes")), with_volumes)?;
    let mut report = RemovalReport::default();
    if daemon::find(settings).is_some() {
        report.removed.push(format!("daemon of node {}", settings.name));
    } else if settings.run_dir.join("children").exists() && TrustDirectory::new(&settings.trust).has_identity() {
        // The daemon was killed. The next one takes over its pager and its children, and ends them.
        daemon::start_detached(settings, &settings.command_line())?;
    }
    daemon::stop(settings)?;
    if is_systemd_running() && systemd::remove_unit()? {
        report.removed.push("unit farfork.service".to_owned());
    }
    for path in [&settings.run_dir, &state, &settings.log, &settings.trust] {
        report.remove_path(path)?;
    }
    // Another node of the machine may have its directory there, too.
    let _ = fs::remove_dir(STATE_DIR);
    let programs = PROGRAMS.iter().map(|program| settings.program_dir.join(program));
    let staged = PROGRAMS.iter().map(|program| staged_path(&settings.program_dir.join(program)));
    programs.chain(staged).try_for_each(|path| report.remove_path(&path))?;
    Ok(report)
}

/// The path of a program that is copied, but not installed yet.
pub(crate) fn staged_path(program: &Path) -> PathBuf {
    program.with_extension("staged")
}

/// Refuses a node with a mounted volume, and one with replicas unless they are to be removed.
fn refuse_volumes(store: &VolumeStore, with_volumes: bool) -> anyhow::Result<()> {
    let path = store.path().display();
    let mounted = store.mounted_volumes().with_context(|| path.to_string())?;
    if !mounted.is_empty() {
        bail!("volumes are mounted: {}; unmount them with umount", mounted.join(", "));
    }
    let volumes = store.volume_names().with_context(|| path.to_string())?;
    if !with_volumes && !volumes.is_empty() {
        bail!("{path} has replicas of volumes: {}; remove them, too, with --remove-volumes", volumes.join(", "));
    }
    Ok(())
}
