//! The root file system of a container, built by a thread in its own mount namespace.
//!
//! Each of the node's file systems with data gets an overlay. All upper layers are on one tmpfs that only the container's
//! mount namespace can reach. Kernel file systems are bind-mounted. Init mounts `/proc`, because only init is in the pid
//! namespace that `/proc` must show.

pub(crate) mod blueprint;
pub(crate) mod cached;
pub(crate) mod directory;
mod masking;
mod mount_plan;
pub(crate) mod protection;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use farfork_sys::mount::table::Attributes;
use farfork_sys::mount::{self, MountDepth};
use farfork_sys::namespace::{self, SharedFilesUmask};
use rustix::fs::{Mode, OFlags};

use crate::config::RootSpec;
use crate::error::ContainerError;
use crate::users::ContainerUsers;

use self::blueprint::RootBlueprint;
use self::cached::RootLayers;
use self::mount_plan::MountStep;

/// The container's private directory: a tmpfs with files for this container only.
pub const PRIVATE_DIR: &str = "/run/farfork";

/// Size limit of the container's private directory, in bytes. It holds a payload and small files, in the node's memory.
const PRIVATE_BYTES_MAX: u64 = 256 << 20;

/// The group `tty`.
const TERMINAL_GROUP: u32 = 5;

/// Builds the root of the calling thread's mount namespace, which must be a new one.
///
/// Mounts the tmpfs of the upper layers over `scratch`, a directory of the node, in this namespace only. Returns the upper
/// layers if they hide all masked paths. Otherwise some paths are masked by mounts, and the root is not reused.
pub(crate) fn build_root(
    spec: RootSpec,
    blueprint: &RootBlueprint,
    scratch: &Path,
    masked: &[PathBuf],
    users: Option<&ContainerUsers>,
) -> Result<Option<RootLayers>, ContainerError> {
    let _umask = SharedFilesUmask::set();
    let whole = Path::new("/");
    mount::make_private(whole).map_err(mount_error("private propagation", whole))?;
    let (made, layers) = match spec {
        RootSpec::Overlay => {
            let (made, layers) = build_overlay_root(blueprint, scratch, masked, users)?;
            (made, Some(layers))
        }
        RootSpec::Shared => Default::default(),
    };
    let mut covered = masked.iter().filter(|path| !is_masked_by_layer(path, &made)).peekable();
    let is_in_overlays = covered.peek().is_none();
    covered.try_for_each(|path| mask_path(path, spec))?;
    make_private_dir(users)?;
    Ok(layers.filter(|_| is_in_overlays).map(|layers| collect_layers(made, layers)))
}

fn collect_layers(made: Vec<MadeMount<'_>>, layers: OwnedFd) -> RootLayers {
    let mut own = RootLayers { upper_dir: layers, overlays: Vec::new(), files: Vec::new() };
    for (point, upper) in made {
        let Some(UpperLayer { directory, paths }) = upper else { continue };
        own.overlays.push(point.to_owned());
        own.files.extend(paths.into_iter().map(|path| directory.join(path)));
        // The mount point of the private directory and its parents, if this layer has them.
        let private = Path::new(PRIVATE_DIR).strip_prefix(point).into_iter().flat_map(Path::ancestors);
        own.files.extend(private.map(|path| directory.join(path)));
        own.files.push(directory);
    }
    own
}

/// A mount of the new root: its mount point, and its upper layer if it is an overlay.
type MadeMount<'a> = (&'a Path, Option<UpperLayer>);

/// The upper layer of an overlay after it was created.
struct UpperLayer {
    /// Its path, relative to the directory of all layers.
    directory: PathBuf,
    /// The files and directories that were created in it, relative to `directory`.
    paths: Vec<PathBuf>,
}

/// Makes the mounts of the new root and enters it. Returns the mounts in the order of their creation, with the directory of
/// their upper layers.
fn build_overlay_root<'a>(
    blueprint: &'a RootBlueprint,
    scratch: &Path,
    masked: &[PathBuf],
    users: Option<&ContainerUsers>,
) -> Result<(Vec<MadeMount<'a>>, OwnedFd), ContainerError> {
    let tmpfs = mount::create_filesystem("tmpfs", &[("source", mount::SOURCE), ("mode", "755")], Attributes::empty())
        .and_then(|tmpfs| mount::attach(tmpfs.as_fd(), scratch));
    tmpfs.map_err(mount_error("the tmpfs of upper layers", scratch))?;
    let opened = rustix::fs::open(scratch, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let layers = opened.map_err(|cause| mount_error("the tmpfs of upper layers", scratch)(cause.into()))?;
    let root = scratch.join("root");
    fs::create_dir(&root).map_err(mount_error("a new root", &root))?;
    let mut made = Vec::new();
    for (number, step) in blueprint.steps.iter().enumerate() {
        let layers = scratch.join(number.to_string());
        let hidden = mount_plan::paths_to_mask(step.point(), &blueprint.steps, masked);
        match apply_step(step, &root, &layers, &hidden, users) {
            Ok(layer) => made.push((step.point(), layer)),
            // The node has unmounted it. The overlay of the file system below shows the node's current files.
            Err(error) if has_vanished(step.point()) => {
                tracing::debug!(point = %step.point().display(), %error, "unmounted while a root was built");
            }
            Err(error) => return Err(error),
        }
    }
    namespace::pivot_to(&root).map_err(mount_error("the new root", Path::new("/")))?;
    Ok((made, layers))
}

/// Whether a mount point no longer exists: the node has unmounted it and removed the directory after its mounts were listed.
fn has_vanished(point: &Path) -> bool {
    fs::symlink_metadata(point).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Whether the mount that shows a masked path is an overlay, whose upper layer masks the path.
fn is_masked_by_layer(path: &Path, made: &[MadeMount<'_>]) -> bool {
    let shows = made.iter().rev().filter(|(point, _)| path.starts_with(point) && path != *point);
    shows.max_by_key(|(point, _)| point.components().count()).is_some_and(|(_, own)| own.is_some())
}

/// Makes the mount of one step below `root`. Returns the upper layer if the mount is an overlay. `layers` is a path prefix
/// for the overlay's directories, `hidden` are the paths of the node to mask, and `users` are the container's users, if it
/// has its own.
fn apply_step(
    step: &MountStep,
    root: &Path,
    layers: &Path,
    hidden: &[&Path],
    users: Option<&ContainerUsers>,
) -> Result<Option<UpperLayer>, ContainerError> {
    let point = step.point();
    let target = root.join(point.strip_prefix("/").unwrap_or(point));
    let made = match step {
        MountStep::Overlay { attributes, .. } => {
            return match make_overlay(point, &target, layers, *attributes, hidden, users) {
                Err(error) if point != Path::new("/") => {
                    tracing::warn!(point = %point.display(), %error, "this mount cannot have an overlay: it is read-only in containers");
                    bind_read_only(point, &target, *attributes).map_err(mount_error("a read-only copy", point))?;
                    Ok(None)
                }
                outcome => outcome.map_err(mount_error("an overlay", point)),
            };
        }
        MountStep::Bind { depth, .. } => mount::clone_mount(point, *depth)
            .and_then(|copy| mount::attach(copy.as_fd(), &target))
            .map_err(mount_error("a copy of the node's mount", point)),
        MountStep::MessageQueues { attributes, .. } => mount::create_filesystem("mqueue", &[], *attributes)
            .and_then(|queues| mount::attach(queues.as_fd(), &target))
            .map_err(mount_error("message queues", point)),
        MountStep::Terminals { attributes, .. } => make_devpts(*attributes, users)
            .and_then(|terminals| mount::attach(terminals.as_fd(), &target))
            .map_err(mount_error("terminals", point)),
    };
    made.map(|()| None)
}

/// Creates an overlay of the node's mount at `point`. Only directories can have one. A mounted file (container engines mount
/// `/etc/resolv.conf`) is shown read-only; a device or socket is shown as it is.
fn make_overlay(
    point: &Path,
    target: &Path,
    layers: &Path,
    attributes: Attributes,
    hidden: &[&Path],
    users: Option<&ContainerUsers>,
) -> io::Result<Option<UpperLayer>> {
    let metadata = fs::symlink_metadata(point)?;
    if metadata.is_file() {
        return bind_read_only(point, target, attributes).map(|()| None);
    }
    if !metadata.is_dir() {
        return mount::attach(mount::clone_mount(point, MountDepth::Single)?.as_fd(), target).map(|()| None);
    }
    let (upper, work) = (layers.with_extension("upper"), layers.with_extension("work"));
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    // The root of the overlay has the owner and mode of the upper directory.
    copy_ownership(&metadata, &upper, users)?;
    let paths = masking::mask_in_upper(point, &upper, hidden, users)?;
    let lower = match users {
        None => point.to_owned(),
        Some(users) => idmap_for_users(point, &layers.with_extension("lower"), users)?,
    };
    mount::attach(mount::overlay(&lower, &upper, &work, attributes)?.as_fd(), target)?;
    // An overlay marks a directory of the upper layer at its first lookup. Look it up now, so that the mark reveals nothing
    // about the container's processes.
    paths.iter().try_for_each(|path| fs::symlink_metadata(target.join(path)).map(drop))?;
    Ok(upper.file_name().map(|name| UpperLayer { directory: name.into(), paths }))
}

/// Creates the directory `shown` and mounts the node's files at `point` on it, with owners mapped to the container's users.
/// Returns the path to use as lower layer.
fn idmap_for_users(point: &Path, shown: &Path, users: &ContainerUsers) -> io::Result<PathBuf> {
    let copy = mount::clone_mount(point, MountDepth::Single)?;
    match set_idmap(copy.as_fd(), users.namespace()) {
        // This file system does not support idmapped mounts. In the container, its files have no owner, and only the
        // permissions for others apply.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && point != Path::new("/") => {
            return Ok(point.to_owned());
        }
        numbered => numbered?,
    }
    fs::create_dir(shown)?;
    mount::attach(copy.as_fd(), shown)?;
    Ok(shown.to_owned())
}

/// Like [`mount::set_idmap`], with an error that explains the cause.
pub(crate) fn set_idmap(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    mount::set_idmap(mount, users).map_err(|cause| {
        let text = format!(
            "its file system does not support idmapped mounts, which a user namespace needs ({cause}); use a path of another file system, or fork without --user-namespace"
        );
        io::Error::new(cause.kind(), text)
    })
}

/// Copies owner and mode to a new file that belongs to root.
fn copy_ownership(from: &fs::Metadata, to: &Path, users: Option<&ContainerUsers>) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, chown};
    let (user, group) = users.map_or_else(|| (from.uid(), from.gid()), |users| users.owner_inside(from));
    if (user, group) != (0, 0) {
        chown(to, Some(user), Some(group))?;
    }
    fs::set_permissions(to, from.permissions())
}

/// Creates a devpts file system with the options that distributions use, so that grantpt(3) has nothing to do. Each mount of
/// devpts is a separate instance (Linux 4.7).
fn make_devpts(attributes: Attributes, users: Option<&ContainerUsers>) -> io::Result<OwnedFd> {
    let group = host_id_text(users, TERMINAL_GROUP);
    mount::create_filesystem("devpts", &[("gid", &*group), ("mode", "620"), ("ptmxmode", "666")], attributes)
}

/// The id on the node for an id in the container, as a mount option.
fn host_id_text(users: Option<&ContainerUsers>, number: u32) -> String {
    users.and_then(|users| users.range.to_host(number)).unwrap_or(number).to_string()
}

fn bind_read_only(point: &Path, target: &Path, attributes: Attributes) -> io::Result<()> {
    mount::attach(mount::clone_mount(point, MountDepth::Single)?.as_fd(), target)?;
    mount::restrict(target, attributes | Attributes::MOUNT_ATTR_RDONLY)
}

/// Masks a path of the calling thread's root: mounts an empty directory, or /dev/null, over it. Processes then cannot reach
/// the node's file.
pub(crate) fn mask_path(path: &Path, spec: RootSpec) -> Result<(), ContainerError> {
    let cover = || {
        let kind = match (fs::symlink_metadata(path), spec) {
            (Err(error), RootSpec::Overlay) if error.kind() == io::ErrorKind::NotFound => {
                // Create the path, to mask it: it would become visible in the overlay if the node created it later.
                match fs::create_dir_all(path) {
                    // The node cannot create the path either.
                    Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => return Ok(()),
                    made => made?,
                }
                fs::symlink_metadata(path)?
            }
            // Only an existing path can be masked, and nothing is created in the node's own root.
            (Err(error), RootSpec::Shared) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            (metadata, _) => metadata?,
        };
        let cover = match kind.is_dir() {
            true => {
                mount::create_filesystem("tmpfs", &[("size", "4k"), ("mode", "555")], Attributes::MOUNT_ATTR_RDONLY)?
            }
            false => mount::clone_mount(Path::new("/dev/null"), MountDepth::Single)?,
        };
        mount::attach(cover.as_fd(), path)
    };
    cover().map_err(mount_error("a mask", path))
}

/// Mounts the container's private directory.
fn make_private_dir(users: Option<&ContainerUsers>) -> Result<(), ContainerError> {
    let point = Path::new(PRIVATE_DIR);
    let make = || {
        fs::create_dir_all(point)?;
        let (size, root) = (PRIVATE_BYTES_MAX.to_string(), host_id_text(users, 0));
        let options = [("source", mount::SOURCE), ("size", &*size), ("mode", "755"), ("uid", &*root), ("gid", &*root)];
        let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV;
        mount::attach(mount::create_filesystem("tmpfs", &options, attributes)?.as_fd(), point)
    };
    make().map_err(mount_error("the private directory", point))
}

fn mount_error<'a>(what: &'static str, point: &'a Path) -> impl Fn(io::Error) -> ContainerError + 'a {
    move |cause| ContainerError::Mount { what, point: point.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mounts of the node change at any time, for example those of other containers.
    #[test]
    fn a_mount_that_disappears_while_it_is_copied_is_skipped() {
        let node = tempfile::tempdir().unwrap();
        let (kept, gone, scratch) = (node.path().join("kept"), node.path().join("gone"), node.path().join("scratch"));
        [&kept, &scratch].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
        fs::write(kept.join("file"), "node").unwrap();
        let overlay = |point: &Path| MountStep::Overlay { point: point.into(), attributes: Attributes::empty() };
        let bind = MountStep::Bind { point: gone.join("below"), depth: MountDepth::Single };
        let steps = vec![overlay(Path::new("/")), overlay(&gone), bind, overlay(&kept)];
        let blueprint = RootBlueprint { version: 1, steps: steps.into(), served: Default::default() };
        let build = || {
            let made = build_overlay_root(&blueprint, &scratch, &[], None);
            let points = made.map(|(made, _)| made.iter().map(|(point, _)| (*point).to_owned()).collect::<Vec<_>>());
            (points, fs::read_to_string(kept.join("file")))
        };
        let (points, file) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                namespace::unshare_container(false).unwrap();
                mount::make_private(Path::new("/")).unwrap();
                build()
            });
            thread.join().unwrap()
        });
        assert_eq!(points.unwrap(), [PathBuf::from("/"), kept.clone()]);
        assert_eq!(file.unwrap(), "node");
    }
}
