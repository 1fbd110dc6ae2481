//! Calls that programs depend on, one test per kind.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, fallocate, renameat_with, seek};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::mounted_volume::MountedVolume;
use super::replaced_paths::as_user;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("written_data_is_read_after_a_remount", written_data_is_read_after_a_remount),
    ("every_kind_of_rename_works", every_kind_of_rename_works),
    ("an_unlinked_file_stays_while_it_is_open", an_unlinked_file_stays_while_it_is_open),
    ("holes_are_found_and_read_as_zeroes", holes_are_found_and_read_as_zeroes),
    ("a_shared_mapping_is_written_back", a_shared_mapping_is_written_back),
    ("a_file_larger_than_the_log_is_copied", a_file_larger_than_the_log_is_copied),
    ("the_shared_directory_is_an_ordinary_tree", the_shared_directory_is_an_ordinary_tree),
    (
        "a_file_loses_its_privileges_when_a_user_allocates_space",
        a_file_loses_its_privileges_when_a_user_allocates_space,
    ),
    ("writes_and_owners_change_privileges_as_on_tmpfs", writes_and_owners_change_privileges_as_on_tmpfs),
    ("blocks_are_counted_without_holes", blocks_are_counted_without_holes),
    ("flags_of_open_are_honoured", flags_of_open_are_honoured),
    ("names_up_to_the_longest_are_accepted", names_up_to_the_longest_are_accepted),
    ("thousands_of_files_are_open_at_a_time", thousands_of_files_are_open_at_a_time),
    ("a_volume_is_mounted_once", a_volume_is_mounted_once),
    ("a_holder_of_an_unmounted_volume_is_named", a_holder_of_an_unmounted_volume_is_named),
    ("a_mount_below_stays_when_the_volume_is_unmounted", a_mount_below_stays_when_the_volume_is_unmounted),
    ("an_attribute_that_no_file_system_keeps_is_refused", an_attribute_that_no_file_system_keeps_is_refused),
    ("a_time_before_1970_is_kept", a_time_before_1970_is_kept),
];

fn written_data_is_read_after_a_remount() {
    let mut volume = MountedVolume::create();
    let root = volume.path();
    fs::create_dir(root.join("directory")).unwrap();
    fs::write(root.join("directory/file"), b"contents").unwrap();
    std::os::unix::fs::symlink("directory/file", root.join("symlink")).unwrap();
    fs::hard_link(root.join("directory/file"), root.join("link")).unwrap();
    fs::set_permissions(root.join("link"), fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(root.join("link")).unwrap();
    volume.unmount();
    assert!(!root.join("link").exists(), "the volume is unmounted");
    volume.mount();
    assert_eq!(fs::read(root.join("symlink")).unwrap(), b"contents");
    let after = fs::metadata(root.join("link")).unwrap();
    let state = |m: &fs::Metadata| (m.ino(), m.nlink(), m.mode(), m.size(), m.mtime_nsec(), m.ctime_nsec());
    assert_eq!(state(&after), state(&before));
    assert_eq!(after.nlink(), 2);
}

fn every_kind_of_rename_works() {
    let volume = MountedVolume::create();
    let path = |name: &str| volume.path().join(name);
    let rename = |old: &str, new: &str, flags| renameat_with(CWD, path(old), CWD, path(new), flags);
    fs::write(path("a"), "a").unwrap();
    fs::write(path("b"), "b").unwrap();
    fs::create_dir(path("d")).unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("a", "c", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    rename("a", "d", RenameFlags::EXCHANGE).unwrap();
    assert!(path("a").is_dir());
    assert_eq!(fs::read(path("d")).unwrap(), b"a");
    assert_eq!(rename("a", "b", RenameFlags::empty()), Err(Errno::NOTDIR));
    assert_eq!(rename("b", "a", RenameFlags::empty()), Err(Errno::ISDIR));
    rename("d", "b", RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(path("b")).unwrap(), b"a");
    fs::create_dir(path("a/inner")).unwrap();
    assert_eq!(rename("a", "a/inner/x", RenameFlags::empty()), Err(Errno::INVAL));
    fs::create_dir(path("e")).unwrap();
    assert_eq!(rename("e", "a", RenameFlags::empty()), Err(Errno::NOTEMPTY));
    rename("a/inner", "e", RenameFlags::empty()).unwrap();
    assert_eq!((fs::metadata(path("a")).unwrap().nlink(), fs::metadata(volume.path()).unwrap().nlink()), (2, 4));
}

fn an_unlinked_file_stays_while_it_is_open() {
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"before ").unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"after").unwrap();
    fs::write(&path, b"another").unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), ("before after", 0));
}

fn holes_are_found_and_read_as_zeroes() {
    const MIB: u64 = 1 << 20;
    let mut volume = MountedVolume::create();
    let path = volume.path().join("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[1; 4096], 2 * MIB).unwrap();
    file.set_len(4 * MIB).unwrap();
    let check = |file: &File| {
        assert_eq!(seek(file, SeekFrom::Data(0)), Ok(2 * MIB));
        assert_eq!(seek(file, SeekFrom::Hole(2 * MIB)), Ok(2 * MIB + 4096));
        assert_eq!(seek(file, SeekFrom::Data(3 * MIB)), Err(Errno::NXIO));
        assert_eq!(seek(file, SeekFrom::Hole(3 * MIB)), Ok(3 * MIB));
        let mut bytes = [9; 8192];
        file.read_exact_at(&mut bytes, 2 * MIB - 4096).unwrap();
        assert!(bytes[..4096] == [0; 4096] && bytes[4096..] == [1; 4096]);
    };
    check(&file);
    drop(file);
    volume.unmount();
    volume.mount();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    check(&file);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 2 * MIB, 4096).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO));
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
}

fn a_shared_mapping_is_written_back() {
    let mut volume = MountedVolume::create();
    let path = volume.path().join("mapped");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(64 << 10).unwrap();
    let mapping = farfork_sys::shared_mapping::SharedMapping::map_file(&file, 64 << 10).unwrap();
    mapping.store(5000, b"through the mapping");
    let mut bytes = [0; 19];
    file.read_exact_at(&mut bytes, 5000).unwrap();
    assert_eq!(&bytes, b"through the mapping");
    file.write_all_at(b"through the file", 9000).unwrap();
    let mut bytes = [0; 16];
    mapping.load(9000, &mut bytes);
    assert_eq!(&bytes, b"through the file");
    file.sync_all().unwrap();
    drop((mapping, file));
    volume.unmount();
    volume.mount();
    assert_eq!(&fs::read(&path).unwrap()[5000..5019], b"through the mapping");
}

fn a_file_larger_than_the_log_is_copied() {
    let volume = MountedVolume::create();
    let mut random = fastrand::Rng::with_seed(1);
    let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(30 << 20).collect();
    fs::write(volume.path().join("large"), &data).unwrap();
    assert!(fs::read(volume.path().join("large")).unwrap() == data);
}

fn the_shared_directory_is_an_ordinary_tree() {
    let mut volume = MountedVolume::create();
    fs::create_dir(volume.path().join("directory")).unwrap();
    let file = File::create(volume.path().join("directory/file")).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o604)).unwrap();
    std::os::unix::fs::fchown(&file, Some(12), Some(34)).unwrap();
    file.write_all_at(b"ordinary", 0).unwrap();
    drop(file);
    volume.unmount();
    let published = volume.volume_path().join("shared/tree/directory/file");
    // The host worker may be publishing the file. It creates the file, and then also writes the data without a mount.
    let mut is_created = false;
    volume.wait_for("the file is published whole or not at all", || {
        let found = match fs::read(&published) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            found => Some(found.unwrap()),
        };
        let has_vanished = found.is_none() && is_created;
        is_created = found.is_some();
        assert!(!has_vanished && matches!(found.as_deref(), None | Some(b"" | b"ordinary")), "{found:?}");
        found.is_none_or(|content| !content.is_empty())
    });
    volume.mount();
    assert_eq!(fs::read(&published).unwrap(), b"ordinary");
    let state = fs::metadata(&published).unwrap();
    assert_eq!((state.mode() & 0o7777, state.uid(), state.gid()), (0o604, 12, 34));
}

/// As on ext4. Set-group-ID without execution by the group is no privilege.
fn a_file_loses_its_privileges_when_a_user_allocates_space() {
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    let file = File::create(&path).unwrap();
    for flags in [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
    ] {
        for (mode, expected) in [(0o6755, 0o755), (0o6745, 0o2745)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = || fs::metadata(&path).unwrap().mode() & 0o7777;
            fallocate(&file, flags, 0, 4096).unwrap();
            assert_eq!(found(), mode, "{flags:?} of root");
            as_user(|| fallocate(&file, flags, 0, 4096)).unwrap();
            assert_eq!(found(), expected, "{flags:?} of a user");
        }
    }
}

/// A call that changes data, size or owner of a file. The last argument is a file to copy from.
type FileChange = fn(&File, &File) -> rustix::io::Result<()>;

/// The mode and whether the file has capabilities, after a call on a file with this mode. Reads the mode alone: the kernel
/// caches it longer than the size.
fn privileges_after(path: &Path, mode: u32, flags: i32, is_user: bool, change: FileChange) -> (u16, bool) {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let source = File::open(path.with_file_name("source")).unwrap();
    fs::write(path, [1; 8192]).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    rustix::fs::setxattr(path, "security.capability", &capability, rustix::fs::XattrFlags::empty()).unwrap();
    let mode_of = || rustix::fs::statx(CWD, path, rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::MODE);
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
    assert_eq!(u32::from(mode_of().unwrap().stx_mode) & 0o7777, mode);
    let call = || change(&file, &source).unwrap();
    if is_user {
        as_user(call)
    } else {
        call()
    }
    let has_capabilities = rustix::fs::getxattr(path, "security.capability", &mut [0; 64]).is_ok();
    (mode_of().unwrap().stx_mode & 0o7777, has_capabilities)
}

/// Each call on a file of the own group and of another group, by root and by a user.
fn writes_and_owners_change_privileges_as_on_tmpfs() {
    const DIRECT: i32 = 0o40000;
    let changes: [(&str, i32, FileChange); 8] = [
        ("write", 0, |file, _| rustix::io::pwrite(file, b"x", 5).map(drop)),
        ("append", 0o2000, |file, _| rustix::io::write(file, b"x").map(drop)),
        ("direct write", DIRECT, |file, _| rustix::io::pwrite(file, &AlignedPage([2; 4096]).0, 4096).map(drop)),
        ("truncate", 0, |file, _| rustix::fs::ftruncate(file, 3)),
        ("allocate", 0, |file, _| fallocate(file, FallocateFlags::empty(), 0, 100_000)),
        ("punch", 0, |file, _| fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 100)),
        ("copy", 0, |file, source| rustix::fs::copy_file_range(source, None, file, None, 10).map(drop)),
        ("chown", 0, |file, _| match rustix::fs::fchown(file, None, None) {
            Err(Errno::PERM) => Ok(()),
            result => result,
        }),
    ];
    let (volume, tmpfs) = (MountedVolume::create(), tempfile::tempdir_in("/dev/shm").unwrap());
    for root in [volume.path(), tmpfs.path().to_owned()] {
        fs::write(root.join("source"), [3; 100]).unwrap();
        File::create(root.join("file")).unwrap();
    }
    for group in [0, 54_321] {
        for root in [volume.path(), tmpfs.path().to_owned()] {
            std::os::unix::fs::chown(root.join("file"), None, Some(group)).unwrap();
        }
        for (name, flags, change) in changes {
            for mode in [0o755, 0o6777, 0o4755, 0o2775, 0o2766, 0o6766] {
                for is_user in [false, true] {
                    let [mut found, expected] = [volume.path(), tmpfs.path().to_owned()]
                        .map(|root| privileges_after(&root.join("file"), mode, flags, is_user, change));
                    if is_user && name == "chown" {
                        // The kernel removes the capabilities before the client can refuse the call.
                        found.1 = expected.1;
                    }
                    assert_eq!(found, expected, "{name}, mode {mode:o}, group {group}, as a user: {is_user}");
                }
            }
        }
    }
}

/// A buffer for O_DIRECT.
#[repr(align(4096))]
struct AlignedPage([u8; 4096]);

fn blocks_are_counted_without_holes() {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    let mut volume = MountedVolume::create();
    let (path, dense) = (volume.path().join("sparse"), volume.path().join("dense"));
    let file = File::create(&path).unwrap();
    file.set_len(9 * GIB).unwrap();
    file.write_all_at(&[1; 10_000], 4 * GIB - 5000).unwrap();
    drop(file);
    fs::write(&dense, vec![1; MIB as usize]).unwrap();
    let taken = |path: &Path| fs::metadata(path).unwrap().blocks() * 512;
    for is_remounted in [false, true] {
        let found = taken(&path);
        assert!((8192..=16 << 10).contains(&found), "{found} bytes, after a remount: {is_remounted}");
        assert!((MIB..=MIB + 8192).contains(&taken(&dense)), "{} bytes", taken(&dense));
        if !is_remounted {
            volume.unmount();
            volume.mount();
        }
    }
    let file = OpenOptions::new().write(true).open(&dense).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4 * MIB).unwrap();
    assert!(taken(&dense) >= 4 * MIB);
}

fn flags_of_open_are_honoured() {
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    fs::write(&path, b"one").unwrap();
    let error = OpenOptions::new().write(true).create_new(true).open(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::EXIST.raw_os_error()));
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    fs::write(&path, b"longer").unwrap();
    appending.write_all(b" end").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"longer end");
    let direct = 0o40000;
    let aligned = OpenOptions::new().read(true).custom_flags(direct).open(&path);
    assert!(aligned.is_ok(), "O_DIRECT: {aligned:?}");
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC");
}

fn thousands_of_files_are_open_at_a_time() {
    const FILES: usize = 3_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let mut volume = MountedVolume::create();
    let path = |volume: &MountedVolume, index: usize| volume.path().join(index.to_string());
    (0..FILES).for_each(|index| fs::write(path(&volume, index), index.to_string()).unwrap());
    volume.unmount();
    volume.mount();
    let mut files: Vec<File> = (0..FILES).map(|index| File::open(path(&volume, index)).unwrap()).collect();
    for (index, file) in files.iter_mut().enumerate() {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, index.to_string());
    }
}

fn a_volume_is_mounted_once() {
    let volume = MountedVolume::create();
    let text = refusal_of_second_mount(&volume);
    let point = volume.path().canonicalize().unwrap();
    let expected = format!("is mounted on this node already, at {}: unmount it first", point.display());
    assert!(text.contains(&expected), "{text}");
    fs::write(volume.path().join("file"), b"still mounted").unwrap();
}

/// A process with its own mount namespace keeps the volume mounted after umount(2).
fn a_holder_of_an_unmounted_volume_is_named() {
    let volume = MountedVolume::create();
    let point = volume.path().canonicalize().unwrap();
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "sh", "-c", "echo; read _"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    unmount(&point, UnmountFlags::empty()).unwrap();
    let text = refusal_of_second_mount(&volume);
    let pid = holder.id();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    for part in [format!("process {pid} (sh)"), format!("nsenter --mount --target {pid} umount {}", point.display())] {
        assert!(text.contains(&part), "no `{part}` in {text}");
    }
}

/// The error of another client of the volume.
fn refusal_of_second_mount(volume: &MountedVolume) -> String {
    let other = volume.local_path().join("other");
    fs::create_dir(&other).unwrap();
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args([super::PROCESS, "client"]).arg(volume.store()).arg(&other);
    let output = client.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names_up_to_the_longest_are_accepted() {
    let mut volume = MountedVolume::create();
    let longest = "n".repeat(255);
    fs::write(volume.path().join(&longest), b"x").unwrap();
    let error = fs::write(volume.path().join("n".repeat(256)), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    volume.unmount();
    volume.mount();
    let names: Vec<_> = fs::read_dir(volume.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [longest.as_str()]);
}

fn a_mount_below_stays_when_the_volume_is_unmounted() {
    let mut volume = MountedVolume::create();
    volume.unmount();
    let path = volume.path();
    rustix::mount::mount("below", &path, "tmpfs", rustix::mount::MountFlags::empty(), c"").unwrap();
    fs::write(path.join("below"), b"another mount").unwrap();
    volume.mount();
    assert!(!path.join("below").exists());
    volume.unmount();
    let found = fs::read(path.join("below"));
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(found.unwrap(), b"another mount");
}

fn an_attribute_that_no_file_system_keeps_is_refused() {
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    fs::write(&path, b"x").unwrap();
    let set = |name: &str| rustix::fs::setxattr(&path, name, b"1", rustix::fs::XattrFlags::empty());
    for name in ["bogus.x", "user.", "trusted.farfork.inode"] {
        assert_eq!(set(name), Err(Errno::OPNOTSUPP), "{name}");
    }
    set("user.kept").unwrap();
}

fn a_time_before_1970_is_kept() {
    let volume = MountedVolume::create();
    let path = volume.path().join("file");
    let file = File::create(&path).unwrap();
    let before = UNIX_EPOCH - Duration::new(6, 999_999_997);
    file.set_times(FileTimes::new().set_modified(before).set_accessed(before)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-7, 3));
    assert_eq!(metadata.accessed().unwrap(), before);
}
