//! Mounts with passthrough: the kernel reads published files directly, and no program sees old data.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farfork_cluster::catalog::Durability;
use farfork_sys::shared_mapping::SharedMapping;
use farfork_volume::mount::MountOptions;
use farfork_volume::process::ProcessRole;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::mounted_volume::LOG_BYTES;
use super::test_node::{NO_DETECTION_MS, WAIT_LIMIT};
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("the_kernel_reads_a_published_file_by_itself", the_kernel_reads_a_published_file_by_itself),
    ("a_passthrough_reader_sees_each_later_change", a_passthrough_reader_sees_each_later_change),
    ("a_passthrough_reader_sees_changes_of_another_node", a_passthrough_reader_sees_changes_of_another_node),
    ("unpublished_data_is_read_from_the_log", unpublished_data_is_read_from_the_log),
    ("a_program_runs_from_a_passthrough_file", a_program_runs_from_a_passthrough_file),
    (
        "a_file_is_opened_for_writing_after_its_last_passthrough_reader",
        a_file_is_opened_for_writing_after_its_last_passthrough_reader,
    ),
];

/// Size of one file, larger than the kernel's readahead.
const FILE_BYTES: usize = 1 << 20;

/// A read that is not done in this time waits for the client.
const BLOCKED_TIME: Duration = Duration::from_secs(2);

/// A volume with a replica on each of two nodes. The first node has mounted it with passthrough, the second one without.
struct PassthroughPair {
    cluster: VolumeCluster,
}

impl PassthroughPair {
    fn create() -> Self {
        let mut cluster = VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS);
        cluster.nodes[0].unmount();
        cluster.nodes[0].mount_with(MountOptions { read_passthrough: true, ..MountOptions::default() });
        Self { cluster }
    }

    fn path(&self, node: usize, name: &str) -> PathBuf {
        self.cluster.nodes[node].path().join(name)
    }

    /// Writes a file on the first node, and waits until both nodes have published it.
    fn publish(&self, name: &str, data: &[u8]) {
        fs::write(self.path(0, name), data).unwrap();
        self.cluster.published_tree();
    }

    /// Opens a file on the first node for reading.
    fn open_reader(&self, name: &str) -> File {
        File::open(self.path(0, name)).unwrap()
    }

    /// Opens a file that the kernel reads directly. Repeats this while an earlier open file of the inode is not released
    /// yet.
    fn open_passthrough(&self, name: &str) -> File {
        let mut found = None;
        self.cluster.nodes[0].wait_for("the file is opened for passthrough", || {
            let file = self.open_reader(name);
            let is_passthrough = open_read_write(&self.path(0, name)) == Err(Errno::TXTBSY);
            found = is_passthrough.then_some(file);
            is_passthrough
        });
        found.unwrap()
    }

    /// Opens a file on the first node for reading and writing. Repeats this: on a busy machine, the kernel may report the
    /// close(2) of a passthrough reader only after the wait of open(2) has ended.
    fn open_writer(&self, name: &str) -> File {
        let mut opened = None;
        self.cluster.nodes[0].wait_for("the file is opened for reading and writing", || {
            match OpenOptions::new().read(true).write(true).open(self.path(0, name)) {
                Ok(file) => opened = Some(file),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ExecutableFileBusy, "{error}"),
            }
            opened.is_some()
        });
        opened.unwrap()
    }

    /// Reads the whole file while the client of the first node is stopped. None if the kernel waits for the client for
    /// `limit`.
    fn read_without_client(&self, file: &File, limit: Duration) -> Option<Vec<u8>> {
        let (client, reader) = ([ProcessRole::Client], file.try_clone().unwrap());
        self.cluster.nodes[0].signal(&client, Signal::STOP);
        let (done, is_done) = mpsc::channel();
        let reading = thread::spawn(move || {
            let mut data = vec![0; FILE_BYTES];
            reader.read_exact_at(&mut data, 0).unwrap();
            let _ = done.send(data);
        });
        let data = is_done.recv_timeout(limit).ok();
        self.cluster.nodes[0].signal(&client, Signal::CONT);
        reading.join().unwrap();
        data
    }
}

fn open_read_write(path: &Path) -> Result<(), Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|index| (index * 31 + index / 4096 + seed) as u8).collect()
}

fn read_all(file: &File) -> Vec<u8> {
    let mut data = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut data, 0).unwrap();
    data
}

fn the_kernel_reads_a_published_file_by_itself() {
    let pair = PassthroughPair::create();
    pair.publish("file", &pattern(1));
    let reader = pair.open_passthrough("file");
    assert_eq!(pair.read_without_client(&reader, WAIT_LIMIT), Some(pattern(1)));
    let second_reader = pair.open_reader("file");
    assert_eq!(pair.read_without_client(&second_reader, WAIT_LIMIT), Some(pattern(1)), "the inode has two readers");
    drop((reader, second_reader));
    // The kernel has no page of the file in its cache.
    let writer = pair.open_writer("file");
    assert_eq!(pair.read_without_client(&writer, BLOCKED_TIME), None, "the file may have unpublished data");
    assert_eq!(read_all(&writer), pattern(1));
}

fn a_passthrough_reader_sees_each_later_change() {
    let pair = PassthroughPair::create();
    pair.publish("file", &pattern(2));
    let reader = pair.open_passthrough("file");
    let writer = OpenOptions::new().write(true).open(pair.path(0, "file")).unwrap();
    let mut expected = pattern(2);
    for round in 0..40 {
        let (offset, data) = (round * 25_013 % FILE_BYTES, vec![round as u8; 5_000]);
        writer.write_all_at(&data, offset as u64).unwrap();
        let end = offset + data.len();
        expected.resize(expected.len().max(end), 0);
        expected[offset..end].copy_from_slice(&data);
        assert!(read_all(&reader) == expected, "after the write of round {round}");
        if round % 10 == 9 {
            let size = 300_000 + round * 10_000;
            writer.set_len(size as u64).unwrap();
            expected.resize(size, 0);
            assert!(read_all(&reader) == expected, "after the cut of round {round}");
            writer.set_len(FILE_BYTES as u64).unwrap();
            expected.resize(FILE_BYTES, 0);
            assert!(read_all(&reader) == expected, "after ftruncate(2) of round {round}");
            assert!(read_all(&pair.open_reader("file")) == expected, "a new reader, in round {round}");
        }
    }
    drop(reader);
    assert!(read_all(&pair.open_reader("file")) == expected);
    assert!(fs::read(pair.path(1, "file")).unwrap() == expected, "the other node");
}

fn a_passthrough_reader_sees_changes_of_another_node() {
    let pair = PassthroughPair::create();
    pair.publish("file", &pattern(3));
    let reader = pair.open_passthrough("file");
    for round in 0..20 {
        let data = pattern(100 + round);
        let writer = OpenOptions::new().write(true).open(pair.path(1, "file")).unwrap();
        writer.write_all_at(&data, 0).unwrap();
        writer.sync_all().unwrap();
        drop(writer);
        assert!(read_all(&pair.open_reader("file")) == data, "opened after the close of the other node, round {round}");
        assert!(read_all(&reader) == data, "opened before the change, round {round}");
    }
    fs::rename(pair.path(1, "file"), pair.path(1, "renamed")).unwrap();
    fs::remove_file(pair.path(1, "renamed")).unwrap();
    assert_eq!(read_all(&reader), pattern(119), "the file is open, so its data stays");
}

fn unpublished_data_is_read_from_the_log() {
    let pair = PassthroughPair::create();
    for round in 0..200_usize {
        let (path, data) = (pair.path(0, "file"), vec![round as u8; 1 + round * 997]);
        fs::write(&path, &data).unwrap();
        assert!(fs::read(&path).unwrap() == data, "round {round}");
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        let reader = File::open(&path).unwrap();
        rustix::io::write(writer.as_fd(), b"end").unwrap();
        assert!(read_all(&reader) == [&data[..], b"end"].concat(), "round {round}");
    }
}

fn a_program_runs_from_a_passthrough_file() {
    let pair = PassthroughPair::create();
    pair.publish("cat", &fs::read("/bin/cat").unwrap());
    fs::set_permissions(pair.path(0, "cat"), Permissions::from_mode(0o755)).unwrap();
    pair.publish("file", &pattern(4));
    for _ in 0..3 {
        let output = Command::new(pair.path(0, "cat")).arg(pair.path(0, "file")).output().unwrap();
        assert!(output.status.success() && output.stdout == pattern(4), "{output:?}");
    }
}

fn a_file_is_opened_for_writing_after_its_last_passthrough_reader() {
    let pair = PassthroughPair::create();
    pair.publish("file", &pattern(5));
    let mut opened_at_once = 0;
    for round in 0..50 {
        drop(pair.open_reader("file"));
        // The kernel may not have reported the close(2) yet: open(2) waits for it.
        opened_at_once += u32::from(open_read_write(&pair.path(0, "file")).is_ok());
        let writer = pair.open_writer("file");
        let mapping = SharedMapping::map_file(&writer, FILE_BYTES).unwrap();
        mapping.store(0, &[round]);
        drop(mapping);
        writer.sync_all().unwrap();
        drop(writer);
        assert_eq!(read_all(&pair.open_reader("file"))[0], round);
    }
    assert!(opened_at_once > 25, "open(2) refused in {} of 50 rounds", 50 - opened_at_once);
    let reader = pair.open_passthrough("file");
    assert_eq!(open_read_write(&pair.path(0, "file")), Err(Errno::TXTBSY));
    drop(reader);
    drop(pair.open_writer("file"));
}
