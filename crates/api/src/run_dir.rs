//! The run directory: a node's sockets, its logs and the state of its children, which the node's next daemon finds.
//!
//! [`RunDir`] names the paths. [`RunDirLock`] keeps a second daemon out. [`RunDir::acquire`] refuses the directory if
//! another user could read, change or replace it.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farfork_wire::ChildId;
use rustix::fs::{FlockOperation, flock, statfs};

/// Default path of the run directory. `FARFORK_RUN_DIR` or an option overrides it.
pub const DEFAULT_RUN_DIR: &str = "/run/farfork";

/// Longest path of a Unix socket, in bytes (unix(7): 108 with the final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Longest wait for the lock of a killed daemon. A process that the killed daemon was starting holds the lock and the
/// sockets until it calls execve(2), which may be late on a busy machine.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of symbolic links in a path: the kernel's limit (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Pause between two attempts to lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another daemon uses the directory.
    #[error("another daemon uses it; stop that one, or choose another directory with --run-dir")]
    InUse,
    /// Another user owns the directory.
    #[error(
        "it belongs to user {uid}, who could read and change its files; choose one in a directory of your own with --run-dir"
    )]
    WrongOwner {
        /// The owner.
        uid: u32,
    },
    /// Another user could replace the directory by another one.
    #[error(
        "its parent directory {} {writers}, so another user could replace it; choose one with --run-dir below directories that only root and you can write, such as /run", path.display()
    )]
    UnsafeAncestor {
        /// A directory or a symbolic link on the path.
        path: PathBuf,
        /// Names the users that can write to the directory, as a clause.
        writers: String,
    },
    /// The path of a socket in the directory would be too long for the kernel.
    #[error(
        "its path is too long for a Unix socket in it, which may have {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter one with --run-dir"
    )]
    PathTooLong,
    /// The directory could not be created, checked or locked.
    #[error(
        "cannot {action}: {cause}; check its owner and its file system, or choose another directory with --run-dir"
    )]
    Io {
        /// The operation.
        action: &'static str,
        /// The error of the system.
        cause: io::Error,
    },
}

/// Paths within a run directory.
///
/// ```text
/// RUN/lock             held by the daemon
/// RUN/node.sock        the daemon's API
/// RUN/program.sock     where programs request their own checkpoint
/// RUN/fabric.sock      where processes of this host read the memory of the node's seeds
/// RUN/members.json     the addresses of the nodes that the daemon knows
/// RUN/pager.log        the pager's log
/// RUN/images/          sealed seeds, unless the node keeps them elsewhere
/// RUN/zygotes/         the zygotes' directories
/// RUN/children/ID/     child.json  stdout  stderr  payload  exit  pager.plan  pager.journal
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
}

/// The lock on a run directory. The daemon holds it while it runs; the kernel releases it when the daemon dies.
#[derive(Debug)]
pub struct RunDirLock {
    file: File,
}

impl RunDirLock {
    /// Whether the directory still has this lock file: the directory may have been removed, and created again by another
    /// daemon.
    pub fn is_current(&self, run_dir: &RunDir) -> bool {
        let numbers = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let (held, there) = (self.file.metadata(), fs::metadata(run_dir.lock_file()));
        held.is_ok_and(|held| there.is_ok_and(|there| numbers(held) == numbers(there)))
    }
}

impl RunDir {
    /// The run directory at `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the directory is on a tmpfs. Each child creates and removes a dozen files, which is slow on a disk.
    pub fn is_in_memory(&self) -> bool {
        /// The file system type of a tmpfs in statfs(2).
        const TMPFS: u64 = 0x0102_1994;
        statfs(&self.root).is_ok_and(|found| found.f_type as u64 == TMPFS)
    }

    /// The file that the daemon locks.
    fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The daemon's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.root.join("node.sock")
    }

    /// The socket where programs request their own checkpoint.
    pub fn program_socket(&self) -> PathBuf {
        self.root.join("program.sock")
    }

    /// The socket through which processes on this host read the memory of the node's seeds.
    pub fn fabric_socket(&self) -> PathBuf {
        self.root.join("fabric.sock")
    }

    /// The addresses of the nodes that the daemon knows.
    pub fn member_file(&self) -> PathBuf {
        self.root.join("members.json")
    }

    /// The pager's log.
    pub fn pager_log(&self) -> PathBuf {
        self.root.join("pager.log")
    }

    /// The directory of the sealed seeds, unless the node keeps them elsewhere.
    pub fn images_dir(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The children's directories.
    pub fn children_dir(&self) -> PathBuf {
        self.root.join("children")
    }

    /// A child's directory.
    pub fn child_dir(&self, id: &ChildId) -> PathBuf {
        self.children_dir().join(id.to_string())
    }

    /// The zygotes' directories.
    pub fn zygotes_dir(&self) -> PathBuf {
        self.root.join("zygotes")
    }

    /// Creates the directory with access for its owner only, and locks it for this daemon.
    ///
    /// # Errors
    /// [`RunDirError`].
    pub fn acquire(&self) -> Result<RunDirLock, RunDirError> {
        if self.program_socket().as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(RunDirError::PathTooLong);
        }
        let io = |action| move |cause| RunDirError::Io { action, cause };
        self.check_ancestors()?;
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.children_dir()).map_err(io("create it"))?;
        builder.create(self.zygotes_dir()).map_err(io("create it"))?;
        self.check_ownership()?;
        fs::set_permissions(&self.root, Permissions::from_mode(0o700)).map_err(io("restrict its mode to 0700"))?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.lock_file())
            .map_err(io("open its lock"))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(RunDirLock { file }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOCK_RETRY_INTERVAL),
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(RunDirError::InUse),
                Err(errno) => return Err(io("lock it")(errno.into())),
            }
        }
    }

    /// Refuses a path in which another user could replace an entry. Each directory and each symbolic link of the path, and
    /// of the targets of its links, must belong to root or to this user. A directory must be either writable by its owner
    /// only or sticky. `acquire` creates missing directories for this user alone.
    fn check_ancestors(&self) -> Result<(), RunDirError> {
        let io = |cause| RunDirError::Io { action: "check the owners of its parent directories", cause };
        let absolute = std::path::absolute(&self.root).map_err(io)?;
        for path in resolution_steps(&absolute).map_err(io)? {
            let metadata = fs::symlink_metadata(&path).map_err(io)?;
            if let Some(writers) = describe_writers(&metadata) {
                return Err(RunDirError::UnsafeAncestor { path, writers });
            }
        }
        Ok(())
    }

    /// Refuses a directory or a symbolic link that another user owns: its owner can change it, whatever its mode.
    fn check_ownership(&self) -> Result<(), RunDirError> {
        let own = rustix::process::geteuid().as_raw();
        for metadata in [fs::symlink_metadata(&self.root), fs::metadata(&self.root)] {
            let uid = metadata.map_err(|cause| RunDirError::Io { action: "check its owner", cause })?.uid();
            if uid != own {
                return Err(RunDirError::WrongOwner { uid });
            }
        }
        Ok(())
    }
}

/// Lists the directories in which the kernel looks up a component of an absolute path, and the symbolic links that the
/// kernel follows (path_resolution(7)). The last component is not in the list, unless it is a link. The list ends at the
/// first missing component.
///
/// # Errors
/// As lstat(2) and readlink(2); ELOOP after [`LINKS_MAX`] links.
fn resolution_steps(path: &Path) -> io::Result<Vec<PathBuf>> {
    let reversed = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut steps, mut current, mut links) = (Vec::new(), PathBuf::from("/"), 0);
    let mut pending = reversed(path);
    while let Some(component) = pending.pop() {
        if component == "/" {
            current = PathBuf::from("/");
            continue;
        }
        if component == ".." {
            current.pop();
            continue;
        }
        steps.push(current.clone());
        let next = current.join(component);
        match fs::symlink_metadata(&next) {
            Ok(metadata) if metadata.is_symlink() => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                pending.extend(reversed(&fs::read_link(&next)?));
                steps.push(next);
            }
            Ok(_) => current = next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    Ok(steps)
}

/// Returns which users except root and the caller can write to a directory, as a clause; `None` if there are none.
fn describe_writers(directory: &Metadata) -> Option<String> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let (uid, mode) = (directory.uid(), directory.mode());
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Some(format!("belongs to user {uid}"));
    }
    // The mode of a symbolic link has no meaning.
    let is_open = directory.is_dir() && mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
    is_open.then(|| format!("can be written by others (mode {:04o}, not sticky)", mode & 0o7777))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{LOCK_TIMEOUT, RunDir, RunDirError};

    #[test]
    fn a_tmpfs_is_recognized() {
        assert!(RunDir::new("/dev/shm").is_in_memory());
        assert!(!RunDir::new("/proc").is_in_memory() && !RunDir::new("/nowhere").is_in_memory());
    }

    #[test]
    fn one_daemon_has_a_run_directory() {
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path().join("run"));
        let lock = run_dir.acquire().unwrap();
        assert!(matches!(run_dir.acquire(), Err(RunDirError::InUse)));
        drop(lock);
        run_dir.acquire().unwrap();
    }

    #[test]
    fn a_lock_is_not_current_after_its_directory_was_recreated() {
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path().join("run"));
        let lock = run_dir.acquire().unwrap();
        assert!(lock.is_current(&run_dir));
        fs::remove_dir_all(run_dir.root()).unwrap();
        assert!(!lock.is_current(&run_dir));
        let second = run_dir.acquire().unwrap();
        assert!(second.is_current(&run_dir) && !lock.is_current(&run_dir));
    }

    /// The holder of the lock acts like a process that a killed daemon was starting.
    #[test]
    fn acquire_waits_for_a_holder_that_releases_soon() {
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path().join("run"));
        let lock = run_dir.acquire().unwrap();
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(lock);
        });
        // On a busy machine, the holder may release the lock only after `acquire` has given up.
        loop {
            let (has_let_go, began) = (holder.is_finished(), Instant::now());
            match run_dir.acquire() {
                Ok(lock) => break drop(lock),
                Err(RunDirError::InUse) => assert!(!has_let_go, "the lock was free"),
                Err(error) => panic!("{error}"),
            }
            assert!(began.elapsed() >= LOCK_TIMEOUT, "`acquire` gave up after {:?}", began.elapsed());
        }
        holder.join().unwrap();
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        assert!(rustix::process::geteuid().is_root(), "this test gives a directory away: run it as root");
        let parent = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(parent.path().join("run"));
        drop(run_dir.acquire().unwrap());
        std::os::unix::fs::chown(run_dir.root(), Some(65_534), None).unwrap();
        assert!(matches!(run_dir.acquire(), Err(RunDirError::WrongOwner { uid: 65_534 })));
    }

    #[test]
    fn a_directory_below_one_of_another_user_is_refused() {
        assert!(rustix::process::geteuid().is_root(), "this test gives a directory away: run it as root");
        let top = tempfile::tempdir().unwrap();
        let (above, link) = (top.path().join("above"), top.path().join("link"));
        fs::create_dir(&above).unwrap();
        symlink(&above, &link).unwrap();
        let refused = |root: &std::path::Path| match RunDir::new(root).acquire() {
            Err(RunDirError::UnsafeAncestor { path, writers }) => Some((path, writers)),
            _ => None,
        };
        assert_eq!(refused(&above.join("a/run")), None);
        let set_mode = |mode| fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        for mode in [0o777, 0o775, 0o757] {
            set_mode(mode);
            let (path, writers) = refused(&above.join("b/run")).expect("others may write there");
            assert!(path == above && writers.contains(&format!("{mode:04o}")), "{writers}");
            assert!(refused(&link.join("b/run")).is_some(), "the same path through a link is refused too");
        }
        set_mode(0o1777);
        assert_eq!(refused(&above.join("c/run")), None, "a sticky directory such as /tmp is accepted");
        set_mode(0o755);
        chown(&above, Some(65_534), None).unwrap();
        assert_eq!(refused(&above.join("d/run")), Some((above.clone(), "belongs to user 65534".to_owned())));
        assert!(!above.join("b").exists() && !above.join("d").exists(), "nothing is made there");
    }

    /// The owner of a directory can replace the links in it.
    #[test]
    fn a_link_in_a_directory_of_another_user_is_refused() {
        assert!(rustix::process::geteuid().is_root(), "this test gives a directory away: run it as root");
        let top = tempfile::tempdir().unwrap();
        let [foreign, safe, first, second] =
            ["foreign", "safe", "first", "foreign/second"].map(|name| top.path().join(name));
        fs::create_dir(&foreign).unwrap();
        fs::create_dir(&safe).unwrap();
        symlink(&safe, &second).unwrap();
        symlink("foreign/second", &first).unwrap();
        drop(RunDir::new(first.join("run")).acquire().unwrap());
        drop(RunDir::new(&first).acquire().unwrap());
        chown(&foreign, Some(65_534), None).unwrap();
        for root in [first.join("run"), first.clone()] {
            let refused = RunDir::new(&root).acquire();
            assert!(
                matches!(&refused, Err(RunDirError::UnsafeAncestor { path, .. }) if *path == foreign),
                "{refused:?}"
            );
        }
        fs::remove_file(&first).unwrap();
        symlink("first", &first).unwrap();
        let refused = RunDir::new(first.join("run")).acquire();
        assert!(matches!(refused, Err(RunDirError::Io { .. })), "the link leads to itself: {refused:?}");
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused() {
        let run_dir = RunDir::new(format!("/tmp/{}", "x".repeat(110)));
        assert!(matches!(run_dir.acquire(), Err(RunDirError::PathTooLong)));
    }
}
