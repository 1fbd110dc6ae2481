//! Runs writer processes on several mounts, each in its own directory and in a shared one. Each prints a line when fsync(2)
//! has acknowledged an operation. After the writers are killed, each node must have all printed operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::Durability;

use crate::mounted_volume::LOG_BYTES;
use crate::test_node::{NO_DETECTION_MS, WAIT_LIMIT, process_command};
use crate::volume_cluster::VolumeCluster;

const WRITERS: usize = 16;
const REPLACED_FILES: u64 = 4;
const SHARED_LOGS: u64 = 3;
/// Number of different operations, which each writer performs in turns, and the position of one of them.
const OPERATIONS: u64 = 6;
const APPEND: u64 = 1;
/// Not a divisor of a page, so that blocks cross pages.
const BLOCK_BYTES: usize = 1000;
const BLOCKS: u64 = 16;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Sixteen processes on three nodes, which are killed after 400 acknowledgements.
pub(super) fn find_everything_acknowledged_on_each_node() {
    write_and_verify(&VolumeCluster::three_replicas(), 400);
}

/// As `find_everything_acknowledged_on_each_node`, with 10,000 acknowledgements.
pub(super) fn find_everything_acknowledged_after_minutes() {
    write_and_verify(&VolumeCluster::three_replicas(), 10_000);
}

/// Sixteen processes on sixteen nodes, each with a replica.
pub(super) fn sixteen_nodes_find_everything_acknowledged() {
    let names: Vec<String> = (1..=WRITERS).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    write_and_verify(&VolumeCluster::mounted(&names, LOG_BYTES, Durability::Memory, NO_DETECTION_MS), 400);
}

/// Kills the writers after `acknowledged_min` acknowledgements in total. Nodes do not get equal numbers of write
/// permissions.
fn write_and_verify(cluster: &VolumeCluster, acknowledged_min: usize) {
    fs::create_dir(cluster.path(0).join("shared")).unwrap();
    let nodes = cluster.nodes.len();
    let mut writers: Vec<Child> = (0..WRITERS)
        .map(|writer| {
            let mut command = process_command("writer");
            command.arg(cluster.path(writer % nodes)).arg(writer.to_string()).stdout(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let started = Instant::now();
    let manifests = collect_manifests(&mut writers, acknowledged_min);
    let acknowledged: usize = manifests.iter().map(Vec::len).sum();
    println!("{nodes} nodes: {acknowledged} acknowledgements in {:.1?}", started.elapsed());
    for node in 0..nodes {
        let found = FoundTree { root: cluster.path(node), logs: read_shared_logs(&cluster.path(node), &manifests) };
        for (writer, lines) in manifests.iter().enumerate() {
            found.verify(writer, lines);
        }
    }
    cluster.published_tree();
}

/// With O_APPEND, lines of three nodes are not mixed, even where a line crosses a page.
pub(super) fn appended_lines_are_not_divided() {
    const LINES: usize = 80;
    let cluster = VolumeCluster::three_replicas();
    let line = |node: usize, number: usize| format!("{node} {number:->3500}\n");
    thread::scope(|scope| {
        for node in 0..3 {
            let path = cluster.path(node).join("log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                (0..LINES).for_each(|number| file.write_all(line(node, number).as_bytes()).unwrap());
            });
        }
    });
    let text = fs::read_to_string(cluster.path(1).join("log")).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for node in 0..3 {
        let own = lines.iter().filter(|line| line.starts_with(&format!("{node} ")));
        let divided = own.clone().zip(0..).find(|(found, number)| **found != line(node, *number));
        assert_eq!((divided, own.count()), (None, LINES), "lines of node {node}");
    }
}

/// Readers on the writer's node and on another node follow a log like `tail -f`. They see only the bytes of the log.
pub(super) fn readers_follow_an_appended_log() {
    const LINES: usize = 1500;
    let cluster = VolumeCluster::three_replicas();
    let content: String = (0..LINES).map(|number| format!("{number:->99}\n")).collect();
    let create =
        |node: usize| OpenOptions::new().append(true).create(true).open(cluster.path(node).join("log")).unwrap();
    let (mut output, expected) = (create(0), content.as_bytes());
    thread::scope(|scope| {
        for node in [0, 0, 1] {
            let file = File::open(cluster.path(node).join("log")).unwrap();
            scope.spawn(move || follow_log(&file, expected, node));
        }
        content.split_inclusive('\n').for_each(|line| output.write_all(line.as_bytes()).unwrap());
    });
}

fn follow_log(file: &File, expected: &[u8], node: usize) {
    let (mut offset, mut buffer) = (0, vec![0; 64 << 10]);
    let deadline = Instant::now() + WAIT_LIMIT;
    while offset < expected.len() {
        let count = file.read_at(&mut buffer, offset as u64).unwrap();
        let (found, expected) = (&buffer[..count], &expected[offset..offset + count]);
        let different = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!(
            different.map(|index| (index, found[index])),
            None,
            "{count} bytes from {offset} on, on node {node}"
        );
        offset += count;
        assert!(Instant::now() < deadline, "node {node} has {offset} bytes");
    }
}

/// Waits until the writers have printed `acknowledged_min` lines, kills them, and returns the lines of each writer.
fn collect_manifests(writers: &mut [Child], acknowledged_min: usize) -> Vec<Vec<String>> {
    let counts: Vec<AtomicUsize> = writers.iter().map(|_| AtomicUsize::new(0)).collect();
    let outputs: Vec<_> = writers.iter_mut().map(|writer| writer.stdout.take().unwrap()).collect();
    thread::scope(|scope| {
        let readers: Vec<_> = outputs
            .into_iter()
            .zip(&counts)
            .map(|(output, count)| {
                scope.spawn(move || {
                    let lines = BufReader::new(output).lines().map(Result::unwrap);
                    lines.inspect(|_| _ = count.fetch_add(1, Ordering::Relaxed)).collect::<Vec<_>>()
                })
            })
            .collect();
        let acknowledged = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
        let (mut known, mut known_since, mut ended) = (0, Instant::now(), None);
        while known < acknowledged_min && ended.is_none() && known_since.elapsed() < WAIT_LIMIT {
            if acknowledged() > known {
                (known, known_since) = (acknowledged(), Instant::now());
            }
            ended = writers.iter_mut().find_map(|writer| writer.try_wait().unwrap());
            thread::sleep(POLL_INTERVAL);
        }
        // Kills all before waiting for one: a killed process ends only when its request to the volume is answered.
        writers.iter_mut().for_each(|writer| writer.kill().unwrap());
        writers.iter_mut().for_each(|writer| _ = writer.wait().unwrap());
        assert!(known >= acknowledged_min, "nothing more is acknowledged: {counts:?}, one ended: {ended:?}");
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    })
}

/// Runs a writer. The arguments are the mount point and the number of the writer.
pub(super) fn run_writer(arguments: &[String]) {
    let writer: usize = arguments[1].parse().unwrap();
    let (shared, own) = (Path::new(&arguments[0]).join("shared"), own_directory(arguments[0].as_ref(), writer));
    fs::create_dir(&own).unwrap();
    let mut stdout = io::stdout();
    for number in 0.. {
        let line = match number % OPERATIONS {
            0 => replace_file(&own, writer, number),
            APPEND => append_line(&shared, writer, number),
            2 => claim_name(&shared, writer, number / OPERATIONS),
            3 => overwrite_block(&own, writer, number),
            4 => move_directory(&own, &shared, writer, number),
            _ => remove_file(&own, &shared, writer, number),
        };
        let line = line.unwrap_or_else(|error| panic!("writer {writer}, operation {number}: {error}"));
        writeln!(stdout, "{line}").and_then(|()| stdout.flush()).unwrap();
    }
}

fn own_directory(root: &Path, writer: usize) -> PathBuf {
    root.join(format!("own-{writer}"))
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn content_of(writer: usize, number: u64) -> Vec<u8> {
    format!("{writer} {number}\n").repeat(1 + (number as usize * 97) % 3000).into_bytes()
}

fn block_of(writer: usize, number: u64) -> Vec<u8> {
    format!("{writer:09} {number:09} ").repeat(BLOCK_BYTES / 20).into_bytes()
}

/// An operation that appends a line to a shared log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AppendOperation {
    writer: usize,
    number: u64,
}

impl AppendOperation {
    /// Whether an operation with this number appends a line.
    fn is_append(number: u64) -> bool {
        number % OPERATIONS == APPEND
    }

    fn line(self) -> String {
        format!("|{} {} {:->60}\n", self.writer, self.number, "")
    }

    /// The number of the shared log.
    fn log(self) -> u64 {
        self.number / OPERATIONS % SHARED_LOGS
    }

    /// Parses writer and number of a line.
    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line[1..].split(' ').collect();
        Self { writer: words[0].parse().expect(line), number: words[1].parse().expect(line) }
    }
}

fn replace_file(own: &Path, writer: usize, number: u64) -> io::Result<String> {
    let index = number % REPLACED_FILES;
    let mut file = File::create(own.join("new"))?;
    file.write_all(&content_of(writer, number))?;
    file.sync_all()?;
    fs::rename(own.join("new"), own.join(format!("file-{index}")))?;
    sync_directory(own)?;
    Ok(format!("replaced {index} {number}"))
}

fn append_line(shared: &Path, writer: usize, number: u64) -> io::Result<String> {
    let operation = AppendOperation { writer, number };
    let path = shared.join(format!("log-{}", operation.log()));
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let line = operation.line();
    assert_eq!(file.write(line.as_bytes())?, line.len(), "only a part of a line is appended");
    file.sync_data()?;
    Ok(format!("appended 0 {number}"))
}

/// Creates a name that only one of all writers can create.
fn claim_name(shared: &Path, writer: usize, name: u64) -> io::Result<String> {
    match File::create_new(shared.join(format!("claim-{name}"))) {
        Ok(mut file) => {
            write!(file, "{writer}")?;
            file.sync_all()?;
            sync_directory(shared)?;
            Ok(format!("claimed 0 {name}"))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(format!("lost 0 {name}")),
        Err(error) => Err(error),
    }
}

fn overwrite_block(own: &Path, writer: usize, number: u64) -> io::Result<String> {
    let block = number % BLOCKS;
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(own.join("blocks"))?;
    file.write_all_at(&block_of(writer, number), block * BLOCK_BYTES as u64)?;
    file.sync_data()?;
    Ok(format!("wrote {block} {number}"))
}

fn move_directory(own: &Path, shared: &Path, writer: usize, number: u64) -> io::Result<String> {
    let (new, moved) = (own.join("directory"), shared.join(format!("moved-{writer}-{number}")));
    fs::create_dir_all(&new)?;
    fs::write(new.join("file"), content_of(writer, number))?;
    File::open(new.join("file"))?.sync_all()?;
    fs::rename(&new, &moved)?;
    sync_directory(shared)?;
    Ok(format!("moved 0 {number}"))
}

/// Removes the directory that the previous operation has moved, every second time.
fn remove_file(own: &Path, shared: &Path, writer: usize, number: u64) -> io::Result<String> {
    let moved = shared.join(format!("moved-{writer}-{}", number - 1));
    if number % 4 == 1 {
        return Ok(format!("kept 0 {}", number - 1));
    }
    fs::hard_link(moved.join("file"), own.join(format!("link-{number}")))?;
    fs::remove_dir_all(&moved)?;
    sync_directory(shared)?;
    sync_directory(own)?;
    Ok(format!("removed 0 {number}"))
}

/// The volume as one node sees it.
struct FoundTree {
    root: PathBuf,
    /// The operations whose lines are in the shared logs.
    logs: BTreeSet<AppendOperation>,
}

/// Reads the shared logs, which must consist of whole lines of the writers, each at most once. A writer that is killed in
/// write(2) may leave the first part of the line that it was appending.
fn read_shared_logs(root: &Path, manifests: &[Vec<String>]) -> BTreeSet<AppendOperation> {
    let (mut lines, mut parts) = (BTreeSet::new(), Vec::new());
    for log in 0..SHARED_LOGS {
        // Only a file that no writer has created yet may be missing.
        let text = match fs::read_to_string(root.join(format!("shared/log-{log}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text.unwrap(),
        };
        let place = |part: &str| format!("{part:?} in log {log} of {}", root.display());
        assert!(text.is_empty() || text.starts_with('|'), "{}", place(&text[..text.len().min(80)]));
        for part in text.split('|').skip(1).map(|part| format!("|{part}")) {
            if !part.ends_with('\n') {
                parts.push(PartialLine { log, text: part });
                continue;
            }
            let operation = AppendOperation::parse(&part);
            let AppendOperation { writer, number } = operation;
            let is_begun = manifests.get(writer).is_some_and(|lines| number <= lines.len() as u64);
            let is_right = part == operation.line() && AppendOperation::is_append(number) && operation.log() == log;
            assert!(is_begun && is_right && lines.insert(operation), "{}", place(&part));
        }
    }
    check_parts_of_lines(parts, manifests, &lines);
    lines
}

/// A part of a line in a shared log.
struct PartialLine {
    log: u64,
    text: String,
}

/// Requires that each part is the first part of a line that a killed writer was appending. No writer may have left two
/// parts.
fn check_parts_of_lines(mut parts: Vec<PartialLine>, manifests: &[Vec<String>], lines: &BTreeSet<AppendOperation>) {
    let next = |(writer, lines): (usize, &Vec<String>)| AppendOperation { writer, number: lines.len() as u64 };
    let mut interrupted: Vec<_> = manifests.iter().enumerate().map(next).collect();
    interrupted.retain(|operation| AppendOperation::is_append(operation.number) && !lines.contains(operation));
    // A short part may be of several writers. So the longest part is assigned first.
    parts.sort_by_key(|part| std::cmp::Reverse(part.text.len()));
    for PartialLine { log, text } in parts {
        let index =
            interrupted.iter().position(|operation| operation.log() == log && operation.line().starts_with(&text));
        interrupted.remove(index.unwrap_or_else(|| panic!("{text:?} in log {log} is of none of {interrupted:?}")));
    }
}

impl FoundTree {
    /// Compares the volume with the lines of a writer. One more operation may be visible, which was not acknowledged before
    /// the kill.
    fn verify(&self, writer: usize, lines: &[String]) {
        let last = lines.len() as u64;
        let mut newest = BTreeMap::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let (index, number) = (words[1].parse::<u64>().unwrap(), words[2].parse::<u64>().unwrap());
            let place = format!("{line:?} of writer {writer} in {}", self.root.display());
            match words[0] {
                "replaced" | "wrote" => _ = newest.insert((words[0], index), number),
                "appended" => assert!(self.logs.contains(&AppendOperation { writer, number }), "{place}"),
                "claimed" => {
                    let found = fs::read_to_string(self.root.join(format!("shared/claim-{number}")));
                    assert_eq!(found.ok(), Some(writer.to_string()), "{place}");
                }
                "lost" => assert!(self.root.join(format!("shared/claim-{number}")).exists(), "{place}"),
                "kept" => assert_eq!(self.moved_content(writer, number), Some(content_of(writer, number)), "{place}"),
                "removed" => {
                    assert_eq!(self.moved_content(writer, number - 1), None, "{place}");
                    let linked = fs::read(own_directory(&self.root, writer).join(format!("link-{number}")));
                    assert_eq!(linked.ok(), Some(content_of(writer, number - 1)), "{place}");
                }
                _ => {}
            }
        }
        for ((operation, index), number) in newest {
            let is_content = |number: u64| match operation {
                "replaced" => self.own_content(writer, index) == content_of(writer, number),
                _ => self.block(writer, index) == block_of(writer, number),
            };
            assert!(is_content(number) || is_content(last), "{operation} {index} {number} of writer {writer}");
        }
    }

    fn moved_content(&self, writer: usize, number: u64) -> Option<Vec<u8>> {
        fs::read(self.root.join(format!("shared/moved-{writer}-{number}/file"))).ok()
    }

    fn own_content(&self, writer: usize, index: u64) -> Vec<u8> {
        fs::read(own_directory(&self.root, writer).join(format!("file-{index}"))).unwrap()
    }

    fn block(&self, writer: usize, block: u64) -> Vec<u8> {
        let mut data = vec![0; BLOCK_BYTES];
        let file = File::open(own_directory(&self.root, writer).join("blocks")).unwrap();
        file.read_exact_at(&mut data, block * BLOCK_BYTES as u64).unwrap();
        data
    }
}
