//! Determines a node's identity at its start: from its trust directory, otherwise by joining with a token. A daemon never
//! creates a cluster: with a mistyped directory, it would silently become a cluster of its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use farfork_api::client::{cluster_client, network_channel, request_with_timeout};
use farfork_api::control_connection::TlsMode;
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_cluster::catalog::CatalogReference;
use farfork_trust::member::{self, MemberError};
use farfork_trust::{
    Credentials, CredentialsError, DirectoryError, Encryption, Identity, JoinToken, KeyError, Role, TrustDirectory,
    UncertifiedKey,
};
use farfork_wire::NodeName;

use super::Security;
use crate::options::{Options, TrustOptions};

/// Why a node has no identity in a cluster.
#[derive(Debug, thiserror::Error)]
pub enum EnrollmentError {
    /// Its trust directory cannot be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The issued certificate cannot be installed.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A file of its trust directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// No key can be generated.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The directory belongs to another node.
    #[error(
        "{directory} has the identity {identity}, and this is node `{name}`; give each node a directory of its own with --trust"
    )]
    IdentityMismatch {
        /// The directory.
        directory: String,
        /// The identity in it.
        identity: Identity,
        /// This node's name.
        name: NodeName,
    },
    /// The node has neither an identity nor a cluster to join.
    #[error(
        "{directory} has no identity for this node; correct --trust, create a new cluster with \
         `farfork cluster init --name {name} --trust {directory}`, or join a cluster with --join and --token-file"
    )]
    NoIdentity {
        /// The directory.
        directory: String,
        /// This node's name.
        name: NodeName,
    },
    /// The node is to join a cluster, but has neither identity nor token.
    #[error(
        "{directory} has no identity for this node, and --join needs one; \
         print a token with `farfork cluster token` on a node of the cluster, and name its file with --token-file"
    )]
    NoToken {
        /// The directory.
        directory: String,
    },
    /// The node has a token, but no address of a member.
    #[error("a token without a node to join; name one with --join")]
    NoAddress,
    /// Every node refused the request, or could not be reached.
    #[error("no node let it join: {0}")]
    Refused(String),
}

/// Determines this node's identity.
///
/// # Errors
/// [`EnrollmentError`].
pub(crate) async fn load_or_enroll(options: &Options) -> Result<Security, EnrollmentError> {
    let TrustOptions { directory, encryption, token, insecure } = &options.trust;
    if *insecure {
        tracing::warn!("INSECURE: this node accepts any peer, shows no certificate, and encrypts nothing (--insecure)");
        return Ok(Security::Insecure);
    }
    let directory = TrustDirectory::new(directory);
    if !directory.has_identity() {
        match token {
            Some(token) => join_cluster(&directory, &options.name, &options.join, token).await?,
            None if options.join.is_empty() => {
                let (directory, name) = (display_path(&directory), options.name.clone());
                return Err(EnrollmentError::NoIdentity { directory, name });
            }
            None => return Err(EnrollmentError::NoToken { directory: display_path(&directory) }),
        }
    }
    let credentials = Credentials::open(&directory, *encryption)?;
    let identity = credentials.identity();
    if identity.role != Role::Node || identity.name != options.name {
        return Err(EnrollmentError::IdentityMismatch {
            directory: display_path(&directory),
            identity,
            name: options.name.clone(),
        });
    }
    if *encryption == Encryption::Off {
        tracing::warn!("fabric traffic is not encrypted to nodes that also run with --encryption off");
    }
    tracing::info!(%identity, "this node's identity");
    Ok(Security::Members(credentials))
}

fn display_path(directory: &TrustDirectory) -> String {
    PathBuf::from(directory.root()).display().to_string()
}

/// Makes a machine a member of a cluster: requests a certificate from one of the nodes at `addresses`, and writes it to the
/// trust directory.
///
/// # Errors
/// [`EnrollmentError`].
pub async fn join_cluster(
    directory: &TrustDirectory,
    name: &NodeName,
    addresses: &[SocketAddr],
    token: &JoinToken,
) -> Result<(), EnrollmentError> {
    if addresses.is_empty() {
        return Err(EnrollmentError::NoAddress);
    }
    let key = UncertifiedKey::generate()?;
    let request = key.certificate_request()?;
    let mut refusals = Vec::new();
    for address in addresses {
        match request_certificate(*address, token, name, &request).await {
            Ok(got) => {
                member::install_join(directory, &key, name, &got.certificate, &got.roster, token.authority)?;
                if !got.catalog.is_empty() {
                    directory.write_catalog(&got.catalog)?;
                    CatalogReference::read(directory)?;
                }
                tracing::info!(%address, "joined the cluster");
                return Ok(());
            }
            Err(failure) => refusals.push(failure.to_string()),
        }
    }
    Err(EnrollmentError::Refused(refusals.join("; ")))
}

async fn request_certificate(
    address: SocketAddr,
    token: &JoinToken,
    name: &NodeName,
    request: &[u8],
) -> Result<v1::Credentials, Failure> {
    let mut client = cluster_client(network_channel(address, None, TlsMode::PinnedAuthority(token.authority)));
    let request = v1::JoinRequest {
        name: name.to_string(),
        request: request.to_vec(),
        passed_on_for: String::new(),
        proof: token.create_proof(name, request).as_bytes().to_vec(),
    };
    let answer = client.join(request_with_timeout(QUERY_TIMEOUT, request)).await;
    Ok(answer.map_err(|status| Failure::from_status(format!("node at {address}"), &status))?.into_inner())
}
