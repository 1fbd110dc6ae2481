//! `ParentRoot`: the root of parents that `farfork run --root` starts. It is an overlay of a user's directory, so that this
//! directory does not change. The benchmark's files are mounted in it at their own paths.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use farfork_sys::mount::{self, MountDepth, table};
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;

use super::functions::{FunctionOptions, FunctionSource};
use crate::error::BenchError;
use crate::machine::{Machine, prefix_command};

/// The directories of the kernel's file systems, which `farfork run --root` needs.
const KERNEL_DIRECTORIES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Directories that are not mounted from the node, because the user's directory has its own.
const SYSTEM_PREFIXES: [&str; 2] = ["/", "/usr"];

/// A mounted root. It is unmounted when this value is dropped, which must be before its scratch directory is removed.
#[derive(Debug)]
pub(crate) struct ParentRoot {
    farfork: PathBuf,
    point: PathBuf,
}

/// A directory of this machine that is mounted in the root.
#[derive(Debug)]
struct MountedFiles {
    path: PathBuf,
    attributes: table::Attributes,
}

impl ParentRoot {
    /// Mounts the overlay in the scratch directory of a machine, and these files in it.
    ///
    /// # Errors
    /// [`BenchError::Root`].
    pub(crate) fn mount(
        directory: &Path,
        machine: &dyn Machine,
        sources: &[&FunctionSource],
        options: &FunctionOptions,
    ) -> Result<Self, BenchError> {
        let scratch = machine.scratch();
        let failed = |cause: io::Error| BenchError::Root { path: directory.to_owned(), cause: cause.to_string() };
        let lower = fs::canonicalize(directory).map_err(failed)?;
        if mount::is_on_overlay(&lower).map_err(failed)? {
            let cause = "it is on an overlay, and overlays cannot be stacked so often; copy it to another file system";
            return Err(BenchError::Root { path: directory.to_owned(), cause: cause.to_owned() });
        }
        let files = files_of(scratch, sources, options)?;
        let point = scratch.join("root");
        let [upper, work] = ["root-upper", "root-work"].map(|name| scratch.join(name));
        [&point, &upper, &work].into_iter().try_for_each(fs::create_dir).map_err(failed)?;
        let overlay = mount::overlay(&lower, &upper, &work, table::Attributes::empty()).map_err(failed)?;
        mount::attach(overlay.as_fd(), &point).map_err(failed)?;
        let root = Self { farfork: machine.farfork().to_owned(), point };
        KERNEL_DIRECTORIES.iter().try_for_each(|path| root.open_point(Path::new(path)).map(drop)).map_err(failed)?;
        files.iter().try_for_each(|files| root.mount_files(files)).map_err(failed)?;
        Ok(root)
    }

    /// Makes a command start its program in the root.
    pub(crate) fn wrap(&self, command: &Command) -> Command {
        let [farfork, root] = [&self.farfork, &self.point].map(|path| path.to_string_lossy());
        prefix_command(&[&farfork, "run", "--root", &root, "--"], command)
    }

    fn mount_files(&self, files: &MountedFiles) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", files.path.display()));
        let cloned = mount::clone_mount(&files.path, MountDepth::Single).map_err(named)?;
        let point = self.open_point(&files.path)?;
        let point = PathBuf::from(format!("/proc/self/fd/{}", point.as_raw_fd()));
        mount::attach(cloned.as_fd(), &point).map_err(named)?;
        let mounted = self.point.join(files.path.strip_prefix("/").unwrap_or(&files.path));
        if files.attributes.is_empty() { Ok(()) } else { mount::restrict(&mounted, files.attributes).map_err(named) }
    }

    /// Opens a directory in the root. Creates it if it is missing. Refuses symbolic links, which could lead out of the root.
    fn open_point(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let mut directory = open(&self.point, flags, Mode::empty())?;
        let mut reached = PathBuf::from("/");
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            reached.push(name);
            let opened = match openat2(&directory, name, flags, Mode::empty(), resolve) {
                Err(Errno::NOENT) => mkdirat(&directory, name, Mode::from_raw_mode(0o755))
                    .and_then(|()| openat2(&directory, name, flags, Mode::empty(), resolve)),
                opened => opened,
            };
            directory = opened.map_err(|error| point_error(&reached, error))?;
        }
        Ok(directory)
    }
}

impl Drop for ParentRoot {
    fn drop(&mut self) {
        if let Err(error) = mount::detach(&self.point) {
            eprintln!("farfork: {} stays mounted: {error}", self.point.display());
        }
    }
}

fn point_error(path: &Path, error: Errno) -> io::Error {
    let cause = match error {
        Errno::LOOP => "a symbolic link, on which nothing can be mounted".to_owned(),
        Errno::NOTDIR => "not a directory".to_owned(),
        error => io::Error::from(error).to_string(),
    };
    io::Error::new(io::Error::from(error).kind(), format!("{} in it: {cause}", path.display()))
}

/// The files that the programs need: the scratch directory, and for functions their own directory and Python.
fn files_of(
    scratch: &Path,
    sources: &[&FunctionSource],
    options: &FunctionOptions,
) -> Result<Vec<MountedFiles>, BenchError> {
    let writable = |path: &Path| MountedFiles { path: path.to_owned(), attributes: table::Attributes::empty() };
    let read_only = |path: PathBuf| MountedFiles { path, attributes: table::Attributes::MOUNT_ATTR_RDONLY };
    let mut files = vec![writable(scratch)];
    let is_system = |path: &Path| SYSTEM_PREFIXES.iter().any(|prefix| path == Path::new(prefix));
    for file in sources.iter().filter_map(|source| source.file.as_deref()) {
        let Some(directory) = file.parent() else { continue };
        if is_system(directory) {
            let cause = "its directory would hide the root; move it into a directory of its own".to_owned();
            return Err(BenchError::FunctionFailed { function: file.display().to_string(), cause });
        }
        files.push(read_only(directory.to_owned()));
    }
    for source in sources {
        let prefixes = options.python_prefixes(source)?;
        files.extend(prefixes.into_iter().filter(|path| !is_system(path)).map(read_only));
    }
    // A mount hides what was mounted below it earlier.
    files.sort_by(|first, second| first.path.cmp(&second.path));
    files.dedup_by(|second, first| second.path == first.path);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FunctionOptions, FunctionSource, files_of};

    /// The node's root would otherwise hide the directory that the user has named.
    #[test]
    fn a_function_in_a_system_directory_is_refused() {
        let source = |file: &str| FunctionSource {
            name: "mine.py:work".to_owned(),
            file: Some(file.into()),
            handler: "work".to_owned(),
        };
        let files = |source| files_of(Path::new("/run/scratch"), &[&source], &FunctionOptions::default());
        assert_eq!(files(source("/srv/own/mine.py")).unwrap().len(), 2);
        for file in ["/mine.py", "/usr/mine.py"] {
            let refused = files(source(file)).map(|files| files.len()).unwrap_err().to_string();
            assert!(refused.contains(file) && refused.contains("would hide the root"), "{refused}");
        }
    }
}
