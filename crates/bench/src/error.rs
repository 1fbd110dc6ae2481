//! The errors that end a benchmark early.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_api::v1::exit::How;
use farfork_api::v1::wait_event::Event;
use farfork_cluster::local::LocalError;
use farfork_remote::inventory::InventoryError;
use farfork_remote::ssh::RemoteError;
use tonic::Code;

use crate::baseline::criu::CriuError;

/// Why a benchmark ends early. Everything that it has started also ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The nodes cannot be started.
    #[error("the benchmark's nodes: {0}")]
    Nodes(#[from] LocalError),
    /// The nodes run, but do not discover each other.
    #[error("node {} does not see node {} alive after {seconds} s: see {}", names[0], names[1], log_text(log.as_deref()))]
    NodesNotConnected {
        /// The node that was asked, and the missing one.
        names: [String; 2],
        seconds: u64,
        /// The run directory; `None` for nodes of hosts.
        log: Option<PathBuf>,
    },
    /// No node runs on a host.
    #[error("host {host}: no node answers at {}: {}; {}", socket.display(), cause.cause(), no_node_step(cause.code()))]
    NoNode { host: String, socket: PathBuf, cause: Box<Failure> },
    /// A part of an experiment is measured on this machine only.
    #[error("{part} cannot be measured on hosts (`--inventory`): {reason}")]
    NotOnHosts { part: &'static str, reason: &'static str },
    /// Nodes of hosts cannot have other options.
    #[error("the nodes of hosts run already, with `arguments` of the inventory, which {option} does not match")]
    OptionOfNodes { option: String },
    /// The inventory has an error.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// A host cannot be used.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The selection has fewer hosts than the experiment needs.
    #[error(
        "the experiment needs {needed} hosts: a server and its clients, or one for each node, but {selected} are selected; select more with --hosts, or choose fewer clients or nodes"
    )]
    TooFewHosts { needed: usize, selected: usize },
    /// Something failed on a host.
    #[error("host {host}: {cause}")]
    OnHost { host: String, cause: Box<Self> },
    /// A node refused a request.
    #[error(transparent)]
    Request(#[from] Failure),
    /// A file of the benchmark cannot be written.
    #[error("cannot write {path}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    /// A measured program or a baseline cannot be started, read or written.
    #[error("program `{program}`: {cause}")]
    Program { program: &'static str, cause: io::Error },
    /// A program printed a line other than the expected one.
    #[error("program `{program}` printed `{output}` instead of `{expected}`")]
    UnexpectedAnswer {
        program: &'static str,
        /// The line, or an empty string at the end of the output.
        output: String,
        expected: &'static str,
    },
    /// A program reports that it failed.
    #[error("program `{program}`: {why}")]
    ProgramFailed { program: &'static str, why: String },
    /// A program ended instead of giving an answer.
    #[error("program `{program}` ended without an answer: {status}")]
    ProgramEnded { program: &'static str, status: ExitStatus },
    /// A program gave no answer in time.
    #[error("program `{program}`: no answer within {} s", limit.as_secs_f64())]
    NoAnswer { program: &'static str, limit: Duration },
    /// A child did not exit normally.
    #[error("child {child}: {how}")]
    ChildFailed { child: String, how: ChildEnd },
    /// A Python function cannot be loaded, or a call of it failed.
    #[error("function `{function}`: {cause}")]
    FunctionFailed { function: String, cause: String },
    /// Memory had wrong contents.
    #[error("{count} {what} are wrong, so the figures are invalid")]
    WrongMemory {
        count: u64,
        /// Their kind: `pages of a child`.
        what: &'static str,
    },
    /// Two nodes read different contents from a volume.
    #[error("nodes {} and {} read different contents of {} from the same volume, so the figures are invalid", nodes[0], nodes[1], file.display())]
    DifferentFiles { nodes: [String; 2], file: PathBuf },
    /// The results of two calls of a function differ.
    #[error(
        "function `{function}`: two calls return different results (by repr()), so the results of children cannot be checked; return a value that depends only on the payload"
    )]
    UnsteadyFunction { function: String },
    /// The result of a function in a child differs from the result in its parent.
    #[error(
        "function `{function}`: the result in a child of {child_of} differs from the parent's (by repr()), so the figures are invalid"
    )]
    WrongResult { function: String, child_of: &'static str },
    /// A directory cannot be the root of parents.
    #[error("root {}: {cause}", path.display())]
    Root { path: PathBuf, cause: String },
    /// The Python that the user named does not run Python code.
    #[error("`{path}` does not run Python code; name another Python with --python")]
    NoPython { path: PathBuf },
    /// The packages of the embedded functions cannot be installed.
    #[error(
        "the functions' Python packages cannot be installed: {cause}; connect this machine to PyPI, or name a Python that has them: --python"
    )]
    FunctionPackages { cause: String },
    /// A peer system cannot be measured.
    #[error(transparent)]
    Criu(#[from] CriuError),
    /// The user interrupted the benchmark.
    #[error("the benchmark was interrupted")]
    Interrupted,
    /// The machine has too little memory for the parameters.
    #[error(
        "{mib} MiB need about {needed_mib} MiB of free memory, but {available_mib} MiB are free; choose smaller sizes with {option}"
    )]
    NotEnoughMemory { mib: u64, needed_mib: u64, available_mib: u64, option: &'static str },
}

/// Where the logs of nodes are.
fn log_text(run_dir: Option<&Path>) -> String {
    run_dir.map_or_else(|| "`farfork nodes` there".to_owned(), |run_dir| format!("node.log in {}", run_dir.display()))
}

/// The next step for a user when the node of a host does not answer.
fn no_node_step(code: Code) -> &'static str {
    match code {
        Code::Unavailable => "`farfork cluster deploy` installs one, or starts it again",
        _ => "see the log of its daemon on the host",
    }
}

impl BenchError {
    /// Adds the name of the machine on which the error occurred, if it has one.
    pub(crate) fn on_machine(self, name: Option<&str>) -> Self {
        match name {
            Some(name) => Self::OnHost { host: name.to_owned(), cause: Box::new(self) },
            None => self,
        }
    }

    /// Whether a Python function is the cause, so that other functions can still be measured.
    pub(crate) fn is_of_function(&self) -> bool {
        matches!(self, Self::FunctionFailed { .. } | Self::UnsteadyFunction { .. } | Self::WrongResult { .. })
    }
}

/// How a child ended that should have exited successfully.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// It exited with this status.
    Exited(u32),
    /// This signal killed it.
    Killed(u32),
    /// Its node reports another event, or none.
    Unknown(String),
}

impl ChildEnd {
    /// The end that an event of a node reports.
    pub(crate) fn from_event(event: Option<Event>) -> Self {
        let Some(Event::Ended(v1::Child { exit: Some(v1::Exit { how: Some(how), .. }), .. })) = event else {
            return Self::Unknown(format!("{event:?}"));
        };
        match how {
            How::Code(status) => Self::Exited(status),
            How::Signal(signal) => Self::Killed(signal),
            How::Lost(cause) => Self::Unknown(cause),
        }
    }
}

impl fmt::Display for ChildEnd {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(text, "it exited with status {status}"),
            Self::Killed(signal) => write!(text, "signal {signal} killed it"),
            Self::Unknown(event) => write!(text, "its node reports no exit: {event}"),
        }
    }
}
