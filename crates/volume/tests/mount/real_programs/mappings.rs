//! Uses mmap(2), msync(2), ftruncate(2), read(2) and write(2) on one file at the same time, on one node and on several.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::shared_mapping::SharedMapping;
use fastrand::Rng;
use rustix::process::Signal;

use crate::test_node::{WAIT_LIMIT, process_command};
use crate::volume_cluster::VolumeCluster;

const PAGE_BYTES: usize = 4096;
/// Number of pages that stay mapped. The file is only truncated after these pages.
const MAPPED_PAGES: usize = 16;
const MAPPED_BYTES: usize = MAPPED_PAGES * PAGE_BYTES;
/// Returns the content of a page of the file in a version.
fn page_of(page: usize, version: u64) -> Vec<u8> {
    format!("{page:07} {version:07} ").repeat(PAGE_BYTES / 16).into_bytes()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Creates a file of mapped pages with version 0, and maps it on the node of `path`.
fn create_mapped(path: &Path) -> (File, SharedMapping) {
    let file = open(path);
    (0..MAPPED_PAGES).for_each(|page| file.write_all_at(&page_of(page, 0), (page * PAGE_BYTES) as u64).unwrap());
    let mapping = SharedMapping::map_file(&file, MAPPED_BYTES).unwrap();
    (file, mapping)
}

fn require_pages(path: &Path, version_of: impl Fn(usize) -> u64) {
    let data = fs::read(path).unwrap();
    assert!(data.len() >= MAPPED_BYTES, "{} bytes in {}", data.len(), path.display());
    for (page, found) in data.chunks(PAGE_BYTES).take(MAPPED_PAGES).enumerate() {
        let start = found[..16].escape_ascii();
        assert!(found == page_of(page, version_of(page)), "page {page} of {} is {start}", path.display());
    }
}

/// On one node: even pages are changed through a mapping, odd pages with write(2), and the end of the file moves
/// continuously.
pub(super) fn a_mapping_and_write_change_different_pages() {
    const VERSIONS: u64 = 150;
    let cluster = VolumeCluster::three_replicas();
    let path = cluster.path(0).join("file");
    let (file, stored) = create_mapped(&path);
    let loaded = SharedMapping::map_file(&file, MAPPED_BYTES).unwrap();
    let (is_over, file) = (AtomicBool::new(false), &file);
    thread::scope(|scope| {
        let storing = scope.spawn(move || {
            for version in 1..=VERSIONS {
                for page in (0..MAPPED_PAGES).step_by(2) {
                    stored.copy_in(page * PAGE_BYTES, &page_of(page, version));
                    let mut found = vec![0; PAGE_BYTES];
                    file.read_exact_at(&mut found, (page * PAGE_BYTES) as u64).unwrap();
                    assert!(found == page_of(page, version), "read(2) of page {page}, version {version}");
                }
                if version % 4 == 0 || version == VERSIONS {
                    stored.synchronize().unwrap();
                }
            }
        });
        let writing = scope.spawn(move || {
            for version in 1..=VERSIONS {
                for page in (1..MAPPED_PAGES).step_by(2) {
                    file.write_all_at(&page_of(page, version), (page * PAGE_BYTES) as u64).unwrap();
                    let mut found = vec![0; PAGE_BYTES];
                    loaded.copy_out(page * PAGE_BYTES, &mut found);
                    assert!(found == page_of(page, version), "mapping of page {page}, version {version}");
                }
            }
        });
        scope.spawn(|| move_end_of_file(&path, &is_over));
        let results = [storing.join(), writing.join()];
        is_over.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    (0..3).for_each(|node| require_pages(&cluster.path(node).join("file"), |_| VERSIONS));
}

/// Truncates and extends the file. The removed part must read as zeroes when the file grows again.
fn move_end_of_file(path: &Path, is_over: &AtomicBool) {
    let (file, mut random) = (open(path), Rng::with_seed(1));
    while !is_over.load(Ordering::Relaxed) {
        let kept = MAPPED_BYTES as u64 + random.u64(..10_000);
        let end = kept + random.u64(..50_000);
        file.set_len(kept).unwrap();
        file.set_len(end).unwrap();
        let mut tail = vec![1; (end - kept) as usize];
        file.read_exact_at(&mut tail, kept).unwrap();
        assert!(tail.iter().all(|byte| *byte == 0), "zeroes from {kept} to {end}");
        file.write_all_at(&vec![7; 60_000], MAPPED_BYTES as u64).unwrap();
    }
}

/// Tests close-to-open consistency: nodes take turns. Each maps the file after open(2), and must find the stores,
/// truncations and writes of the previous node.
pub(super) fn a_mapping_has_what_another_node_wrote_before_open() {
    const ROUNDS: u64 = 60;
    let cluster = VolumeCluster::three_replicas();
    let path = |node: usize| cluster.path(node).join("file");
    let mut random = Rng::with_seed(2);
    // Stays mapped, so that the kernel of node 0 has cached pages that other nodes change.
    let (_file, oldest) = create_mapped(&path(0));
    let mut expected = fs::read(path(0)).unwrap();
    for round in 1..=ROUNDS {
        let node = random.usize(..3);
        let file = open(&path(node));
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64, "round {round} on node {node}");
        let mapping = SharedMapping::map_file(&file, expected.len()).unwrap();
        let mut found = vec![0; expected.len()];
        mapping.copy_out(0, &mut found);
        let difference = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(difference, None, "round {round}: mapping of node {node}");
        if node == 0 {
            let mut found = vec![0; MAPPED_BYTES];
            oldest.copy_out(0, &mut found);
            assert!(found == expected[..MAPPED_BYTES], "round {round}: the oldest mapping");
        }
        let start = random.usize(..expected.len() - 100);
        let bytes = [round as u8; 100];
        mapping.copy_in(start, &bytes);
        expected[start..start + 100].copy_from_slice(&bytes);
        if random.bool() {
            mapping.synchronize().unwrap();
        }
        drop(mapping);
        let end = MAPPED_BYTES + random.usize(..3 * PAGE_BYTES);
        file.set_len(end as u64).unwrap();
        expected.resize(end, 0);
        let end = end + random.usize(..PAGE_BYTES);
        file.set_len(end as u64).unwrap();
        expected.resize(end, 0);
        let start = random.usize(..expected.len());
        file.write_all_at(&bytes, start as u64).unwrap();
        expected.resize(expected.len().max(start + 100), 0);
        expected[start..start + 100].copy_from_slice(&bytes);
    }
    for node in 0..3 {
        assert!(fs::read(path(node)).unwrap() == expected, "node {node}");
    }
}

/// Three nodes change different pages at the same time: one uses a mapping and msync(2), the others write(2). No change may
/// be lost.
pub(super) fn nodes_change_different_pages_of_one_file() {
    const VERSIONS: u64 = 30;
    let cluster = VolumeCluster::three_replicas();
    let path = |node: usize| cluster.path(node).join("file");
    drop(create_mapped(&path(0)));
    thread::scope(|scope| {
        for node in 0..3 {
            let path = path(node);
            scope.spawn(move || {
                let file = open(&path);
                let mapping = (node == 0).then(|| SharedMapping::map_file(&file, MAPPED_BYTES).unwrap());
                for version in 1..=VERSIONS {
                    for page in (node..MAPPED_PAGES).step_by(3) {
                        match &mapping {
                            Some(mapping) => mapping.copy_in(page * PAGE_BYTES, &page_of(page, version)),
                            None => {
                                file.write_all_at(&page_of(page, version), (page * PAGE_BYTES) as u64).unwrap();
                            }
                        }
                    }
                    match &mapping {
                        Some(mapping) => mapping.synchronize().unwrap(),
                        None => file.sync_data().unwrap(),
                    }
                }
            });
        }
    });
    (0..3).for_each(|node| require_pages(&path(node), |_| VERSIONS));
}

/// Runs a process that stores to each page of a mapped file until a signal ends it.
pub(super) fn run_mapping(arguments: &[String]) {
    let file = open(arguments[0].as_ref());
    let mapping = SharedMapping::map_file(&file, MAPPED_BYTES).unwrap();
    loop {
        for page in 0..MAPPED_PAGES {
            mapping.copy_in(page * PAGE_BYTES, &[0xaa; PAGE_BYTES]);
        }
    }
}

/// A process stores to all pages while the file is truncated. SIGBUS must end the process, and the file must not grow again.
pub(super) fn a_truncated_file_stays_short_while_it_is_mapped() {
    const ROUNDS: usize = 12;
    let cluster = VolumeCluster::three_replicas();
    let path = |node: usize| cluster.path(node).join("file");
    let mut random = Rng::with_seed(3);
    for round in 0..ROUNDS {
        fs::write(path(0), vec![0xff; MAPPED_BYTES]).unwrap();
        let mut process = process_command("mapping").arg(path(0)).spawn().unwrap();
        let file = open(&path(0));
        let has_stored = |offset: usize| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset as u64).is_ok() && byte == [0xaa]
        };
        cluster.nodes[0].wait_for("the process stores", || has_stored(MAPPED_BYTES - 1));
        let pages = random.usize(..MAPPED_PAGES - 1);
        let size = pages * PAGE_BYTES + if round % 2 == 0 { 0 } else { random.usize(1..PAGE_BYTES) };
        file.set_len(size as u64).unwrap();
        require_bus_error(&mut process);
        assert_eq!(file.metadata().unwrap().len(), size as u64, "round {round}");
        file.sync_all().unwrap();
        for node in 0..3 {
            let found = fs::read(path(node)).unwrap();
            assert!(found.iter().all(|byte| *byte == 0xaa), "round {round}: bytes before {size} on node {node}");
            assert_eq!(found.len(), size, "round {round}: size on node {node}");
        }
        file.set_len(MAPPED_BYTES as u64).unwrap();
        for node in 0..3 {
            let found = fs::read(path(node)).unwrap();
            let wrong: Vec<usize> = (size..MAPPED_BYTES).filter(|offset| found[*offset] != 0).collect();
            assert_eq!(
                wrong.len(),
                0,
                "round {round}: node {node} has bytes after {size}, from {:?} on",
                wrong.first()
            );
        }
    }
}

fn require_bus_error(process: &mut Child) {
    let deadline = Instant::now() + WAIT_LIMIT;
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "a store to a truncated page succeeds");
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(status.signal(), Some(Signal::BUS.as_raw()), "{status}");
}
