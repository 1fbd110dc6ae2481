//! `ProcessName`: a process as a user specifies it, by id, as a child, or by name. `ProcessNames`: the names of processes
//! that `farfork run` started. Each name is a file in `RUN_DIR/parents` that contains the identity of its process. The
//! name of a process that has ended is free.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::inspect_response::Object;
use farfork_api::v1::{ChildDetail, InspectRequest, ListNodesRequest, NodeView};
use farfork_cluster::local::{LocalCluster, LocalNode};
use farfork_sys::process::{self, ProcStat};
use farfork_sys::process_identity::ProcessIdentity;
use farfork_wire::{ChildId, NodeName, SeedId};
use tonic::Code;

/// Maximum length of a name, in bytes. Such names fit into tables; a file name could have 255 bytes.
const NAME_BYTES_MAX: usize = 64;

/// Number of attempts to create the file of a name. An attempt is repeated if the file belongs to a process that has
/// ended.
const TRIES: usize = 3;

/// A process as specified by a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessName {
    /// Process id.
    Pid(u32),
    /// Name that `farfork run --name` gave the process.
    Name(String),
    /// A child, by its id.
    Child(ChildId),
}

/// The names of one run directory.
pub(crate) struct ProcessNames {
    directory: PathBuf,
}

impl ProcessNames {
    /// Opens the names of a run directory.
    pub(crate) fn in_run_dir(run_dir: &Path) -> Self {
        Self { directory: run_dir.join("parents") }
    }

    /// Removes the names of processes that have ended, and the directory if no names are left.
    pub(crate) fn remove_ended(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if self.read(&entry.file_name().to_string_lossy()).is_none() {
                let _ = fs::remove_file(entry.path());
            }
        }
        // rmdir(2) fails while names are left.
        let _ = fs::remove_dir(&self.directory);
    }

    /// Registers this process under a name.
    ///
    /// # Errors
    /// Another running process has the name, or its file cannot be written.
    pub(crate) fn register(&self, name: &str) -> Result<(), Failure> {
        let own = i32::try_from(std::process::id()).map_err(io::Error::other).and_then(ProcessIdentity::of);
        let written = own.and_then(|own| {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            self.write(name, own)
        });
        match written {
            Ok(None) => Ok(()),
            Ok(Some(other)) => Err(Failure::new(
                Code::AlreadyExists,
                format!("name {name}"),
                format!("running process {} has this name", other.pid),
            )
            .with_next_step("choose another, or end that process")),
            Err(error) => Err(Failure::new(
                Code::Internal,
                format!("name {name}"),
                format!("it cannot be written to {}: {error}", self.directory.display()),
            )
            .with_next_step("run this as root, or name a directory of your own with --run-dir")),
        }
    }

    /// Frees a name.
    pub(crate) fn unregister(&self, name: &str) {
        let _ = fs::remove_file(self.directory.join(name));
    }

    /// Returns the id of the process with a name.
    ///
    /// # Errors
    /// No running process has that name.
    fn find_pid(&self, name: &str) -> Result<u32, Failure> {
        let found = self.read(name).and_then(|identity| u32::try_from(identity.pid).ok());
        found.ok_or_else(|| {
            let refuse = |cause| Failure::new(Code::NotFound, format!("process {name}"), cause);
            match name.parse::<SeedId>() {
                Ok(_) => refuse("this is the id of a seed")
                    .with_next_step(format!("start children of it: `farfork fork {name}`")),
                Err(_) => refuse("no running process has this name")
                    .with_next_step("give its id, or start it with `farfork run --name`"),
            }
        })
    }

    /// Creates the file of a name. Returns the running process that already has the name, if any.
    fn write(&self, name: &str, own: ProcessIdentity) -> io::Result<Option<ProcessIdentity>> {
        let path = self.directory.join(name);
        for _ in 0..TRIES {
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => return file.write_all(own.to_string().as_bytes()).map(|()| None),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => {}
            }
            if let Some(other) = self.read(name) {
                return Ok(Some(other));
            }
            fs::remove_file(&path)?;
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns the process that has a name, if the process still runs.
    fn read(&self, name: &str) -> Option<ProcessIdentity> {
        let text = fs::read_to_string(self.directory.join(name)).ok()?;
        let identity: ProcessIdentity = text.parse().ok()?;
        identity.open().ok().flatten().filter(|_| !is_zombie(identity.pid)).map(|_| identity)
    }
}

/// Explains that a seed was not found, if its user named a process.
pub(crate) fn explain_missing_seed(seed: &str, run_dir: &Path, failure: Failure) -> Failure {
    let is_process = || parse_name(seed).is_ok() && ProcessNames::in_run_dir(run_dir).find_pid(seed).is_ok();
    // A node may be missing, too.
    let is_unknown_seed = failure.code() == Code::NotFound && failure.object() == format!("seed `{seed}`");
    if !is_unknown_seed || !is_process() {
        return failure;
    }
    Failure::new(Code::NotFound, format!("process {seed}"), "this is a running process, and no seed has its name")
        .with_next_step(format!("prepare it first: `farfork prepare {seed}` prints the id of the seed"))
}

/// Whether a process has ended, and its parent has not waited for it. A process whose main thread has ended still runs if it
/// has other threads.
fn is_zombie(pid: i32) -> bool {
    let has_main_thread_ended = ProcStat::read(pid).is_ok_and(|stat| stat.state == 'Z');
    has_main_thread_ended && process::thread_ids(pid).map_or(0, |threads| threads.len()) <= 1
}

/// Returns the id of the process that a user specified. `client` is connected to the node that will read the process. Names
/// are those of `run_dir`.
///
/// # Errors
/// No running process has that name, or the child has ended or is on another node.
pub(crate) async fn resolve_pid(client: &mut Client, process: &ProcessName, run_dir: &Path) -> Result<u32, Failure> {
    match process {
        ProcessName::Pid(pid) => Ok(*pid),
        ProcessName::Name(name) => ProcessNames::in_run_dir(run_dir).find_pid(name),
        ProcessName::Child(id) => find_child_pid(client, id, run_dir).await,
    }
}

async fn find_child_pid(client: &mut Client, id: &ChildId, run_dir: &Path) -> Result<u32, Failure> {
    let failed = |status| Failure::from_status(format!("child {id}"), &status);
    let refuse = |cause: String| Failure::new(Code::FailedPrecondition, format!("child {id}"), cause);
    let nodes = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await;
    let nodes = nodes.map_err(failed)?.into_inner().nodes;
    if !nodes.iter().any(|node| node.is_self && node.name == id.node().as_str()) {
        return Err(refuse(format!("it is on node {}, and only its own node can read it", id.node()))
            .with_next_step(other_node_step(id.node(), &nodes, run_dir)));
    }
    let answer = client.inspect(request_with_timeout(QUERY_TIMEOUT, InspectRequest { id: id.to_string() })).await;
    match answer.map_err(failed)?.into_inner().object {
        Some(Object::Child(ChildDetail { child: Some(child), .. })) if child.exit.is_none() => Ok(child.pid),
        _ => Err(refuse("it has ended".to_owned()).with_next_step("list running children with `farfork ps --running`")),
    }
}

/// Returns how to connect to another node of the cluster with these nodes. A local cluster in the run directory may be another one, with nodes of the same names and other addresses.
fn other_node_step(name: &NodeName, nodes: &[NodeView], run_dir: &Path) -> String {
    let cluster = LocalCluster::load(run_dir).ok();
    let is_listed = |local: &&LocalNode| {
        let address = local.address.to_string();
        local.name == name.as_str() && nodes.iter().any(|node| node.name == local.name && node.address == address)
    };
    match cluster.iter().flat_map(LocalCluster::nodes).find(is_listed) {
        Some(local) => format!("run this command with `--socket {}`", local.socket.display()),
        None => format!("run this command on the machine of {name}, with --socket if it has several nodes"),
    }
}

/// Parses a process id, the id of a child, or a name.
///
/// # Errors
/// As [`parse_name`].
pub(crate) fn parse_process(text: &str) -> Result<ProcessName, String> {
    match (text.parse(), text.parse()) {
        (Ok(pid), _) => Ok(ProcessName::Pid(pid)),
        (_, Ok(child)) => Ok(ProcessName::Child(child)),
        _ => parse_name(text).map(ProcessName::Name),
    }
}

/// Checks a name. It must not look like a process id, and must not contain a slash.
///
/// # Errors
/// The error says which names are valid.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins_right = text.starts_with(|first: char| first.is_ascii_alphabetic());
    if begins_right && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(format!("a name is a letter, then letters, digits, `-`, `_` and `.`, {NAME_BYTES_MAX} at most"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_resolved_while_its_process_runs() {
        let scratch = tempfile::tempdir().unwrap();
        let parents = ProcessNames { directory: scratch.path().join("parents") };
        assert_eq!(parents.find_pid("warm").unwrap_err().code(), Code::NotFound);
        parents.register("warm").unwrap();
        assert_eq!(parents.find_pid("warm").unwrap(), std::process::id());
        assert_eq!(parents.register("warm").unwrap_err().code(), Code::AlreadyExists);
        parents.remove_ended();
        assert_eq!(parents.find_pid("warm").unwrap(), std::process::id());
        parents.unregister("warm");
        assert_eq!(parents.find_pid("warm").unwrap_err().code(), Code::NotFound);

        // The process id was reused: the recorded process had an earlier start time.
        let gone = ProcessIdentity { start_ticks: 1, ..ProcessIdentity::of(std::process::id() as i32).unwrap() };
        fs::write(parents.directory.join("warm"), gone.to_string()).unwrap();
        assert_eq!(parents.find_pid("warm").unwrap_err().code(), Code::NotFound);
        parents.register("warm").unwrap();
        assert_eq!(parents.find_pid("warm").unwrap(), std::process::id());
        fs::write(parents.directory.join("warm"), gone.to_string()).unwrap();
        parents.remove_ended();
        assert!(!parents.directory.exists());
    }

    #[test]
    fn the_name_of_a_zombie_is_free() {
        let scratch = tempfile::tempdir().unwrap();
        let parents = ProcessNames { directory: scratch.path().join("parents") };
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let identity = ProcessIdentity::of(ended.id().cast_signed()).unwrap();
        fs::create_dir(&parents.directory).unwrap();
        fs::write(parents.directory.join("ended"), identity.to_string()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while ProcStat::read(identity.pid).unwrap().state != 'Z' {
            assert!(std::time::Instant::now() < deadline, "true(1) has not ended");
            std::thread::yield_now();
        }
        assert_eq!(parents.find_pid("ended").unwrap_err().code(), Code::NotFound);
        parents.remove_ended();
        assert!(!parents.directory.exists());
        ended.wait().unwrap();
    }

    #[test]
    fn a_process_is_a_number_or_a_valid_name() {
        assert_eq!(parse_process("12"), Ok(ProcessName::Pid(12)));
        assert_eq!(parse_process("py-3.11"), Ok(ProcessName::Name("py-3.11".to_owned())));
        let child = "n2.c00f3a96c5d217e84";
        assert_eq!(parse_process(child), Ok(ProcessName::Child(child.parse().unwrap())));
        let too_long = "a".repeat(NAME_BYTES_MAX + 1);
        for text in ["", "../lock", ".hidden", "a b", "a/b", "12x", "-1", &too_long] {
            assert!(parse_process(text).is_err(), "{text:?}");
        }
    }
}
