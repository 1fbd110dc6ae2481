//! Keeps a running node in its cluster: fetches newer rosters from other nodes, and gets a new key and certificate
//! before the old certificate expires, or after a rotation of the authority.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use farfork_api::client::{adopt_newer_roster, cluster_client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_trust::member::{self, IssuedCertificate};
use farfork_trust::{Credentials, NODE_VALID, UncertifiedKey};
use tonic::Code;

use crate::peers::Peers;

/// Interval between checks of the node's own certificate. A rotation of the authority reaches all nodes within a few
/// intervals.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after a failed renewal.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Age at which a node renews its certificate: a third of the validity is left.
const RENEW_AFTER: Duration = Duration::from_secs(NODE_VALID.as_secs() / 3 * 2);

/// Renews this node's certificate until the daemon stops.
pub(crate) async fn run_renewal(peers: Arc<Peers>) {
    let Some(credentials) = peers.security().credentials().cloned() else { return };
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let age = SystemTime::now().duration_since(credentials.issued_at()).unwrap_or_default();
        if age < RENEW_AFTER && credentials.is_issued_by_current_authority() {
            continue;
        }
        match renew_certificate(&peers).await {
            Ok(()) => tracing::info!("this node has a new key and certificate"),
            Err(failure) => {
                tracing::warn!("cannot renew this node's certificate: {failure}; trying again");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Fetches the roster with this version from another node, if it is newer.
pub(crate) async fn fetch_roster(peers: &Peers, address: SocketAddr, counter: u64) -> Result<(), Failure> {
    let Some(credentials) = peers.security().credentials() else { return Ok(()) };
    if counter <= credentials.roster_counter() {
        return Ok(());
    }
    if adopt_newer_roster(peers.channel(address), address, credentials).await? {
        tracing::info!(from = %address, counter, "a newer roster is in force");
    }
    Ok(())
}

/// Generates a new key for this node, and has it signed by the node that holds the authority.
///
/// # Errors
/// No reachable node holds the authority, or the files cannot be written.
pub(crate) async fn renew_certificate(peers: &Peers) -> Result<(), Failure> {
    let object = format!("certificate of node `{}`", peers.local_name());
    let failed = |cause: String| Failure::new(Code::Internal, &object, cause);
    let credentials = peers.security().credentials().ok_or_else(|| {
        failed("it runs with --insecure".to_owned()).with_next_step("start the node without --insecure")
    })?;
    let key = UncertifiedKey::generate().map_err(|error| failed(error.to_string()))?;
    let request = key.certificate_request().map_err(|error| failed(error.to_string()))?;
    let issued = if credentials.directory().holds_authority() {
        let issue = move |credentials: &Credentials| {
            let issued =
                member::renew_certificate(credentials.directory(), &credentials.own_peer(), &request, SystemTime::now);
            issued.map_err(|error| error.to_string())
        };
        let IssuedCertificate { certificate, roster } = with_credentials(credentials, issue).await.map_err(failed)?;
        v1::Credentials { certificate, roster, ..v1::Credentials::default() }
    } else {
        request_from_peers(peers, request, &object).await?
    };
    let install = move |credentials: &Credentials| {
        // The certificate may be signed by an authority that this node does not know yet.
        credentials.install_roster(&issued.roster).map_err(|error| error.to_string())?;
        member::install_renewal(credentials.directory(), &key, &issued.certificate)
            .map_err(|error| error.to_string())?;
        credentials.reload();
        Ok(())
    };
    with_credentials(credentials, install).await.map_err(failed)?;
    peers.drop_channels();
    Ok(())
}

async fn request_from_peers(peers: &Peers, request: Vec<u8>, object: &str) -> Result<v1::Credentials, Failure> {
    let mut refusals = Vec::new();
    for member in peers.others_alive() {
        let mut client = cluster_client(peers.channel(member.address));
        match client.renew(request_with_timeout(QUERY_TIMEOUT, v1::RenewRequest { request: request.clone() })).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => refusals.push(Failure::from_status(format!("node {}", member.name), &status).to_string()),
        }
    }
    let cause = format!("no reachable node has signed it ({})", refusals.join("; "));
    let step = "check the node where `farfork cluster init` was run";
    Err(Failure::new(Code::Unavailable, object, cause).with_next_step(step))
}

/// Runs `work`, which accesses files, in a separate thread.
pub(super) async fn with_credentials<T: Send + 'static>(
    credentials: &Credentials,
    work: impl FnOnce(&Credentials) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let credentials = credentials.clone();
    tokio::task::spawn_blocking(move || work(&credentials)).await.unwrap_or_else(|panic| Err(panic.to_string()))
}
