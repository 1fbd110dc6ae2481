//! Two nodes have mounted a volume. Their clients create, change and remove the same files at the same time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirEntryExt as _, FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;
use farfork_sys::shared_mapping::SharedMapping;
use farfork_volume::process::ProcessRole;

use super::mounted_volume::LOG_BYTES;
use super::test_node::{NO_DETECTION_MS, SetOnDrop, WAIT_LIMIT};
use super::volume_cluster::VolumeCluster;

/// The tests of this file.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("clients_that_replace_the_same_file_agree", clients_that_replace_the_same_file_agree),
    ("clients_that_append_to_the_same_file_lose_nothing", clients_that_append_to_the_same_file_lose_nothing),
    ("a_file_stays_readable_when_another_client_removes_it", a_file_stays_readable_when_another_client_removes_it),
    ("a_removed_file_stays_while_its_remover_has_it_open", a_removed_file_stays_while_its_remover_has_it_open),
    ("clients_that_create_the_same_file_share_it", clients_that_create_the_same_file_share_it),
    (
        "a_shared_mapping_is_written_while_another_client_writes",
        a_shared_mapping_is_written_while_another_client_writes,
    ),
    ("a_client_without_its_offload_process_misses_nothing", a_client_without_its_offload_process_misses_nothing),
    ("a_renamed_file_is_not_opened_by_its_old_name", a_renamed_file_is_not_opened_by_its_old_name),
    ("a_name_that_is_replaced_all_the_time_can_be_opened", a_name_that_is_replaced_all_the_time_can_be_opened),
    ("a_rename_moves_the_current_file_of_the_name", a_rename_moves_the_current_file_of_the_name),
    ("a_directory_that_another_client_has_moved_stays_usable", a_directory_that_another_client_has_moved_stays_usable),
    ("a_write_that_has_waited_is_read_afterwards", a_write_that_has_waited_is_read_afterwards),
    ("reading_takes_no_write_permission", reading_takes_no_write_permission),
    ("a_second_mount_does_not_end_the_first", a_second_mount_does_not_end_the_first),
];

/// A volume with a replica on each of two nodes, mounted on both.
struct MountedPair {
    cluster: VolumeCluster,
}

impl MountedPair {
    fn create() -> Self {
        Self { cluster: VolumeCluster::mounted(&["n1", "n2"], LOG_BYTES, Durability::Memory, NO_DETECTION_MS) }
    }

    fn path(&self, node: usize, name: &str) -> PathBuf {
        self.cluster.nodes[node].path().join(name)
    }

    /// Whether open(2) finds a name. The kernel answers stat(2) from its cache for a while.
    fn can_open(&self, node: usize, name: &str) -> bool {
        File::open(self.path(node, name)).map_err(|error| assert_eq!(error.kind(), io::ErrorKind::NotFound)).is_ok()
    }

    /// Number of inodes in the shared tree of a node that are not directories.
    fn published_inodes(&self, node: usize) -> usize {
        let groups = fs::read_dir(self.cluster.nodes[node].volume_path().join("shared/inodes")).unwrap();
        groups.map(|group| fs::read_dir(group.unwrap().path()).unwrap().count()).sum()
    }
}

fn a_file_stays_readable_when_another_client_removes_it() {
    let pair = MountedPair::create();
    fs::write(pair.path(0, "file"), vec![7; 300_000]).unwrap();
    let file = File::open(pair.path(1, "file")).unwrap();
    fs::remove_file(pair.path(0, "file")).unwrap();
    pair.cluster.nodes[1].wait_for("the file is dropped", || pair.published_inodes(1) == 0);
    assert!(!pair.can_open(1, "file"));
    let mut data = vec![0; 300_000];
    file.read_exact_at(&mut data, 0).unwrap();
    assert!(data == vec![7; 300_000]);
    assert_eq!(file.metadata().unwrap().len(), 300_000);
}

fn a_removed_file_stays_while_its_remover_has_it_open() {
    let pair = MountedPair::create();
    let mut file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(pair.path(0, "file"));
    file.as_mut().unwrap().write_all(b"before").unwrap();
    assert_eq!(fs::read(pair.path(1, "file")).unwrap(), b"before");
    fs::remove_file(pair.path(0, "file")).unwrap();
    assert!(!pair.can_open(1, "file"));
    // The kernel of the other node forgets the file now, which must not drop the inode.
    fs::write(pair.path(1, "other"), b"other").unwrap();
    thread::sleep(Duration::from_millis(200));
    let file = file.unwrap();
    file.write_all_at(b"after", 0).unwrap();
    file.sync_all().unwrap();
    let mut data = [0; 6];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(&data, b"aftere");
    assert_eq!(pair.published_inodes(0), 2);
    drop(file);
    pair.cluster.nodes[0]
        .wait_for("the file is dropped on both nodes", || (0..2).all(|node| pair.published_inodes(node) == 1));
}

fn clients_that_create_the_same_file_share_it() {
    let pair = MountedPair::create();
    let nodes = [pair.cluster.nodes[0].path(), pair.cluster.nodes[1].path()];
    for round in 0..40 {
        let winners: usize = thread::scope(|scope| {
            let creating = nodes.iter().enumerate().map(|(node, root)| {
                scope.spawn(move || {
                    let mut options = OpenOptions::new();
                    options.create(true).truncate(false).write(true);
                    let shared = options.open(root.join(format!("shared-{round}"))).unwrap();
                    shared.write_all_at(b"x", node as u64).unwrap();
                    usize::from(options.create_new(true).open(root.join(format!("one-{round}"))).is_ok())
                })
            });
            creating.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(winners, 1, "O_EXCL in round {round}");
        for node in 0..2 {
            assert_eq!(fs::read(pair.path(node, &format!("shared-{round}"))).unwrap(), b"xx", "round {round}");
        }
    }
}

/// Both nodes truncate and write a file at the same time. Afterwards both nodes must read the data of the same writer.
fn clients_that_replace_the_same_file_agree() {
    let pair = MountedPair::create();
    for round in 0..100_u8 {
        let name = format!("file-{}", round % 3);
        thread::scope(|scope| {
            for node in 0..2 {
                let path = pair.path(node, &name);
                scope.spawn(move || fs::write(path, [2 * round + node as u8; 100]).unwrap());
            }
        });
        let found = [0, 1].map(|node| fs::read(pair.path(node, &name)).unwrap());
        let is_whole = |data: &[u8]| (0..2).any(|node| data == [2 * round + node; 100]);
        assert!(found[0] == found[1] && is_whole(&found[0]), "round {round}: {found:?}");
    }
}

fn clients_that_append_to_the_same_file_lose_nothing() {
    const LINES: usize = 60;
    let pair = MountedPair::create();
    fs::write(pair.path(0, "file"), b"").unwrap();
    thread::scope(|scope| {
        for node in 0..2 {
            let path = pair.path(node, "file");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                (0..LINES).for_each(|line| file.write_all(format!("{node} {line:080}\n").as_bytes()).unwrap());
            });
        }
    });
    for reader in 0..2 {
        let found = fs::read_to_string(pair.path(reader, "file")).unwrap();
        for node in 0..2 {
            let lines = found.lines().filter(|line| line.starts_with(&format!("{node} ")));
            let expected = (0..LINES).map(|line| format!("{node} {line:080}"));
            assert!(lines.eq(expected), "lines of node {node}, read on node {reader}");
        }
    }
}

/// Invalidating a mapping writes its pages back, for which the client needs the write permission.
fn a_shared_mapping_is_written_while_another_client_writes() {
    const PAGES: usize = 16;
    const PAGE_BYTES: usize = 4096;
    let pair = MountedPair::create();
    fs::write(pair.path(0, "file"), vec![0; PAGES * PAGE_BYTES]).unwrap();
    let must_stop = AtomicBool::new(false);
    let deadline = Instant::now() + WAIT_LIMIT;
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = OpenOptions::new().read(true).write(true).open(pair.path(1, "file")).unwrap();
            let mapping = SharedMapping::map_file(&file, PAGES * PAGE_BYTES).unwrap();
            loop {
                (0..PAGES).for_each(|page| mapping.copy_in(page * PAGE_BYTES, b"mapping"));
                if must_stop.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            file.sync_all().unwrap();
        });
        scope.spawn(|| {
            while !must_stop.load(Ordering::Relaxed) {
                assert_eq!(fs::read(pair.path(1, "file")).unwrap().len(), PAGES * PAGE_BYTES);
            }
        });
        let file = OpenOptions::new().write(true).open(pair.path(0, "file")).unwrap();
        for round in 0..30_u8 {
            let offset = u64::from(round) % PAGES as u64 * PAGE_BYTES as u64 + 100;
            file.write_all_at(&[round; 10], offset).unwrap();
            assert!(Instant::now() < deadline, "round {round}");
            thread::sleep(Duration::from_millis(5));
        }
        must_stop.store(true, Ordering::Relaxed);
    });
    let found = fs::read(pair.path(0, "file")).unwrap();
    let lost = (0..PAGES).filter(|page| &found[page * PAGE_BYTES..][..7] != b"mapping").count();
    assert_eq!(lost, 0, "pages of the mapping are lost");
}

fn a_client_without_its_offload_process_misses_nothing() {
    let pair = MountedPair::create();
    fs::write(pair.path(0, "file"), b"first").unwrap();
    let open = File::open(pair.path(1, "file")).unwrap();
    for round in 0..5 {
        let name = format!("file-{round}");
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                fs::rename(pair.path(0, if round == 0 { "file" } else { "renamed" }), pair.path(0, "renamed")).unwrap();
                fs::write(pair.path(0, "renamed"), format!("{round:05}")).unwrap();
                fs::write(pair.path(0, &name), &name).unwrap();
            });
            pair.cluster.nodes[1].kill(&[ProcessRole::Offload]);
            writing.join().unwrap();
        });
        assert_eq!(fs::read_to_string(pair.path(1, &name)).unwrap(), name);
        assert_eq!(fs::read_to_string(pair.path(1, "renamed")).unwrap(), format!("{round:05}"));
        assert!(!pair.can_open(1, "file"));
        let mut data = [0; 5];
        open.read_exact_at(&mut data, 0).unwrap();
        assert_eq!(data, format!("{round:05}").as_bytes());
    }
}

/// The kernel of node 1 may still have the old name, and would open the renamed file by it.
fn a_renamed_file_is_not_opened_by_its_old_name() {
    let pair = MountedPair::create();
    let directory = File::open(pair.path(0, "")).unwrap();
    for round in 0..100 {
        let [old, new] = ["old", "new"].map(|name| format!("{name}-{round}"));
        fs::write(pair.path(1, &old), &old).unwrap();
        File::open(pair.path(1, &old)).unwrap().sync_all().unwrap();
        fs::rename(pair.path(0, &old), pair.path(0, &new)).unwrap();
        directory.sync_all().unwrap();
        assert!(!pair.can_open(1, &old), "round {round}");
        assert_eq!(fs::read_to_string(pair.path(1, &new)).unwrap(), old);
        // The old name is free for another file.
        fs::write(pair.path(1, &old), "another").unwrap();
        assert_eq!(fs::read_to_string(pair.path(0, &new)).unwrap(), old);
    }
}

fn a_name_that_is_replaced_all_the_time_can_be_opened() {
    let pair = MountedPair::create();
    let replace = |version: u32| {
        fs::write(pair.path(0, "new"), version.to_string()).unwrap();
        fs::rename(pair.path(0, "new"), pair.path(0, "file")).unwrap();
    };
    replace(0);
    let must_stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| (1..).take_while(|_| !must_stop.load(Ordering::Relaxed)).for_each(replace));
        let mut last = 0;
        for round in 0..200 {
            let found = fs::read_to_string(pair.path(1, "file"));
            let version = found.as_ref().map_or(0, |text| text.parse().unwrap());
            if version < last || found.is_err() {
                must_stop.store(true, Ordering::Relaxed);
                panic!("round {round}: {found:?} after {last}");
            }
            last = version;
        }
        must_stop.store(true, Ordering::Relaxed);
    });
}

/// Calls `change` repeatedly for node 0 in a thread. Meanwhile calls `check` for node 1 `rounds` times.
fn change_while_checking(change: impl Fn(u32) + Sync, rounds: u32, check: impl Fn(u32)) {
    let must_stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&must_stop);
        scope.spawn(|| {
            for round in (1..).take_while(|_| !must_stop.load(Ordering::Relaxed)) {
                change(round);
                // Node 1 waits until all earlier changes are published.
                thread::sleep(Duration::from_millis(1));
            }
        });
        (0..rounds).for_each(check);
    });
}

/// Checks the result of an operation on a name that another client changes continuously.
fn assert_contended(result: io::Result<()>) {
    const KINDS: [io::ErrorKind; 3] =
        [io::ErrorKind::NotFound, io::ErrorKind::DirectoryNotEmpty, io::ErrorKind::StaleNetworkFileHandle];
    assert!(result.as_ref().map_err(io::Error::kind).err().is_none_or(|kind| KINDS.contains(&kind)), "{result:?}");
}

/// The kernel of node 1 knows an older file by the name when it sends the request.
fn a_rename_moves_the_current_file_of_the_name() {
    let pair = MountedPair::create();
    let replace = |version: u32| {
        fs::write(pair.path(0, "new"), version.to_string()).unwrap();
        fs::rename(pair.path(0, "new"), pair.path(0, "file")).unwrap();
    };
    change_while_checking(replace, 300, |round| {
        let (file, taken) = (pair.path(1, "file"), pair.path(1, "taken"));
        let _ = fs::metadata(&file);
        let renamed = fs::rename(file, &taken);
        let is_renamed = renamed.is_ok();
        assert_contended(renamed);
        if is_renamed {
            let mut entries = fs::read_dir(pair.path(1, "")).unwrap().map(Result::unwrap);
            let listed = entries.find(|entry| entry.file_name() == "taken").unwrap().ino();
            assert_eq!(fs::metadata(&taken).unwrap().ino(), listed, "round {round}");
        }
    });
}

/// The kernel of node 1 may consider the moved directory removed, because it knows this directory by the removed name.
fn a_directory_that_another_client_has_moved_stays_usable() {
    let pair = MountedPair::create();
    let kept = Mutex::new(Vec::new());
    let replace = |version: u32| {
        let (directory, moved) = (pair.path(0, "directory"), format!("moved-{version}"));
        let _ = fs::create_dir(&directory);
        // Node 1 may remove the directory before it has a file.
        if fs::write(directory.join("file"), b"data").is_ok() {
            fs::rename(&directory, pair.path(0, &moved)).unwrap();
            let _ = fs::create_dir(&directory);
            kept.lock().unwrap().push(moved);
        }
    };
    // Keeps the directories open: otherwise the kernel would forget the inodes, and look them up again as existing.
    let open = Mutex::new(Vec::new());
    change_while_checking(replace, 300, |_| {
        let directory = pair.path(1, "directory");
        open.lock().unwrap().extend(File::open(&directory));
        assert_contended(fs::remove_dir(directory));
    });
    let kept = kept.into_inner().unwrap();
    assert!(!kept.is_empty());
    for moved in kept {
        assert_eq!(fs::read_dir(pair.path(1, &moved)).unwrap().count(), 1, "{moved}");
        assert_eq!(fs::read(pair.path(1, &moved).join("file")).unwrap(), b"data", "{moved}");
    }
}

/// While a write waits for the permission, the kernel drops the written page, and reads it again without the written bytes.
fn a_write_that_has_waited_is_read_afterwards() {
    const ROUNDS: u32 = 100;
    const FILE_BYTES: usize = 4096;
    let pair = MountedPair::create();
    fs::write(pair.path(0, "file"), [0; FILE_BYTES]).unwrap();
    // Each node writes the number of the round at its own place.
    let offset_of = |node: usize| 1000 * node + 500;
    let find = |reader: usize, writer: usize| {
        let data = fs::read(pair.path(reader, "file")).unwrap();
        u32::from_le_bytes(data[offset_of(writer)..][..4].try_into().unwrap())
    };
    let files = [0, 1].map(|node| OpenOptions::new().read(true).write(true).open(pair.path(node, "file")).unwrap());
    let must_stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&must_stop);
        for file in &files {
            scope.spawn(|| {
                while !must_stop.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut [0; FILE_BYTES], 0).unwrap();
                }
            });
        }
        for round in 1..=ROUNDS {
            thread::scope(|writing| {
                for (node, file) in files.iter().enumerate() {
                    writing.spawn(move || {
                        file.write_all_at(&round.to_le_bytes(), offset_of(node) as u64).unwrap();
                        assert_eq!(find(node, node), round, "on node {node}, which has written");
                    });
                }
            });
            for (reader, writer) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                assert_eq!(find(reader, writer), round, "of node {writer}, read on node {reader}");
            }
        }
    });
}

/// Neither reading nor FORGET requests of the kernel make a client the writer.
fn reading_takes_no_write_permission() {
    let pair = MountedPair::create();
    for file in 0..20 {
        fs::write(pair.path(0, &format!("file-{file}")), b"data").unwrap();
    }
    let term = pair.cluster.nodes[0].status().record.term;
    for file in 0..20 {
        assert_eq!(fs::read(pair.path(1, &format!("file-{file}"))).unwrap(), b"data");
        fs::remove_file(pair.path(0, &format!("file-{file}"))).unwrap();
        assert!(!pair.can_open(1, &format!("file-{file}")));
    }
    assert_eq!(pair.cluster.nodes[0].status().record.term, term);
}

/// The second client ends, because the volume is mounted at the path. Its supervisor must leave that mount alone.
fn a_second_mount_does_not_end_the_first() {
    let pair = MountedPair::create();
    let path = pair.path(0, "file");
    let mut file = File::create(&path).unwrap();
    // Each attempt waits some seconds for the end of the first client.
    for _ in 0..2 {
        assert!(!pair.cluster.nodes[0].mount_twice());
        file.write_all(b"x").unwrap();
        assert!(fs::metadata(&path).is_ok());
    }
}
