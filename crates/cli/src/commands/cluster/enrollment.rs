//! `farfork cluster init`, `token`, `join` and `issue`: create a cluster, a join token, an identity of a node, or a client's
//! certificate.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::catalog::{CatalogError, CatalogLocation, CatalogReference, claim_catalog};
use farfork_trust::{
    CLIENT_VALID_MAX, DirectoryError, Fingerprint, Role, TOKEN_VALID, TOKEN_VALID_MAX, TrustDirectory, member,
};
use farfork_wire::NodeName;
use tonic::Code;

use crate::commands::node::read_token;
use crate::connection::parse_address;
use crate::duration::parse_duration;
use crate::{GlobalArgs, output};

/// Create a cluster: its authority, and the identity of its first node.
///
/// The command fails if the trust directory already has an identity or a roster.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster init --name n1
  farfork node --name n1 --listen 10.0.0.1:7400
  farfork cluster init --name n1 --catalog etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Init {
    /// Name of the first node, the same as for `farfork node --name`.
    #[arg(long, default_value = "n1", value_name = "NODE")]
    name: NodeName,
    /// Name of the cluster: a letter, then up to 62 of a-z, 0-9 and `-`.
    #[arg(long, default_value = "farfork", value_name = "NAME")]
    cluster: NodeName,
    /// File or etcd cluster that keeps the members, their names and the revoked keys, as of `farfork node --catalog`.
    ///
    /// A node then finds the others after a stop even if all addresses have changed, and learns of revoked keys even if no other
    /// node runs. Nodes that join get the location with their certificate. It is also the default of `farfork node --catalog`.
    /// All nodes must reach it.
    #[arg(long, value_name = "FILE|URL")]
    catalog: Option<CatalogLocation>,
}

impl Init {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let directory = global.trust();
        let catalog = self.catalog.map(absolute_location).transpose()?;
        if let Some(location) = &catalog {
            require_unused(location)?;
        }
        member::create_cluster(&directory, &self.cluster, &self.name, SystemTime::now())?;
        if let Some(location) = catalog {
            claim(&directory, location)?;
        }
        if global.json {
            output::print_json(
                &serde_json::json!({ "cluster": self.cluster, "node": self.name, "trust": directory.root() }),
            );
        } else {
            output::print_line(&format!(
                "cluster {} is made; {} holds its authority",
                self.cluster,
                directory.root().display()
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A daemon has another working directory than this command.
pub(super) fn absolute_location(location: CatalogLocation) -> anyhow::Result<CatalogLocation> {
    Ok(match location {
        CatalogLocation::File(path) => CatalogLocation::File(std::path::absolute(path)?),
        CatalogLocation::Etcd(_) => location,
    })
}

/// Refuses a catalog that cannot be read, or has the members of a cluster already.
fn require_unused(location: &CatalogLocation) -> Result<(), Failure> {
    let failure = |error: CatalogError| Failure::new(Code::FailedPrecondition, format!("catalog {location}"), error);
    match location.open().and_then(|catalog| catalog.read_cluster()).map_err(failure)?.cluster {
        Some(theirs) => Err(failure(CatalogError::OtherCluster { theirs })),
        None => Ok(()),
    }
}

/// Reserves the catalog for the new cluster. The first authority identifies the cluster.
fn claim(directory: &TrustDirectory, location: CatalogLocation) -> anyhow::Result<()> {
    let (roster, _) = directory.read_roster()?;
    let authority = roster.authorities().first().context("the roster has no authority")?;
    let cluster = Fingerprint::of_certificate(authority).to_string();
    let claimed = location.open().and_then(|catalog| claim_catalog(&*catalog, &cluster));
    claimed.map_err(|error| Failure::new(Code::FailedPrecondition, format!("catalog {location}"), error))?;
    Ok(CatalogReference { location: Some(location), cluster }.write(directory)?)
}

/// Print a join token, with which machines join the cluster as nodes.
///
/// The token is a secret. Any machine that has it can become a node until the token expires.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster token --ttl 10m | ssh n2 'umask 077; cat > /run/join.token'
  ssh n2 farfork node --name n2 --listen 10.0.0.2:7400 --join 10.0.0.1:7400 --token-file /run/join.token

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct TokenCommand {
    /// Lifetime of the token, up to 30 days.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "1h")]
    ttl: Duration,
    /// Let one machine join with the token, and no other one.
    #[arg(long)]
    once: bool,
}

impl TokenCommand {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let create = if self.once { member::create_one_time_token } else { member::create_join_token };
        let token = create(&global.trust(), SystemTime::now(), self.ttl)?;
        let text = token.to_text();
        if global.json {
            output::print_json(&serde_json::json!({ "token": *text, "ttl_s": self.ttl.as_secs() }));
        } else {
            output::print_line(&text);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Join a cluster: get an identity for the node of this machine, and write it to the trust directory.
///
/// Does not start the node. `farfork node --join --token-file` joins and starts in one step.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ssh n1 farfork cluster token --once | farfork cluster join --name n2 --join 10.0.0.1:7400 --token-file -
  farfork node --name n2 --listen 10.0.0.2:7400 --join 10.0.0.1:7400

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct JoinCluster {
    /// Name of the node, unique in the cluster.
    #[arg(long, value_name = "NODE")]
    name: NodeName,
    /// Address of a node of the cluster. Can be repeated; one node that answers is enough.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address, required = true)]
    join: Vec<SocketAddr>,
    /// File with the join token, or `-` for standard input. Only the file's owner may have access to it.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

impl JoinCluster {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let directory = global.trust();
        if directory.has_identity() {
            return Err(DirectoryError::AlreadyExists { path: directory.identity_path() }.into());
        }
        farfork_node::join_cluster(&directory, &self.name, &self.join, &read_token(&self.token_file)?).await?;
        if global.json {
            output::print_json(&serde_json::json!({ "node": self.name, "trust": directory.root() }));
        } else {
            let root = directory.root().display();
            output::print_line(&format!("node {} is a member; {root} has its identity", self.name));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Create a trust directory for a client, such as a person, a program or a dashboard.
///
/// Copy the directory to the client's machine, and select it there: `farfork --node 10.0.0.1:7400 --trust DIR ps`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster issue alice --role client --out ./alice
  farfork --node 10.0.0.1:7400 --trust ./alice seeds

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Issue {
    /// Name of the client: a letter, then up to 62 of a-z, 0-9 and `-`.
    name: NodeName,
    /// Permissions of the client: `client` for all user commands, `read-only` for lists, details, logs and results.
    #[arg(long, value_name = "ROLE", value_parser = parse_role)]
    role: Role,
    /// Directory to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Lifetime of the certificate, up to 730 days.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "365d")]
    ttl: Duration,
}

/// Parses a role for which a certificate can be issued. Nodes join with a token instead.
fn parse_role(text: &str) -> Result<Role, String> {
    match text.parse() {
        Ok(Role::Node) => Err("a node joins with a token: `farfork cluster token`".to_owned()),
        Ok(role) => Ok(role),
        Err(_) => Err("the roles are client and read-only".to_owned()),
    }
}

impl Issue {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let (from, into) = (global.trust(), TrustDirectory::new(&self.out));
        member::issue_client_directory(&from, &into, self.role, &self.name, SystemTime::now(), self.ttl)?;
        if global.json {
            let role = self.role.as_str();
            output::print_json(&serde_json::json!({ "name": self.name, "role": role, "trust": into.root() }));
        } else {
            output::print_line(&into.root().display().to_string());
        }
        Ok(ExitCode::SUCCESS)
    }
}

const _: () = assert!(TOKEN_VALID.as_secs() == 3600, "the help of --ttl has this default");
const _: () = assert!(TOKEN_VALID_MAX.as_secs() == 30 * 86_400, "the help of --ttl has this limit");
const _: () = assert!(CLIENT_VALID_MAX.as_secs() == 730 * 86_400, "the help of --ttl has this limit");
