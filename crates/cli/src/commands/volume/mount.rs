//! `farfork volume mount NAME DIR`: mounts a volume. A supervisor serves the mount until the volume is unmounted. The
//! supervisor is a background process, or this command with `--foreground`.
//!
//! The supervisor must run in the command's mount namespace, because the mount exists only there.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::Context as _;
use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::{GetVolumeRequest, LocateVolumesRequest};
use farfork_cluster::catalog::VolumeName;
use farfork_terminal::privilege;
use farfork_volume::mount::{find_mounted_volume, protect_covered_directory, release_covered_directory};
use farfork_volume::process::{CLIENT_ENDED, MountSupervisor, ProcessRole};
use rustix::mount::{UnmountFlags, unmount};
use tokio::signal::unix::{SignalKind, signal};
use tonic::Code;

use super::mount_options::MountOptionArgs;
use super::parse_volume_name;
use crate::GlobalArgs;
use crate::connection::block_on;
use crate::output::{print_json, print_line};

/// Maximum number of bytes from the end of the log that an error shows.
const LOG_TAIL_BYTES: u64 = 2048;

/// Mount a volume on this node.
///
/// The command returns when the volume is mounted, and leaves a background process that serves it. umount(8) ends the
/// mount and that process. A node mounts a volume once; other nodes can mount it at the same time.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume mount data /mnt/data
  umount /mnt/data
  farfork volume mount data /mnt/data --foreground

Exit status: 0 mounted (with --foreground: unmounted), 1 failure, 2 wrong usage.")]
pub(crate) struct MountVolume {
    /// Name of the volume.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
    /// Directory to mount it at.
    directory: PathBuf,
    /// Serve the mount in this process. SIGINT and SIGTERM unmount the volume.
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    options: MountOptionArgs,
    /// Make the directory immutable (chattr(1), +i) while the volume is mounted at it.
    ///
    /// After `umount -l`, or when the mount has ended, programs that open files again by their paths get EPERM or ENOENT. Without
    /// this option, they write to the local directory under the mount. umount(8) makes the directory writable again as soon as
    /// no program uses the volume. If the background process of the mount was killed, `farfork volume umount DIR` does.
    ///
    /// The file system of the directory must have this flag and trusted extended attributes, as ext4, XFS, Btrfs, and
    /// tmpfs since Linux 6.6.
    #[arg(long)]
    protect: bool,
    /// Serve the mount in this process, in a new session. The command starts its background process with this option.
    #[arg(long, hide = true, requires = "foreground")]
    new_session: bool,
}

impl MountVolume {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it mounts a file system")?;
        if self.new_session {
            // setsid(2) fails if this process already leads a session.
            let _ = rustix::process::setsid();
        }
        let object = format!("volume {}", self.name);
        let directory = resolve_mount_point(&self.directory).map_err(|error| {
            let cause = format!("cannot mount it at {}: {error}", self.directory.display());
            Failure::new(Code::NotFound, &object, cause).with_next_step("name a directory; mkdir -p creates one")
        })?;
        require_unused_mount_point(&directory, &self.name, &object)?;
        let store = locate_store(global, &self.name, &object)?;
        let mount = MountTarget {
            volume: self.name.as_str(),
            store: &store,
            directory: &directory,
            options: &self.options,
            protect: self.protect,
        };
        if self.foreground {
            mount.serve(global).context(object)?;
        } else {
            let log = global.connection.socket_path().with_file_name(format!("mount-{}.log", self.name));
            start_in_background(global, &mount, &log, &object)?;
            report(global, &mount);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Requests the directory of the replicas of this machine's node. Waits until the node serves volumes.
///
/// # Errors
/// The options select a node of another machine, the node does not serve volumes, or there is no such volume.
fn locate_store(global: &GlobalArgs, name: &VolumeName, object: &str) -> anyhow::Result<PathBuf> {
    if let Some(address) = global.connection.node_address() {
        let cause = format!("--node {address} may be on another machine, and `volume mount` mounts on this one");
        let step = "run the command on that machine, or select a node of this machine with --socket";
        return Err(Failure::new(Code::InvalidArgument, object, cause).with_next_step(step).into());
    }
    let mut store = PathBuf::new();
    block_on(async {
        let failed = |status| Failure::from_status(object, &status);
        let mut client = global.connection.open().await?;
        client.get_volume(GetVolumeRequest { name: name.to_string() }).await.map_err(failed)?;
        let located = client.locate_volumes(LocateVolumesRequest {}).await.map_err(failed)?;
        store = PathBuf::from(located.into_inner().store);
        Ok(ExitCode::SUCCESS)
    })?;
    Ok(store)
}

/// Resolves symbolic links of a directory. On a mount whose client has ended, system calls fail with ENOTCONN or
/// ECONNABORTED. Such a directory is accepted, and the new mount is placed over the old one.
fn resolve_mount_point(directory: &Path) -> io::Result<PathBuf> {
    let is_dead =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted);
    match directory.canonicalize() {
        Err(error) if is_dead(&error) => {
            let absolute = std::path::absolute(directory)?;
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Err(error) };
            Ok(parent.canonicalize()?.join(name))
        }
        Err(error) => Err(error),
        Ok(resolved) => match resolved.metadata() {
            Ok(metadata) if !metadata.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if !is_dead(&error) => Err(error),
            _ => Ok(resolved),
        },
    }
}

/// Refuses a directory at which a volume is mounted, because one umount(8) would end both mounts. If the client of the lower
/// one restarts, it would be mounted on top. A dead mount of the same volume is accepted, and the new mount replaces it.
fn require_unused_mount_point(directory: &Path, name: &VolumeName, object: &str) -> Result<(), Failure> {
    let failure = |code, cause: String| Failure::new(code, object, cause);
    let mounted = find_mounted_volume(directory);
    let mounted = mounted.map_err(|error| failure(Code::Internal, format!("cannot read the mount table: {error}")))?;
    match mounted {
        None => Ok(()),
        Some(mounted) if mounted.name == name.as_str() && mounted.is_dead => Ok(()),
        Some(mounted) => {
            let point = directory.display();
            let cause = format!("cannot mount it at {point}: volume {} is mounted there", mounted.name);
            let step = format!("unmount that volume with `farfork volume umount {point}`, or name another directory");
            Err(failure(Code::AlreadyExists, cause).with_next_step(step))
        }
    }
}

/// A volume and its mount point.
struct MountTarget<'a> {
    volume: &'a str,
    store: &'a Path,
    directory: &'a Path,
    options: &'a MountOptionArgs,
    protect: bool,
}

impl MountTarget<'_> {
    /// Mounts the volume, reports that, and supervises the volume's client until the volume is unmounted.
    fn serve(&self, global: &GlobalArgs) -> anyhow::Result<()> {
        let command = |role: ProcessRole| {
            // After an upgrade, the path of the binary may lead to another version, but this link does not.
            let mut command = Command::new("/proc/self/exe");
            command.arg0("farfork");
            command.args(["volume", role.name(), "--store"]).arg(self.store).arg(self.volume).arg(self.directory);
            command.args(self.options.arguments());
            // Ctrl-C must reach only the supervisor, which unmounts the volume.
            command.process_group(0).current_dir("/").stdin(Stdio::null());
            command
        };
        let _protection = ProtectionGuard::new(self)?;
        unmount_on_signal(self.directory.to_owned())?;
        let mut supervisor = MountSupervisor::start(self.directory, command)?;
        report(global, self);
        // write(2) fails if the command that started this process has ended.
        let _ = io::stdout().flush();
        supervisor.run()?;
        Ok(())
    }
}

/// Ends the protection of the mount point when it is dropped, also one that a killed supervisor has left.
struct ProtectionGuard<'a>(&'a Path);

impl<'a> ProtectionGuard<'a> {
    /// Protects the mount point if that is wanted.
    fn new(mount: &MountTarget<'a>) -> Result<Self, Failure> {
        if mount.protect {
            protect_covered_directory(mount.directory).map_err(|error| {
                let object = format!("directory {}", mount.directory.display());
                let cause = format!("it cannot be made immutable: {error}");
                let step = "mount without --protect, or at a directory on another file system";
                Failure::new(Code::FailedPrecondition, object, cause).with_next_step(step)
            })?;
        }
        Ok(Self(mount.directory))
    }
}

impl Drop for ProtectionGuard<'_> {
    fn drop(&mut self) {
        release_protection(self.0);
    }
}

fn release_protection(directory: &Path) {
    if let Err(error) = release_covered_directory(directory) {
        tracing::warn!(%error, directory = %directory.display(), "the directory stays immutable");
    }
}

fn report(global: &GlobalArgs, mount: &MountTarget<'_>) {
    let (volume, directory) = (mount.volume, mount.directory.display());
    if global.json {
        print_json(&serde_json::json!({ "volume": volume, "directory": directory.to_string() }));
    } else {
        print_line(&format!("{volume} is mounted at {directory}"));
    }
}

/// Starts a background process that serves the mount, and waits until it has mounted.
fn start_in_background(global: &GlobalArgs, mount: &MountTarget<'_>, log: &Path, object: &str) -> anyhow::Result<()> {
    let failure = |cause: String| Failure::new(Code::Internal, object, cause);
    let open = OpenOptions::new().create(true).append(true).mode(0o600).open(log);
    let log_file = open.map_err(|error| failure(format!("cannot open its log {}: {error}", log.display())))?;
    let log_begin = log_file.metadata().map_or(0, |metadata| metadata.len());
    let mut command = Command::new("/proc/self/exe");
    command.arg0("farfork");
    command.arg("--socket").arg(std::path::absolute(global.connection.socket_path())?);
    command.args(["volume", "mount", mount.volume]).arg(mount.directory).args(["--foreground", "--new-session"]);
    command.args(mount.options.arguments());
    command.args(mount.protect.then_some("--protect"));
    // The current directory would keep its file system in use.
    command.current_dir("/");
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file).spawn();
    let mut process = started.map_err(|error| failure(format!("cannot start its background process: {error}")))?;
    let output = process.stdout.take().expect("standard output is a pipe");
    let mut line = String::new();
    // The process prints a line when the volume is mounted. If it cannot mount the volume, it ends without a line.
    if BufReader::new(output).read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        return Ok(());
    }
    let _ = process.wait();
    let logged = read_log_since(log, log_begin).unwrap_or_else(|error| format!("its log cannot be read: {error}"));
    let cause = format!("it cannot be mounted: {}", cause_of_failure(&logged, object));
    Err(failure(cause).with_next_step(format!("correct this, then mount it again; see {}", log.display())).into())
}

/// Reads the part of a log after offset `begin`: at most the last [`LOG_TAIL_BYTES`] bytes.
fn read_log_since(log: &Path, begin: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(begin.max(length.saturating_sub(LOG_TAIL_BYTES))))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    Ok(String::from_utf8_lossy(&tail).into_owned())
}

/// Extracts the causes from a log, without the names that the error already has. If there are other lines, omits the
/// supervisor's last line, which only reports that the client has ended.
fn cause_of_failure(logged: &str, object: &str) -> String {
    let (client, object) = (format!("client of {object}: "), format!("{object}: "));
    let lines = logged.lines().map(|line| line.trim().trim_start_matches("farfork: "));
    let mut causes: Vec<&str> = lines
        .map(|line| line.strip_prefix(&client).unwrap_or(line))
        .map(|line| line.strip_prefix(&object).unwrap_or(line))
        .filter(|line| !line.is_empty())
        .collect();
    if causes.len() > 1 {
        causes.pop_if(|last| *last == CLIENT_ENDED);
    }
    causes.join("; ")
}

/// Starts a thread that unmounts the volume on SIGTERM or SIGINT. Then the client ends, and the supervisor after it.
fn unmount_on_signal(directory: PathBuf) -> io::Result<()> {
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let handlers = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
            let (Ok(mut terminate), Ok(mut interrupt)) = handlers else { return };
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                // Lazy unmount (MNT_DETACH): programs that use the mount keep it until they end. umount2(2) fails if the
                // volume is not mounted yet.
                if unmount(&directory, UnmountFlags::DETACH).is_err() {
                    release_protection(&directory);
                    std::process::exit(1);
                }
            }
        });
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_failure_is_not_repeated() {
        let supervisor = format!("farfork: volume data: {CLIENT_ENDED}\n");
        let logged = format!("farfork: client of volume data: volume data: node n3 has no live replica\n{supervisor}");
        assert_eq!(cause_of_failure(&logged, "volume data"), "node n3 has no live replica");
        assert_eq!(cause_of_failure(&supervisor, "volume data"), CLIENT_ENDED);
    }
}
