//! The root file system of a container, built by a thread in a mount namespace of its own.
//!
//! Of the node's mounts, file systems with data get an overlay each, whose upper layers lie on one tmpfs that only the
//! container's mount namespace knows; those that are views of the kernel are shown as they are. `/proc` is left to
//! init, which alone is in the pid namespace that it has to show.

mod hiding;
pub(crate) mod kept;
pub(crate) mod layout;
mod plan;
pub(crate) mod protection;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use farfork_sys::mount::table::Attributes;
use farfork_sys::mount::{self, Depth};
use farfork_sys::namespace;
use rustix::fs::{Mode, OFlags};

use crate::config::RootSpec;
use crate::error::ContainerError;
use crate::users::Users;

use self::kept::Own;
use self::layout::Blueprint;
use self::plan::Step;

/// The directory in which a container finds what was meant for it alone: a tmpfs of its own.
pub const PRIVATE_DIR: &str = "/run/farfork";

/// Room in the container's private directory, in bytes: for a payload and small files; it is the node's memory.
const PRIVATE_BYTES_MAX: u64 = 256 << 20;

/// The group `tty`.
const TERMINAL_GROUP: u32 = 5;

/// Builds the root of the calling thread's mount namespace, which must be a new one.
///
/// `scratch` is a directory of the node's over which, in this namespace only, the tmpfs of the upper layers is mounted. Gives what the root
/// has of its own, where that is in overlays alone.
pub(crate) fn build(
    (spec, users): (RootSpec, Option<&Users>),
    blueprint: &Blueprint,
    scratch: &Path,
    masked: &[PathBuf],
) -> Result<Option<Own>, ContainerError> {
    let whole = Path::new("/");
    mount::make_private(whole).map_err(at("private propagation", whole))?;
    let (made, layers) = match spec {
        RootSpec::Overlay => {
            let (made, layers) = build_overlay(blueprint, scratch, (masked, users))?;
            (made, Some(layers))
        }
        RootSpec::Shared => Default::default(),
    };
    let mut covered = masked.iter().filter(|path| !is_hidden(path, &made)).peekable();
    let is_in_overlays = covered.peek().is_none();
    covered.try_for_each(|path| mask(path, spec))?;
    make_private_dir(users)?;
    Ok(layers.filter(|_| is_in_overlays).map(|layers| own_of(made, layers)))
}

fn own_of(made: Vec<Made<'_>>, layers: OwnedFd) -> Own {
    let mut own = Own { layers, overlays: Vec::new(), files: Vec::new() };
    for (point, upper) in made {
        let Some(Upper { directory, places }) = upper else { continue };
        own.overlays.push(point.to_owned());
        own.files.extend(places.into_iter().map(|place| directory.join(place)));
        // The private directory's place, and what is above it: as far as this layer has them.
        let private = Path::new(PRIVATE_DIR).strip_prefix(point).into_iter().flat_map(Path::ancestors);
        own.files.extend(private.map(|place| directory.join(place)));
        own.files.push(directory);
    }
    own
}

/// A mount of the new root: where it is, and its upper layer if it is an overlay.
type Made<'a> = (&'a Path, Option<Upper>);

/// The upper layer of an overlay, as it was made.
struct Upper {
    /// By way of the directory of all layers.
    directory: PathBuf,
    /// What it has, by way of itself.
    places: Vec<PathBuf>,
}

/// Gives each mount of the new root, in the order in which they were made, and the directory of their upper layers.
fn build_overlay<'a>(
    blueprint: &'a Blueprint,
    scratch: &Path,
    (masked, users): (&[PathBuf], Option<&Users>),
) -> Result<(Vec<Made<'a>>, OwnedFd), ContainerError> {
    let tmpfs = mount::create("tmpfs", &[("source", mount::SOURCE), ("mode", "755")], Attributes::empty())
        .and_then(|tmpfs| mount::attach(tmpfs.as_fd(), scratch));
    tmpfs.map_err(at("the tmpfs of upper layers", scratch))?;
    let opened = rustix::fs::open(scratch, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let layers = opened.map_err(|cause| at("the tmpfs of upper layers", scratch)(cause.into()))?;
    let root = scratch.join("root");
    fs::create_dir(&root).map_err(at("a new root", &root))?;
    let mut made = Vec::new();
    for (number, step) in blueprint.steps.iter().enumerate() {
        let layers = scratch.join(number.to_string());
        let hidden = plan::hidden_by(step.point(), &blueprint.steps, masked);
        made.push((step.point(), perform(step, &root, &layers, (&hidden, users))?));
    }
    namespace::pivot(&root).map_err(at("the new root", Path::new("/")))?;
    Ok((made, layers))
}

/// Whether the mount that shows a masked path is an overlay: that has something of its own in its place.
fn is_hidden(path: &Path, made: &[Made<'_>]) -> bool {
    let shows = made.iter().rev().filter(|(point, _)| path.starts_with(point) && path != *point);
    shows.max_by_key(|(point, _)| point.components().count()).is_some_and(|(_, own)| own.is_some())
}

/// What is hidden from a container, and its users, if they are not the node's.
type Given<'a> = (&'a [&'a Path], Option<&'a Users>);

/// Takes one step below `root`, and gives the upper layer if it has made an overlay; `layers` does not exist yet, and begins
/// the names of its own layers.
fn perform(step: &Step, root: &Path, layers: &Path, given: Given<'_>) -> Result<Option<Upper>, ContainerError> {
    let point = step.point();
    let target = root.join(point.strip_prefix("/").unwrap_or(point));
    let made = match step {
        Step::Overlay { attributes, .. } => {
            return match overlay(point, &target, layers, *attributes, given) {
                Err(error) if point != Path::new("/") => {
                    tracing::warn!(point = %point.display(), %error, "not overlaid but read-only in containers");
                    copy_read_only(point, &target, *attributes).map_err(at("a read-only copy", point))?;
                    Ok(None)
                }
                outcome => outcome.map_err(at("an overlay", point)),
            };
        }
        Step::Copy { depth, .. } => mount::copy(point, *depth)
            .and_then(|copy| mount::attach(copy.as_fd(), &target))
            .map_err(at("a copy of the node's mount", point)),
        Step::Queues { attributes, .. } => mount::create("mqueue", &[], *attributes)
            .and_then(|queues| mount::attach(queues.as_fd(), &target))
            .map_err(at("message queues", point)),
        Step::Terminals { attributes, .. } => terminals(*attributes, given.1)
            .and_then(|terminals| mount::attach(terminals.as_fd(), &target))
            .map_err(at("terminals", point)),
    };
    made.map(|()| None)
}

/// An overlay of the node's mount at `point`. Only directories can have one: a file that is mounted (as container
/// engines do with `/etc/resolv.conf`) is shown read-only, a device or socket as it is.
fn overlay(
    point: &Path,
    target: &Path,
    layers: &Path,
    attributes: Attributes,
    (hidden, users): Given<'_>,
) -> io::Result<Option<Upper>> {
    let metadata = fs::symlink_metadata(point)?;
    if metadata.is_file() {
        return copy_read_only(point, target, attributes).map(|()| None);
    }
    if !metadata.is_dir() {
        return mount::attach(mount::copy(point, Depth::Single)?.as_fd(), target).map(|()| None);
    }
    let (upper, work) = (layers.with_extension("upper"), layers.with_extension("work"));
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    // The overlay's root takes owner and mode from the upper directory.
    copy_ownership(&metadata, &upper, users)?;
    let places = hiding::hide(point, &upper, (hidden, users))?;
    let lower = match users {
        None => point.to_owned(),
        Some(users) => show_as_theirs(point, &layers.with_extension("lower"), users)?,
    };
    mount::attach(mount::overlay(&lower, &upper, &work, attributes)?.as_fd(), target)?;
    // An overlay marks a directory of the upper layer when it is first looked up: now, so that it says nothing about the container's users.
    places.iter().try_for_each(|place| fs::symlink_metadata(target.join(place)).map(drop))?;
    Ok(upper.file_name().map(|name| Upper { directory: name.into(), places }))
}

/// Has the node's files at `point` be of the container's users at `shown`, which does not exist yet, and gives where they are.
fn show_as_theirs(point: &Path, shown: &Path, users: &Users) -> io::Result<PathBuf> {
    let copy = mount::copy(point, Depth::Single)?;
    match number_owners(copy.as_fd(), users.namespace()) {
        // It can show its files as they are only: they belong to nobody inside, who may do with them what anybody may.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && point != Path::new("/") => {
            return Ok(point.to_owned());
        }
        numbered => numbered?,
    }
    fs::create_dir(shown)?;
    mount::attach(copy.as_fd(), shown)?;
    Ok(shown.to_owned())
}

/// As [`mount::number_owners`], with an error that says what is wrong.
pub(crate) fn number_owners(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    mount::number_owners(mount, users).map_err(|cause| {
        io::Error::new(cause.kind(), format!("its file system cannot show files as other users' ({cause})"))
    })
}

/// To what was just made, by root.
fn copy_ownership(from: &fs::Metadata, to: &Path, users: Option<&Users>) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, chown};
    let (user, group) = users.map_or_else(|| (from.uid(), from.gid()), |users| users.owner(from));
    if (user, group) != (0, 0) {
        chown(to, Some(user), Some(group))?;
    }
    fs::set_permissions(to, from.permissions())
}

/// A file system of terminals as distributions mount it, so that grantpt(3) has nothing left to do. Each mount of it is an instance
/// of its own (Linux 4.7).
fn terminals(attributes: Attributes, users: Option<&Users>) -> io::Result<OwnedFd> {
    let group = outside(users, TERMINAL_GROUP);
    mount::create("devpts", &[("gid", &*group), ("mode", "620"), ("ptmxmode", "666")], attributes)
}

/// What a number of the container's is on the node.
fn outside(users: Option<&Users>, number: u32) -> String {
    users.and_then(|users| users.numbers.outside(number)).unwrap_or(number).to_string()
}

fn copy_read_only(point: &Path, target: &Path, attributes: Attributes) -> io::Result<()> {
    mount::attach(mount::copy(point, Depth::Single)?.as_fd(), target)?;
    mount::restrict(target, attributes | Attributes::MOUNT_ATTR_RDONLY)
}

/// Covers a path of the calling thread's root, so that what the node has there cannot be reached.
pub(crate) fn mask(path: &Path, spec: RootSpec) -> Result<(), ContainerError> {
    let cover = || {
        let kind = match (fs::symlink_metadata(path), spec) {
            (Err(error), RootSpec::Overlay) if error.kind() == io::ErrorKind::NotFound => {
                // It would show through the overlay as soon as the node makes it.
                match fs::create_dir_all(path) {
                    // Where the node cannot make it, either.
                    Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => return Ok(()),
                    made => made?,
                }
                fs::symlink_metadata(path)?
            }
            // Nothing can be mounted over nothing, and nothing is made in the node's own root.
            (Err(error), RootSpec::Shared) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            (metadata, _) => metadata?,
        };
        let cover = match kind.is_dir() {
            true => mount::create("tmpfs", &[("size", "4k"), ("mode", "555")], Attributes::MOUNT_ATTR_RDONLY)?,
            false => mount::copy(Path::new("/dev/null"), Depth::Single)?,
        };
        mount::attach(cover.as_fd(), path)
    };
    cover().map_err(at("a cover", path))
}

/// The directory in which the container finds what was meant for it alone.
fn make_private_dir(users: Option<&Users>) -> Result<(), ContainerError> {
    let point = Path::new(PRIVATE_DIR);
    let make = || {
        fs::create_dir_all(point)?;
        let (size, root) = (PRIVATE_BYTES_MAX.to_string(), outside(users, 0));
        let options = [("source", mount::SOURCE), ("size", &*size), ("mode", "755"), ("uid", &*root), ("gid", &*root)];
        let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV;
        mount::attach(mount::create("tmpfs", &options, attributes)?.as_fd(), point)
    };
    make().map_err(at("the private directory", point))
}

fn at<'a>(what: &'static str, point: &'a Path) -> impl Fn(io::Error) -> ContainerError + 'a {
    move |cause| ContainerError::Mount { what, point: point.to_owned(), cause }
}
