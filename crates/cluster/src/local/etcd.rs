//! Members of an etcd on this machine: `farfork up --etcd` starts them in the namespaces of its nodes, and tests start them
//! at the loopback.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::catalog::EtcdLocation;

/// The addresses and the directory of one member.
#[derive(Clone, Debug)]
pub(super) struct EtcdMember {
    pub(super) name: String,
    /// The address for requests.
    pub(super) client: SocketAddr,
    /// The address for other members.
    pub(super) peer: SocketAddr,
    pub(super) data: PathBuf,
}

impl EtcdMember {
    /// The command that runs this member of a cluster. It must run in the foreground of its process.
    pub(super) fn arguments(&self, members: &[Self], tls: Option<&EtcdTls>) -> Vec<String> {
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

/// An etcd at the loopback, for tests. Its members are killed when this value is dropped.
#[derive(Debug)]
pub struct LoopbackEtcd {
    members: Vec<EtcdMember>,
    tls: Option<EtcdTls>,
    processes: Vec<Child>,
}

impl LoopbackEtcd {
    /// Starts members, which keep their data and their logs in `directory`. They answer after about three seconds.
    ///
    /// # Errors
    /// When `etcd` cannot be started: Debian's package `etcd-server` has it.
    pub fn start(directory: &Path, count: usize, tls: Option<EtcdTls>) -> io::Result<Self> {
        // Bound together, so that all ports differ.
        let listeners: Vec<_> =
            (0..2 * count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
        let addresses: Vec<SocketAddr> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        drop(listeners);
        let member = |index: usize| {
            let name = format!("m{index}");
            let data = directory.join(&name);
            EtcdMember { name, client: addresses[2 * index], peer: addresses[2 * index + 1], data }
        };
        let members = (0..count).map(member).collect();
        let mut etcd = Self { members, tls, processes: Vec::new() };
        for index in 0..count {
            let process = etcd.spawn(index)?;
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
        self.processes[index] = self.spawn(index)?;
        Ok(())
    }

    fn spawn(&self, index: usize) -> io::Result<Child> {
        let member = &self.members[index];
        let log = File::options().create(true).append(true).open(member.data.with_extension("log"))?;
        let mut command = Command::new("etcd");
        command.args(member.arguments(&self.members, self.tls.as_ref())).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log).spawn()
    }
}

impl Drop for LoopbackEtcd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
