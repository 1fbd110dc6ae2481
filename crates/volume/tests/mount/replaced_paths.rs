//! One node replaces a directory or a symbolic link, or changes permissions. The next call on the other node must use the
//! present path, although its kernel has cached the old one.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use farfork_cluster::catalog::Durability;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags, chmodat, chownat, fchmod,
    fgetxattr, fremovexattr, fsetxattr, fstat, getxattr, linkat, mkdirat, mknodat, openat, renameat, setxattr,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::set_thread_res_uid;

use super::mounted_volume::LOG_BYTES;
use super::test_node::NO_DETECTION_MS;
use super::volume_cluster::VolumeCluster;

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_path_leads_through_the_current_directory_of_a_name", path_through_directory),
    ("a_symbolic_link_leads_to_its_current_target", path_through_link),
    ("a_named_pipe_that_another_node_has_replaced_is_not_opened", replaced_named_pipe),
    ("attributes_are_changed_of_the_current_file_of_a_name", changed_attributes),
    ("permissions_that_another_node_has_changed_are_checked", changed_permissions),
    ("an_open_directory_that_another_node_has_renamed_stays_usable", renamed_open_directory),
    ("a_link_is_made_to_the_current_file_of_a_name", link_to_replaced_file),
    ("names_are_created_in_a_directory_that_another_node_has_removed_and_created", recreated_directory),
    ("a_sticky_directory_protects_the_file_that_another_node_has_put_there", replaced_file_in_sticky_directory),
    ("a_sticky_directory_protects_a_file_whose_owner_another_node_has_changed", changed_owner_in_sticky_directory),
    ("a_directory_that_another_node_has_protected_is_not_changed", protected_directory),
    ("a_file_loses_its_capabilities_when_its_owner_changes_it", capabilities_of_changed_file),
    ("a_user_who_has_lost_a_file_on_another_node_does_not_change_its_attributes", lost_ownership),
];

const ROUNDS: u32 = 20;
/// A user who is not root.
const USER: u32 = 1000;

pub(crate) fn mounted_pair() -> (VolumeCluster, PathBuf, PathBuf) {
    let cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
    let (here, there) = (cluster.path(0), cluster.path(1));
    (cluster, here, there)
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// A call in a directory, and a check whether the call was made in a directory.
type DirectoryCall = (&'static str, fn(&Path) -> io::Result<()>, fn(&Path) -> bool);

const DIRECTORY_CALLS: [DirectoryCall; 7] = [
    ("write", |at| fs::write(at.join("file"), "new"), |at| fs::read(at.join("file")).unwrap() == b"new"),
    ("create", |at| File::create_new(at.join("new")).map(drop), |at| at.join("new").exists()),
    ("mkdir", |at| fs::create_dir(at.join("new")), |at| at.join("new").exists()),
    ("symlink", |at| symlink("target", at.join("new")), |at| at.join("new").is_symlink()),
    ("link", |at| fs::hard_link(at.join("file"), at.join("new")), |at| at.join("new").exists()),
    ("unlink", |at| fs::remove_file(at.join("file")), |at| !at.join("file").exists()),
    ("rename", |at| fs::rename(at.join("file"), at.join("new")), |at| at.join("new").exists()),
];

fn path_through_directory() {
    let (_cluster, here, there) = mounted_pair();
    for (name, call, is_made) in DIRECTORY_CALLS {
        for round in 0..ROUNDS {
            let [top, other_top] = [&here, &there].map(|root| root.join(format!("{name}-{round}")));
            for directory in ["current", "next"] {
                fs::create_dir_all(top.join(directory)).unwrap();
                write(&top.join(directory).join("file"), directory);
            }
            assert_eq!(fs::read_to_string(other_top.join("current/file")).unwrap(), "current");
            assert_eq!(fs::read_dir(other_top.join("current")).unwrap().count(), 1);
            fs::rename(top.join("current"), top.join("previous")).unwrap();
            fs::rename(top.join("next"), top.join("current")).unwrap();
            let made = call(&other_top.join("current"));
            assert!(made.is_ok(), "{name}, round {round}: {made:?}");
            // Checked on the node that has made the call: on the other node, the kernel may answer stat(2) from its cache.
            let [current, previous] = ["current", "previous"].map(|directory| is_made(&other_top.join(directory)));
            assert!(current && !previous, "{name}, round {round}: {current} {previous}");
        }
    }
    for round in 0..ROUNDS {
        let [top, other_top] = [&here, &there].map(|root| root.join(format!("list-{round}")));
        for (directory, file) in [("current", "old"), ("next", "new")] {
            fs::create_dir_all(top.join(directory)).unwrap();
            write(&top.join(directory).join(file), file);
        }
        assert_eq!(fs::read_dir(other_top.join("current")).unwrap().count(), 1);
        fs::rename(top.join("current"), top.join("previous")).unwrap();
        fs::rename(top.join("next"), top.join("current")).unwrap();
        let current = other_top.join("current");
        let names = fs::read_dir(&current).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["new"], "round {round}");
    }
}

/// The kernel repeats no call that creates a name after ESTALE from the lookup of the name.
fn recreated_directory() {
    let (_cluster, here, there) = mounted_pair();
    let calls: [DirectoryCall; 5] = [
        ("mkdir", |at| fs::create_dir(at.join("new")), |at| at.join("new").exists()),
        ("symlink", |at| symlink("target", at.join("new")), |at| at.join("new").is_symlink()),
        ("link", |at| fs::hard_link(at.join("../../source"), at.join("new")), |at| at.join("new").exists()),
        ("link to file", |at| fs::hard_link(at.join("file"), at.join("../../target")), |at| at.join("file").exists()),
        ("read", |at| fs::read_to_string(at.join("file")).map(|text| assert_eq!(text, "new")), Path::exists),
    ];
    write(&here.join("source"), "data");
    for (name, call, is_made) in calls {
        for round in 0..ROUNDS {
            // In half of the rounds, the directory above is removed too.
            let removed = if round % 2 == 0 { "outer/inner" } else { "outer" };
            let (path, other_path) = (here.join("outer/inner"), there.join("outer/inner"));
            fs::create_dir_all(&path).unwrap();
            write(&path.join("file"), "old");
            assert_eq!(fs::read_to_string(other_path.join("file")).unwrap(), "old");
            fs::remove_dir_all(here.join(removed)).unwrap();
            fs::create_dir_all(&path).unwrap();
            write(&path.join("file"), "new");
            let made = call(&other_path);
            assert!(made.is_ok() && is_made(&other_path), "{name}, round {round}: {made:?}");
            fs::remove_dir_all(here.join("outer")).unwrap();
            let _ = fs::remove_file(there.join("target"));
        }
    }
}

/// The kernel opens named pipes itself, and sends no request.
fn replaced_named_pipe() {
    let (_cluster, here, there) = mounted_pair();
    for round in 0..ROUNDS {
        let [pipe, other_pipe] = [&here, &there].map(|root| root.join(format!("pipe-{round}")));
        let make_pipe = || mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let open = || openat(CWD, &other_pipe, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        make_pipe();
        open().unwrap();
        write(&here.join("next"), "file");
        fs::rename(here.join("next"), &pipe).unwrap();
        assert_eq!(
            FileType::from_raw_mode(fstat(open().unwrap()).unwrap().st_mode),
            FileType::RegularFile,
            "round {round}"
        );
        fs::remove_file(&pipe).unwrap();
        make_pipe();
        open().unwrap();
        fs::remove_file(&pipe).unwrap();
        assert_eq!(open().unwrap_err(), Errno::NOENT, "round {round}");
    }
}

/// A call that changes attributes of the file at a path.
type ChangeAtPath = (&'static str, fn(&Path) -> rustix::io::Result<()>);

const XATTR: &str = "user.changed";

const ATTRIBUTE_CALLS: [ChangeAtPath; 4] = [
    ("chmod", |path| chmodat(CWD, path, Mode::RUSR, AtFlags::empty())),
    ("chown", |path| chownat(CWD, path, Some(Uid::from_raw(USER)), None, AtFlags::empty())),
    ("utimensat", |path| utimensat(CWD, path, &set_times(1), AtFlags::empty())),
    ("setxattr", |path| setxattr(path, XATTR, b"new", XattrFlags::CREATE)),
];

fn has_changed_attributes(path: &Path) -> bool {
    let state = fs::metadata(path).unwrap();
    state.mode() & 0o777 == 0o400
        || state.uid() == USER
        || state.mtime() == 0
        || getxattr(path, XATTR, &mut [0; 20]).is_ok()
}

/// The other node has an open file with the name `current`, which then gets another name. The kernel sends the same request
/// for chmod(2) and fchmod(2).
fn changed_attributes() {
    let (_cluster, here, there) = mounted_pair();
    for (name, call) in ATTRIBUTE_CALLS {
        for round in 0..ROUNDS {
            let [top, other_top] = [&here, &there].map(|root| root.join(format!("{name}-{round}")));
            fs::create_dir(&top).unwrap();
            ["current", "next"].iter().for_each(|file| write(&top.join(file), file));
            let opened = File::open(other_top.join("current")).unwrap();
            fs::rename(top.join("current"), top.join("previous")).unwrap();
            fs::rename(top.join("next"), top.join("current")).unwrap();
            call(&other_top.join("current")).unwrap_or_else(|error| panic!("{name}, round {round}: {error}"));
            let [current, previous] = ["current", "previous"].map(|file| has_changed_attributes(&other_top.join(file)));
            assert!(current && !previous, "{name}, round {round}: {current} {previous}");
            fs::rename(top.join("previous"), top.join("moved")).unwrap();
            fchmod(&opened, Mode::RUSR).unwrap_or_else(|error| panic!("fchmod, round {round}: {error}"));
            fsetxattr(&opened, XATTR, b"new", XattrFlags::empty()).unwrap();
            assert!(has_changed_attributes(&other_top.join("moved")), "round {round}");
        }
    }
}

fn path_through_link() {
    let (_cluster, here, there) = mounted_pair();
    for round in 0..ROUNDS {
        let release = here.join(format!("release-{round}"));
        fs::create_dir(&release).unwrap();
        write(&release.join("file"), &round.to_string());
        symlink(format!("release-{round}"), here.join("next")).unwrap();
        fs::rename(here.join("next"), here.join("current")).unwrap();
        for _ in 0..2 {
            assert_eq!(fs::read_to_string(there.join("current/file")).unwrap(), round.to_string());
        }
    }
}

fn changed_permissions() {
    let (cluster, here, there) = mounted_pair();
    // Opened as root, because the user may not search the directories above the mount.
    let root = File::open(&there).unwrap();
    // Changes the user of this thread only.
    let open = |name: &str| {
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(1000), Uid::ROOT).unwrap();
        let opened = openat(&root, name, OFlags::RDONLY, Mode::empty()).map(drop);
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
        opened
    };
    let is_new_thread = Cell::new(false);
    let open_as_user = |name: &str| {
        is_new_thread.set(!is_new_thread.get());
        if is_new_thread.get() { thread::scope(|scope| scope.spawn(|| open(name)).join().unwrap()) } else { open(name) }
    };
    let set_mode = |name: &str, mode| fs::set_permissions(here.join(name), Permissions::from_mode(mode)).unwrap();
    fs::create_dir(here.join("folder")).unwrap();
    for round in 0..ROUNDS {
        let name = format!("folder/file-{round}");
        write(&here.join(&name), "secret");
        if round % 2 == 1 {
            // A file with two links has several paths.
            fs::hard_link(here.join(&name), here.join(format!("link-{round}"))).unwrap();
        }
        set_mode(&name, 0o644);
        assert_eq!(open_as_user(&name), Ok(()), "round {round}");
        for (changed, denied, permitted) in
            [(name.as_str(), 0o600, 0o644), ("folder", 0o700, 0o755), (".", 0o700, 0o755)]
        {
            set_mode(changed, denied);
            assert_eq!(open_as_user(&name), Err(Errno::ACCESS), "{changed}, round {round}");
            set_mode(changed, permitted);
            // The kernel itself refuses the call until it has the new mode.
            cluster.nodes[1].wait_for("the user may open the file", || open_as_user(&name).is_ok());
        }
    }
}

fn link_to_replaced_file() {
    let (_cluster, here, there) = mounted_pair();
    for round in 0..ROUNDS {
        let name = |text: &str| format!("{text}-{round}");
        write(&here.join(name("file")), "old");
        write(&here.join(name("next")), "new");
        assert_eq!(fs::read_to_string(there.join(name("file"))).unwrap(), "old");
        if round % 2 == 0 {
            // Otherwise, the old file is removed.
            fs::rename(here.join(name("file")), here.join(name("previous"))).unwrap();
        }
        fs::rename(here.join(name("next")), here.join(name("file"))).unwrap();
        fs::hard_link(there.join(name("file")), there.join(name("link"))).unwrap();
        assert_eq!(fs::read_to_string(there.join(name("link"))).unwrap(), "new", "round {round}");
    }
}

/// In a sticky directory, the kernel compares the user with the owner of the file that it knows by the name.
fn replaced_file_in_sticky_directory() {
    let (_cluster, here, there) = mounted_pair();
    let (user, root) = (Uid::from_raw(1000), File::open(&there).unwrap());
    for round in 0..ROUNDS {
        let name = format!("directory-{round}");
        fs::create_dir(here.join(&name)).unwrap();
        fs::set_permissions(here.join(&name), Permissions::from_mode(0o1777)).unwrap();
        let [removed, replaced, source] = ["removed", "replaced", "source"].map(|file| format!("{name}/{file}"));
        for file in [&removed, &replaced, &source] {
            write(&here.join(file), "of the user");
            chown(here.join(file), Some(user.as_raw()), None).unwrap();
            assert_eq!(fs::read_to_string(there.join(file)).unwrap(), "of the user");
        }
        for file in [&removed, &replaced] {
            write(&here.join("next"), "of root");
            fs::rename(here.join("next"), here.join(file)).unwrap();
        }
        set_thread_res_uid(Uid::ROOT, user, Uid::ROOT).unwrap();
        let results = (unlinkat(&root, &removed, AtFlags::empty()), renameat(&root, &source, &root, &replaced));
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
        assert_eq!(results, (Err(Errno::PERM), Err(Errno::PERM)), "round {round}");
    }
}

/// Calls as a user who is not root, in this thread only.
pub(crate) fn as_user<T>(call: impl FnOnce() -> T) -> T {
    set_thread_res_uid(Uid::ROOT, Uid::from_raw(USER), Uid::ROOT).unwrap();
    let result = call();
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
    result
}

/// Before write(2) and chown(2), the kernel removes the capabilities with the credentials of the program.
fn capabilities_of_changed_file() {
    const NAME: &str = "security.capability";
    // `struct vfs_cap_data` of <linux/capability.h>, revision 2: CAP_NET_RAW is permitted and effective.
    let mut capabilities = [0; 20];
    (capabilities[0], capabilities[3], capabilities[5]) = (1, 2, 0x20);
    let (cluster, here, there) = mounted_pair();
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        let (path, other) = (here.join(&name), there.join(&name));
        write(&path, "data");
        chown(&path, Some(USER), None).unwrap();
        assert_eq!(fs::metadata(&other).unwrap().uid(), USER);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        setxattr(&path, NAME, &capabilities, XattrFlags::empty()).unwrap();
        cluster.nodes[1].wait_for("the kernel has the mode", || fs::metadata(&other).unwrap().mode() & 0o777 == 0o640);
        assert_eq!(getxattr(&other, NAME, &mut [0; 20]), Ok(20));
        let file = OpenOptions::new().write(true).open(&other).unwrap();
        if round % 2 == 0 {
            as_user(|| file.write_all_at(b"changed", 0)).unwrap();
        } else {
            as_user(|| chown(&other, None, Some(0))).unwrap();
        }
        for path in [&other, &path] {
            assert_eq!(File::open(path).map(|file| fgetxattr(file, NAME, &mut [0; 20])).unwrap(), Err(Errno::NODATA));
        }
    }
}

/// The kernel does not request the owner of a file that it removes.
fn changed_owner_in_sticky_directory() {
    let (_cluster, here, there) = mounted_pair();
    let root = File::open(&there).unwrap();
    for round in 0..ROUNDS {
        let name = format!("directory-{round}");
        fs::create_dir(here.join(&name)).unwrap();
        fs::set_permissions(here.join(&name), Permissions::from_mode(0o1777)).unwrap();
        let [file, folder, source] = ["file", "folder", "source"].map(|entry| format!("{name}/{entry}"));
        write(&here.join(&file), "of the user");
        write(&here.join(&source), "of the user");
        fs::create_dir(here.join(&folder)).unwrap();
        for entry in [&file, &folder, &source] {
            chown(here.join(entry), Some(USER), None).unwrap();
            fs::metadata(there.join(entry)).unwrap();
        }
        for entry in [&file, &folder] {
            chown(here.join(entry), Some(0), None).unwrap();
        }
        let results = as_user(|| {
            [
                unlinkat(&root, &file, AtFlags::empty()),
                unlinkat(&root, &folder, AtFlags::REMOVEDIR),
                renameat(&root, &file, &root, format!("{name}/moved")),
                renameat(&root, &source, &root, &file),
            ]
        });
        assert_eq!(results, [Err(Errno::PERM); 4], "round {round}");
        unlinkat(&root, &file, AtFlags::empty()).unwrap();
    }
}

/// A call that changes a directory, with a name that is relative to the root of the volume.
type EntryCall = (&'static str, fn(&File, &str) -> rustix::io::Result<()>);

fn protected_directory() {
    let (cluster, here, there) = mounted_pair();
    let root = File::open(&there).unwrap();
    let calls: [EntryCall; 4] = [
        ("mkdir", |root, name| mkdirat(root, name, Mode::RWXU)),
        ("symlink", |root, name| symlinkat("target", root, name)),
        ("link", |root, name| linkat(root, "file", root, name, AtFlags::empty())),
        ("unlink", |root, name| unlinkat(root, format!("{name}-removed"), AtFlags::empty())),
    ];
    write(&here.join("file"), "data");
    chown(here.join("file"), Some(USER), None).unwrap();
    fs::create_dir(here.join("folder")).unwrap();
    let set_mode = |mode| fs::set_permissions(here.join("folder"), Permissions::from_mode(mode)).unwrap();
    for round in 0..ROUNDS {
        for (call_name, call) in calls {
            // The kernel of the other node does not know the name: its lookup brings the new mode.
            let name = format!("folder/{call_name}-{round}");
            set_mode(0o777);
            write(&here.join(format!("{name}-removed")), "data");
            cluster.nodes[1].wait_for("the kernel has the mode", || {
                fs::metadata(there.join("folder")).unwrap().permissions().mode() & 0o777 == 0o777
            });
            set_mode(0o755);
            assert_eq!(as_user(|| call(&root, &name)), Err(Errno::ACCESS), "{call_name}, round {round}");
            call(&root, &name).unwrap_or_else(|error| panic!("{call_name} of root, round {round}: {error}"));
        }
    }
}

/// A call that changes attributes of a file: its name is relative to the root of the volume, and it is open for reading.
type AttributeCall = (&'static str, Errno, fn(&File, &str, &File) -> rustix::io::Result<()>);

fn lost_ownership() {
    const XATTR: &str = "user.name";
    let (cluster, here, there) = mounted_pair();
    let root = File::open(&there).unwrap();
    let calls: [AttributeCall; 8] = [
        ("link", Errno::PERM, |root, name, file| {
            // The kernel looks up no name of the file.
            let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, opened, root, format!("links/{name}"), AtFlags::SYMLINK_FOLLOW)
        }),
        ("chmod", Errno::PERM, |root, name, _| chmodat(root, name, Mode::RUSR, AtFlags::empty())),
        ("fchmod", Errno::PERM, |_, _, file| fchmod(file, Mode::RUSR)),
        ("chgrp", Errno::PERM, |root, name, _| chownat(root, name, None, Some(Gid::ROOT), AtFlags::empty())),
        ("utimensat", Errno::PERM, |root, name, _| utimensat(root, name, &set_times(7), AtFlags::empty())),
        ("touch", Errno::ACCESS, |root, name, _| utimensat(root, name, &set_times(UTIME_NOW), AtFlags::empty())),
        ("setxattr", Errno::ACCESS, |_, _, file| fsetxattr(file, XATTR, b"value", XattrFlags::empty())),
        ("removexattr", Errno::ACCESS, |_, _, file| fremovexattr(file, XATTR)),
    ];
    fs::create_dir(here.join("links")).unwrap();
    fs::set_permissions(here.join("links"), Permissions::from_mode(0o777)).unwrap();
    let protects_hard_links = fs::read("/proc/sys/fs/protected_hardlinks").unwrap().trim_ascii() != b"0";
    for round in 0..ROUNDS {
        for (call_name, expected, call) in calls {
            if call_name == "link" && !protects_hard_links {
                continue;
            }
            let name = format!("{call_name}-{round}");
            write(&here.join(&name), "data");
            let created = File::open(here.join(&name)).unwrap();
            fsetxattr(&created, XATTR, b"value", XattrFlags::empty()).unwrap();
            chown(here.join(&name), Some(USER), None).unwrap();
            let file = File::open(there.join(&name)).unwrap();
            cluster.nodes[1].wait_for("the kernel has the owner", || file.metadata().unwrap().uid() == USER);
            chown(here.join(&name), Some(0), None).unwrap();
            assert_eq!(as_user(|| call(&root, &name, &file)), Err(expected), "{call_name}, round {round}");
            call(&root, &name, &file).unwrap_or_else(|error| panic!("{call_name} of root, round {round}: {error}"));
        }
    }
}

/// Both timestamps, with these nanoseconds.
pub(crate) fn set_times(nanoseconds: i64) -> Timestamps {
    let time = Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    Timestamps { last_access: time, last_modification: time }
}

/// The kernel does not look up a directory that a program has open.
fn renamed_open_directory() {
    let (_cluster, here, there) = mounted_pair();
    fs::create_dir(here.join("directory-0")).unwrap();
    write(&here.join("directory-0/file"), "data");
    let directory = File::open(there.join("directory-0")).unwrap();
    let is_same = |name: &str| fs::read(there.join(name)).unwrap() == b"data";
    for round in 0..ROUNDS {
        let name = |number: u32| format!("directory-{number}");
        fs::rename(here.join(name(round)), here.join(name(round + 1))).unwrap();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let path = format!("new-{round}");
        drop(openat(&directory, &path, flags, Mode::RUSR).unwrap());
        drop(openat(&directory, &path, OFlags::RDONLY, Mode::empty()).unwrap());
        mkdirat(&directory, format!("folder-{round}"), Mode::RWXU).unwrap();
        linkat(&directory, "file", &directory, "link", AtFlags::empty()).unwrap();
        renameat(&directory, "link", &directory, "moved").unwrap();
        unlinkat(&directory, "moved", AtFlags::empty()).unwrap();
        assert!(is_same(&format!("{}/file", name(round + 1))), "round {round}");
        assert!(here.join(name(round + 1)).join(path).exists(), "round {round}");
    }
}
