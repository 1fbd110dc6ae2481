//! Records the state of a worker's processes when a test hangs: where each thread waits, and the ends of the daemons'
//! logs.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use farfork_cluster::local::LocalCluster;

use super::group_set::GroupSet;
use super::{cleanup, log_directory};
use crate::harness::print_error;

/// Longest time for the whole record. Reading a file of `/proc` may block on a lock that a hanging process holds.
const RECORD_LIMIT: Duration = Duration::from_secs(20);

/// Maximum number of recorded threads: a fork bomb has thousands.
const THREADS_MAX: usize = 1000;

/// Number of bytes from the end of each daemon's log that are recorded.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// Files of `/proc` that show where a thread waits. Reading them needs no lock of the thread's address space.
const THREAD_FILES: [&str; 3] = ["comm", "wchan", "syscall"];

/// Appends the record to a file.
pub(super) fn record(groups: &GroupSet, directory: &Path, mark: &str, path: &Path) {
    let (sender, receiver) = mpsc::channel();
    let (groups, directory, mark) = (groups.clone(), directory.to_owned(), mark.to_owned());
    let log = log_directory::open_log(path);
    let write = move || {
        let mut log = log?;
        write_threads(&groups, &mut log)?;
        write_daemon_logs(&cleanup::clusters(&directory, &mark), &mut log)
    };
    if let Err(error) = thread::Builder::new().spawn(move || sender.send(write())) {
        // A fork bomb may use up the processes of the machine.
        print_error(format_args!("{}: not written: {error}", path.display()));
        return;
    }
    match receiver.recv_timeout(RECORD_LIMIT) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => print_error(format_args!("{}: {error}", path.display())),
        Err(_) => print_error(format_args!("{}: not complete within {} s", path.display(), RECORD_LIMIT.as_secs())),
    }
}

fn write_threads(groups: &GroupSet, log: &mut File) -> io::Result<()> {
    writeln!(log, "== threads")?;
    let threads = groups.members()?.into_iter().flat_map(|pid| {
        farfork_sys::process::thread_ids(pid).unwrap_or_default().into_iter().map(move |tid| (pid, tid))
    });
    for (pid, tid) in threads.take(THREADS_MAX) {
        let thread = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let mut text = format!("process {pid} ({}), thread {tid}:", program.display());
        for file in THREAD_FILES {
            let _ = write!(text, " {file} {};", read(&thread.join(file)));
        }
        let stack = read(&thread.join("stack"));
        for line in stack.lines() {
            let _ = write!(text, "\n    {line}");
        }
        // Each thread is written at once: reading a file of the next thread may never return.
        writeln!(log, "{text}")?;
    }
    Ok(())
}

fn write_daemon_logs(clusters: &[PathBuf], log: &mut File) -> io::Result<()> {
    for cluster in clusters.iter().filter_map(|run_dir| LocalCluster::load(run_dir).ok()) {
        for node in cluster.nodes() {
            for path in [node.log_path(), node.run_dir.join("pager.log")] {
                writeln!(log, "== {}\n{}", path.display(), tail(&path).unwrap_or_else(|error| error.to_string()))?;
            }
        }
    }
    Ok(())
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).map_or_else(|error| format!("({error})"), |text| text.trim_end().to_owned())
}
