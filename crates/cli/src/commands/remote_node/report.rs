//! [`NodeReport`]: the identity and the daemon of this machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use farfork_api::client::{self, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::run_dir::RunDir;
use farfork_api::v1::ListRequest;
use farfork_sys::process_identity::ProcessIdentity;
use farfork_trust::{Credentials, Encryption, Fingerprint, TrustDirectory};
use serde::{Deserialize, Serialize};

use super::daemon;
use super::settings::NodeSettings;

/// The identity, the daemon and the CPUs of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeReport {
    /// The identity in the trust directory.
    pub(crate) identity: Option<IdentityReport>,
    /// The daemon of the run directory.
    pub(crate) daemon: Option<DaemonReport>,
    /// The CPUs, in the form `0-3,8`; `None` if they cannot be read.
    pub(crate) online_cpus: Option<String>,
}

/// An identity, and the cluster that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdentityReport {
    /// Role, name and cluster.
    pub(crate) identity: String,
    /// Fingerprints of the trusted authorities.
    pub(crate) authorities: Vec<String>,
    /// Whether the directory has the authority of the cluster.
    pub(crate) holds_authority: bool,
}

/// A daemon that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonReport {
    pub(crate) pid: i32,
    /// Whether it runs the installed program with the arguments of the settings.
    pub(crate) is_current: bool,
    /// Number of its children that have not ended.
    pub(crate) children_count: usize,
    /// Number of its seeds.
    pub(crate) seeds_count: usize,
}

impl NodeReport {
    /// Inspects this machine.
    pub(super) async fn inspect(settings: &NodeSettings) -> anyhow::Result<Self> {
        let daemon = match daemon::find(settings) {
            Some(process) => Some(DaemonReport::inspect(settings, &process).await?),
            None => None,
        };
        let online_cpus = fs::read_to_string("/sys/devices/system/cpu/online").ok();
        Ok(Self {
            identity: IdentityReport::read(&settings.trust)?,
            daemon,
            online_cpus: online_cpus.map(|list| list.trim().to_owned()),
        })
    }
}

impl IdentityReport {
    fn read(trust: &Path) -> anyhow::Result<Option<Self>> {
        let directory = TrustDirectory::new(trust);
        if !directory.has_identity() {
            return Ok(None);
        }
        let credentials = Credentials::open(&directory, Encryption::On)?;
        let identity = credentials.identity();
        let (roster, _) = credentials.roster();
        let authorities = roster.authorities().iter().map(|der| Fingerprint::of_certificate(der).to_string()).collect();
        Ok(Some(Self { identity: identity.to_string(), authorities, holds_authority: directory.holds_authority() }))
    }
}

impl DaemonReport {
    async fn inspect(settings: &NodeSettings, process: &ProcessIdentity) -> anyhow::Result<Self> {
        let failed = |status| Failure::from_status("the node", &status);
        let mut client = client::connect(&RunDir::new(&settings.run_dir).socket()).await?;
        let request = || request_with_timeout(QUERY_TIMEOUT, ListRequest { this_node_only: true, living_only: true });
        let children = client.list_children(request()).await.map_err(failed)?.into_inner().children;
        let seeds = client.list_seeds(request()).await.map_err(failed)?.into_inner().seeds;
        Ok(Self {
            pid: process.pid,
            is_current: is_current(settings, process.pid),
            children_count: children.len(),
            seeds_count: seeds.len(),
        })
    }
}

/// Whether a daemon runs the installed program with the arguments of the settings.
pub(super) fn is_current(settings: &NodeSettings, pid: i32) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let runs_program = file(Path::new(&format!("/proc/{pid}/exe"))) == file(&settings.program());
    runs_program && command_line(pid) == settings.command_line()
}

/// The command line of a process; empty if the process has ended.
pub(super) fn command_line(pid: i32) -> Vec<String> {
    let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split_terminator('\0').map(str::to_owned).collect()
}
