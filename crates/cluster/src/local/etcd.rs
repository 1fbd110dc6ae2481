//! Members of an etcd on this machine: `farfork up --etcd` starts them in the namespaces of its nodes, and tests start them
//! at the loopback.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_sys::clone;
use farfork_sys::process_identity::ProcessIdentity;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::daemon::{command_in_cgroups, read_log_tail, start_logged};
use super::error::LocalError;
use super::node::LocalNode;
use crate::catalog::{Catalog as _, EtcdCatalog, EtcdLocation};

/// Number of members of a cluster's etcd: it answers without one of them.
const MEMBERS: usize = 3;
/// The usual ports of a member. Members at the same address have these ports plus a multiple of `PORT_STEP`.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const PORT_STEP: u16 = 10;
/// Longest wait until most members answer.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// The prefix of the keys.
const PREFIX: &str = "/farfork";

/// The addresses and the directory of one member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EtcdMember {
    name: String,
    /// The address for requests.
    client: SocketAddr,
    /// The address for other members.
    peer: SocketAddr,
    data: PathBuf,
}

/// A member of the etcd of a local cluster, in the namespace of one of its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EtcdNode {
    member: EtcdMember,
    netns: String,
    cgroups: Vec<PathBuf>,
    /// The process that was started last, in the text form of [`ProcessIdentity`].
    process: Option<String>,
}

/// Plans the members of a cluster's etcd, in turn next to its nodes.
pub(super) fn plan_members(nodes: &[LocalNode], run_dir: &Path, cgroups: &[PathBuf]) -> Vec<EtcdNode> {
    let plan = |index: usize| {
        let (node, name) = (&nodes[index % nodes.len()], format!("m{}", index + 1));
        let offset = PORT_STEP * (index / nodes.len()) as u16;
        let address = |port: u16| SocketAddr::new(node.address.ip(), port + offset);
        let data = etcd_dir(run_dir).join(&name);
        let member = EtcdMember { name, client: address(CLIENT_PORT), peer: address(PEER_PORT), data };
        EtcdNode { member, netns: node.netns.clone(), cgroups: cgroups.to_vec(), process: None }
    };
    (0..MEMBERS).map(plan).collect()
}

/// The directory of the members' data and logs.
pub(super) fn etcd_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("etcd")
}

/// Requires that the program is installed.
pub(super) fn require_program() -> Result<(), LocalError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = std::env::split_paths(&path).any(|directory| directory.join("etcd").is_file());
    if is_installed { Ok(()) } else { Err(LocalError::NoEtcd) }
}

/// Starts the members that do not run.
pub(super) fn start_ended(nodes: &mut [EtcdNode]) -> Result<(), LocalError> {
    let members: Vec<EtcdMember> = nodes.iter().map(|node| node.member.clone()).collect();
    nodes.iter_mut().filter(|node| !node.is_alive()).try_for_each(|node| node.start(&members))
}

/// Where the nodes of a cluster find its etcd.
pub(super) fn location(nodes: &[EtcdNode]) -> EtcdLocation {
    let members = nodes.iter().map(|node| node.member.client.to_string()).collect();
    EtcdLocation { uses_tls: false, members, prefix: PREFIX.to_owned(), credentials: None }
}

/// Waits until most members answer. `node` has the network from which they are reached.
pub(super) fn wait_ready(nodes: &[EtcdNode], node: &LocalNode) -> Result<(), LocalError> {
    let deadline = Instant::now() + READY_LIMIT;
    let read = || EtcdCatalog::open(&location(nodes)).and_then(|catalog| catalog.read()).map_err(io::Error::other);
    while let Err(cause) = node.run_in_network(read) {
        let ended = nodes.iter().find(|node| !node.is_alive());
        if ended.is_some() || Instant::now() >= deadline {
            let log = ended.unwrap_or(&nodes[0]).member.log();
            return Err(LocalError::EtcdNoAnswer { cause, log_tail: read_log_tail(&log), log });
        }
    }
    Ok(())
}

impl EtcdNode {
    fn start(&mut self, members: &[EtcdMember]) -> Result<(), LocalError> {
        let mut command = command_in_cgroups(self.cgroups.iter().cloned());
        command.arg("etcd").args(self.member.arguments(members, None)).current_dir("/");
        let started = start_logged(&self.netns, command, &self.member.log()).map_err(|cause| LocalError::Start {
            node: self.member.name.clone(),
            command: "etcd".into(),
            cause,
        })?;
        self.process = Some(started.to_string());
        Ok(())
    }

    fn is_alive(&self) -> bool {
        let process = self.process.as_ref().and_then(|text| text.parse::<ProcessIdentity>().ok()?.open().ok()?);
        // Also reaps the process if it is a child of this one.
        process.is_some_and(|process| !clone::reap_within(&process, Duration::ZERO).unwrap_or(false))
    }
}

impl EtcdMember {
    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// The arguments of `etcd`.
    fn arguments(&self, members: &[Self], tls: Option<&EtcdTls>) -> Vec<String> {
        let cluster: Vec<String> =
            members.iter().map(|member| format!("{}=http://{}", member.name, member.peer)).collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (client, peer) = (format!("{scheme}://{}", self.client), format!("http://{}", self.peer));
        let data = self.data.display().to_string();
        let mut arguments: Vec<String> = [
            ["--name", &self.name],
            ["--data-dir", &data],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &cluster.join(",")],
        ]
        .as_flattened()
        .iter()
        .map(ToString::to_string)
        .collect();
        if let Some(EtcdTls { certificate, key, client_authority }) = tls {
            let files = [("--cert-file", certificate), ("--key-file", key), ("--trusted-ca-file", client_authority)];
            arguments.extend(files.map(|(option, file)| format!("{option}={}", file.display())));
            arguments.push("--client-cert-auth".to_owned());
        }
        arguments
    }
}

/// The files with which members accept requests over TLS, from clients with a certificate.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The certificate of the members.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificate of the authority that signs those of clients.
    pub client_authority: PathBuf,
}

/// An etcd for tests. Its members are killed when this value is dropped.
#[derive(Debug)]
pub struct TestEtcd {
    members: Vec<EtcdMember>,
    /// For each member, a command that executes its further arguments and ends with them. Empty: none.
    wrappers: Vec<Vec<String>>,
    tls: Option<EtcdTls>,
    processes: Vec<Child>,
}

impl TestEtcd {
    /// Starts members at the loopback, which keep their data and their logs in `directory`. They answer after about three
    /// seconds.
    ///
    /// # Errors
    /// When `etcd` cannot be started: Debian's package `etcd-server` has it.
    pub fn start(directory: &Path, count: usize, tls: Option<EtcdTls>) -> io::Result<Self> {
        // Bound together, so that all ports differ.
        let listeners: Vec<_> =
            (0..2 * count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
        let addresses: Vec<SocketAddr> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        drop(listeners);
        let places = addresses.chunks(2).map(|pair| (pair[0], pair[1], Vec::new())).collect();
        Self::start_members(directory, places, tls)
    }

    /// As `start`, with a member at each address. Its command executes its further arguments in the network namespace that has
    /// the address, and ends with them, as nsenter(1) does.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_at(directory: &Path, places: Vec<(IpAddr, Vec<String>)>) -> io::Result<Self> {
        let with_ports =
            |(address, wrapper)| (SocketAddr::new(address, CLIENT_PORT), SocketAddr::new(address, PEER_PORT), wrapper);
        Self::start_members(directory, places.into_iter().map(with_ports).collect(), None)
    }

    fn start_members(
        directory: &Path,
        places: Vec<(SocketAddr, SocketAddr, Vec<String>)>,
        tls: Option<EtcdTls>,
    ) -> io::Result<Self> {
        let mut etcd = Self { members: Vec::new(), wrappers: Vec::new(), tls, processes: Vec::new() };
        for (index, (client, peer, wrapper)) in places.into_iter().enumerate() {
            let name = format!("m{index}");
            let data = directory.join(&name);
            etcd.members.push(EtcdMember { name, client, peer, data });
            etcd.wrappers.push(wrapper);
        }
        for index in 0..etcd.members.len() {
            let process = etcd.spawn(index, &etcd.wrappers[index])?;
            etcd.processes.push(process);
        }
        Ok(etcd)
    }

    /// Where the keys that begin with `prefix` are.
    pub fn location(&self, prefix: &str) -> EtcdLocation {
        EtcdLocation {
            uses_tls: self.tls.is_some(),
            members: self.members.iter().map(|member| member.client.to_string()).collect(),
            prefix: prefix.to_owned(),
            credentials: None,
        }
    }

    /// Sends a signal to a member.
    ///
    /// # Errors
    /// As kill(2).
    pub fn signal(&self, index: usize, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.processes[index]), signal)?)
    }

    /// Kills a member.
    ///
    /// # Errors
    /// As kill(2).
    pub fn kill(&mut self, index: usize) -> io::Result<()> {
        self.processes[index].kill()?;
        self.processes[index].wait().map(drop)
    }

    /// Starts a killed member again.
    ///
    /// # Errors
    /// As `start`.
    pub fn restart(&mut self, index: usize) -> io::Result<()> {
        self.processes[index] = self.spawn(index, &self.wrappers[index])?;
        Ok(())
    }

    /// As `restart`, with a command that executes its further arguments and ends with them, such as unshare(1).
    ///
    /// # Errors
    /// As `start`.
    pub fn restart_in(&mut self, index: usize, wrapper: &[String]) -> io::Result<()> {
        self.processes[index] = self.spawn(index, wrapper)?;
        Ok(())
    }

    /// The process of a member.
    pub fn process_id(&self, index: usize) -> u32 {
        self.processes[index].id()
    }

    fn spawn(&self, index: usize, wrapper: &[String]) -> io::Result<Child> {
        let member = &self.members[index];
        let log = File::options().create(true).append(true).open(member.log())?;
        let words = [wrapper, &["etcd".to_owned()], &member.arguments(&self.members, self.tls.as_ref())].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log).spawn()
    }
}

impl Drop for TestEtcd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
