//! The descriptor of a process that has one resource of each kind.

use std::os::unix::fs::MetadataExt;

use farfork_fork::capture::{self, CaptureOptions, CapturedTree};
use farfork_fork::file_identity::{self, CHANGED_MARKER_NS};
use farfork_sys::clock;
use farfork_wire::descriptor::{
    Backing, Descriptor, EpollTarget, ExtentId, FileIdentity, OpenFile, PageRun, StandardStream, decode, encode,
};
use tempfile::TempDir;

use crate::harness::{Parent, known, mapping_at, options, word};

struct ContentScene {
    parent: Parent,
    directory: TempDir,
    captured: CapturedTree,
}

fn scene(freeze: bool) -> ContentScene {
    let directory = TempDir::new().unwrap();
    let parent = Parent::start("resources", &[directory.path().to_str().unwrap()]);
    let captured = capture::capture_blocking(parent.pid(), CaptureOptions { freeze, ..options() }).unwrap();
    ContentScene { parent, directory, captured }
}

impl ContentScene {
    fn descriptor(&self) -> &Descriptor {
        &self.captured.descriptor
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn open_file(&self, number: u64) -> (u32, &OpenFile, bool) {
        let found = self.descriptor().file_descriptors.iter().find(|fd| u64::from(fd.number) == number).unwrap();
        (found.open_file, &self.descriptor().open_files[found.open_file as usize], found.close_on_exec)
    }

    fn told_file(&self, name: &str) -> &OpenFile {
        self.open_file(self.parent.reported(name)).1
    }

    fn backing(&self, name: &str) -> Backing {
        mapping_at(self.descriptor(), self.parent.reported(name)).backing
    }

    fn populated(&self, id: ExtentId) -> Vec<(u64, u64)> {
        let runs = &self.descriptor().extents[id.0 as usize].populated;
        runs.iter().map(|PageRun { first, count }| (*first, *count)).collect()
    }

    fn anonymous(&self, name: &str) -> Option<Vec<(u64, u64)>> {
        let Backing::Anonymous { extent } = self.backing(name) else { panic!("{name}: {:?}", self.backing(name)) };
        extent.map(|id| self.populated(id))
    }
}

#[test]
fn a_captured_descriptor_is_decoded_as_encoded() {
    let scene = scene(false);
    assert_eq!(decode(&encode(scene.descriptor()).unwrap()).unwrap(), *scene.descriptor());
}

#[test]
fn files_keep_paths_offsets_and_sharing() {
    let scene = scene(false);
    const O_APPEND: u32 = 0o2000;
    let regular = OpenFile::Regular { path: scene.path("regular"), flags: 0o100_002 | O_APPEND, offset: 4 };
    assert_eq!(*scene.told_file("regular"), regular);
    let (twin, _, closes) = scene.open_file(scene.parent.reported("twin"));
    assert_eq!(
        (twin, closes),
        (scene.open_file(scene.parent.reported("regular")).0, true),
        "duplicates share one file"
    );
    assert!(matches!(scene.told_file("directory"), OpenFile::Directory { path, .. }
        if path == scene.directory.path().to_str().unwrap()));
    assert!(matches!(scene.told_file("urandom"), OpenFile::Device { path, .. } if path == "/dev/urandom"));
    assert!(matches!(scene.told_file("eventfd"), OpenFile::EventFd { count: 0x123, semaphore: true, .. }));
    assert!(scene.open_file(scene.parent.reported("eventfd")).2);
}

#[test]
fn pipes_and_epolls_are_captured_completely() {
    let scene = scene(false);
    let OpenFile::Pipe { pipe, is_write_end: false, content, capacity, flags, .. } = scene.told_file("pipe_read")
    else {
        panic!("{:?}", scene.told_file("pipe_read"))
    };
    assert_eq!((content.as_slice(), *capacity, flags & 0o4000), (&b"in the pipe"[..], 65536, 0o4000));
    assert!(matches!(scene.told_file("pipe_write"), OpenFile::Pipe { pipe: other, is_write_end: true, content, .. }
        if other == pipe && content.is_empty()));
    let OpenFile::Epoll { targets, .. } = scene.told_file("epoll") else { panic!() };
    let number = scene.parent.reported("pipe_read") as u32;
    // EPOLLET and EPOLLIN, and the EPOLLERR and EPOLLHUP that the kernel adds to every registration.
    assert_eq!(*targets, [EpollTarget { number, events: 0x8000_0019, data: 0xfeed_face_cafe }]);
}

#[test]
fn standard_streams_and_their_duplicates_are_captured_as_such() {
    let scene = scene(false);
    let streams: Vec<&OpenFile> = (0..3).map(|number| scene.open_file(number).1).collect();
    let standard = OpenFile::StandardStream;
    use StandardStream::{Error, Input, Output};
    assert_eq!(streams, [&standard(Input), &standard(Output), &standard(Error)]);
    assert_eq!(*scene.told_file("stderr_twin"), standard(Error));
}

#[test]
fn shared_memory_is_copied() {
    for freeze in [false, true] {
        let scene = scene(freeze);
        let Backing::SharedMemory { object, offset: 0 } = scene.backing("shared") else { panic!() };
        let copy = &scene.captured.shared_copies[object as usize];
        let mut bytes = [0; 8];
        copy.read_at(2 * 4096, &mut bytes);
        assert_eq!((copy.bytes(), u64::from_ne_bytes(bytes)), (4 * 4096, 0x5a5a));

        let OpenFile::MemFd { object, offset: 77, .. } = *scene.told_file("memfd") else { panic!() };
        assert!(matches!(scene.backing("memfd_map"), Backing::SharedMemory { object: mapped, .. } if mapped == object));
        let described = &scene.descriptor().shared_objects[object as usize];
        const SEAL_SHRINK: u32 = 2;
        assert_eq!((described.name.as_str(), described.bytes, described.seals), ("named", 40965, Some(SEAL_SHRINK)));
        assert_eq!(scene.populated(described.extent), [(9, 1)]);
        let mut far = [0; 3];
        scene.captured.shared_copies[object as usize].read_at(9 * 4096, &mut far);
        assert_eq!(&far, b"far");
    }
}

#[test]
fn private_memory_is_captured_as_fork_would_copy_it() {
    for freeze in [false, true] {
        let scene = scene(freeze);
        let dontfork = scene.parent.reported("dontfork");
        let unforked = mapping_at(scene.descriptor(), dontfork);
        assert!(unforked.flags.dont_fork && scene.anonymous("dontfork").unwrap() == [(0, 1)]);
        let wiped = mapping_at(scene.descriptor(), scene.parent.reported("wipeonfork"));
        assert!(wiped.flags.wipe_on_fork && wiped.backing == Backing::Anonymous { extent: None });
        let sparse = mapping_at(scene.descriptor(), scene.parent.reported("sparse"));
        assert!(sparse.flags.no_reserve);
        let offset = (scene.parent.reported("sparse") - sparse.start) / 4096;
        let holds = |page: u64| {
            let runs = scene.anonymous("sparse").unwrap();
            runs.iter().any(|(first, count)| (*first..first + count).contains(&(offset + page)))
        };
        let populated: Vec<u64> = (0..100).filter(|page| holds(*page)).collect();
        assert_eq!(populated, [10, 11, 50], "the zero page holds nothing");
        assert_eq!(mapping_at(scene.descriptor(), scene.parent.reported("noaccess")).protection, 0);
    }
}

#[test]
fn unwritten_file_mappings_are_captured_as_files() {
    let scene = scene(false);
    let Backing::PrivateFile { file, offset: 0, extent } = scene.backing("clean") else { panic!() };
    let file = &scene.descriptor().mapped_files[file as usize];
    let metadata = std::fs::metadata(scene.path("clean")).unwrap();
    assert_eq!((&file.path, file.identity.inode), (&scene.path("clean"), metadata.ino()));
    assert_eq!((file.identity.device, file.identity.bytes), (metadata.dev(), 3 * 4096));
    assert_eq!(scene.populated(extent), [(0, 3)], "no pages after the end of the file");

    assert_eq!(scene.anonymous("written"), Some(vec![(0, 4)]));
    let (template, written) = (scene.captured.template.pid(), scene.parent.reported("written"));
    assert_eq!((word(template, written + 2 * 4096), word(template, written + 3 * 4096)), (0x77, known(3)));
    assert_eq!(scene.anonymous("deleted"), Some(vec![(0, 2)]));
    assert!(matches!(scene.backing("by_path"), Backing::SharedFile { writable: true, .. }));
    let exe = scene.descriptor().mapped_files.iter().find(|file| file.path == scene.descriptor().process.exe);
    assert_eq!(exe.unwrap().identity.build_id.as_ref().unwrap().len(), 20);
}

/// On Linux 6.13 and later, file times are up to a clock tick ahead of the coarse clock. On earlier kernels, the program's
/// file may have the time of the stop. Such a round is skipped.
#[test]
fn a_program_written_just_before_prepare_is_unchanged() {
    let directory = TempDir::new().unwrap();
    for round in 0..50 {
        let parent = Parent::start_new_copy("memory", &["1", "0"], directory.path());
        let changed_ns = file_identity::stat_path_identity(&directory.path().join("memory")).unwrap().changed_ns;
        if changed_ns == clock::file_time_ns() {
            continue;
        }
        let captured = parent.capture().unwrap();
        let descriptor = &captured.descriptor;
        let mapped = descriptor.mapped_files.iter().map(|file| &file.identity);
        let versions = descriptor.file_versions.iter().map(|version| &version.identity);
        let is_marked = |file: &&FileIdentity| file.modified_ns == CHANGED_MARKER_NS;
        assert_eq!(mapped.chain(versions).filter(is_marked).count(), 0, "round {round}");
    }
}

#[test]
fn private_mappings_of_writable_files_show_later_writes() {
    let scene = scene(false);
    let Backing::PrivateWritableFile { file, offset: 0, extent, written: Some(written) } = scene.backing("followed")
    else {
        panic!("{:?}", scene.backing("followed"))
    };
    assert_eq!(scene.descriptor().mapped_files[file as usize].path, scene.path("followed"));
    assert_eq!((scene.populated(extent), scene.populated(written)), (vec![(0, 4)], vec![(1, 1)]));
}

#[test]
fn signals_and_attributes_are_captured() {
    let scene = scene(false);
    let (process, leader) = (&scene.descriptor().process, &scene.descriptor().threads[0]);
    let action = |signal: u32| process.signal_actions.iter().find(|action| action.signal == signal);
    const RESTART_ONSTACK_RESTORER: u64 = 0x1000_0000 | 0x0800_0000 | 0x0400_0000;
    let user = action(10).unwrap();
    assert_eq!((user.handler, user.flags, user.mask), (scene.parent.reported("handler"), RESTART_ONSTACK_RESTORER, 1));
    assert_eq!(action(13).unwrap().handler, 1);
    assert_eq!(leader.signal_mask, 1 << 9 | 1 << 33);
    assert_eq!(leader.pending_signals.len(), 1);
    // siginfo_t: the signal number at 0, the value at 24, after pid and uid.
    let values: Vec<(u8, u8)> =
        process.pending_signals.iter().map(|info| (info.siginfo[0], info.siginfo[24])).collect();
    assert_eq!(values, [(34, 41), (34, 42)]);
    assert_eq!((leader.parent_death_signal, leader.timer_slack_ns, leader.scheduling.nice), (12, 12345, 3));
    assert_eq!((process.umask, process.dumpable), (0o27, 0));
    assert!(process.credentials.no_new_privileges);
    assert_eq!(process.cwd, scene.directory.path().to_str().unwrap());
    assert_eq!((process.limits[7].soft, process.limits[7].hard), (100, 200));
    assert_eq!(process.mm.brk, scene.parent.reported("brk"));
    assert_eq!(process.pid, scene.parent.pid() as u32);
    assert_eq!(process.arguments[1], scene.directory.path().to_str().unwrap());
}
