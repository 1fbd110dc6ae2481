//! Connects to a control port. The server must prove that it is a node of the cluster, and the expected one if one is
//! named.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use farfork_trust::{Credentials, Fingerprint, joining_client_config};
use farfork_wire::NodeName;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::{DnsName, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Uri;
use tower::Service;

use super::revalidated_stream::RevalidatedStream;
use super::stream::{ControlStream, explain_tls_error};

/// What this side shows, and what it wants to see.
#[derive(Debug, Clone)]
pub enum TlsMode {
    /// A member's certificate; a node of the cluster.
    Mutual(Credentials),
    /// None yet; a node of the cluster whose authority has this fingerprint.
    PinnedAuthority(Fingerprint),
    /// None, of nobody: in clear.
    Plaintext,
}

/// Makes the connections of a channel; each uses the credentials of its time.
#[derive(Debug, Clone)]
pub struct MtlsConnector {
    address: SocketAddr,
    /// The node that must answer; any of the cluster where it is not known.
    expected: Option<NodeName>,
    tls_mode: TlsMode,
}

impl MtlsConnector {
    /// Connects to `address`. The server must be the node `expected`, if one is given, in the way that `proof` requires.
    pub fn new(address: SocketAddr, expected: Option<NodeName>, proof: TlsMode) -> Self {
        Self { address, expected, tls_mode: proof }
    }

    async fn connect(self) -> io::Result<RevalidatedStream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let Some(config) = self.tls_mode.client_config()? else {
            return Ok(RevalidatedStream::unchecked(ControlStream::Plain(stream)));
        };
        let name = match self.expected {
            Some(node) => ServerName::DnsName(DnsName::try_from(node.as_str().to_owned()).map_err(io::Error::other)?),
            None => ServerName::IpAddress(self.address.ip().into()),
        };
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(explain_tls_error)?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
        let stream = ControlStream::wait_server_accepted(stream.into()).await?;
        Ok(match &self.tls_mode {
            TlsMode::Mutual(credentials) => RevalidatedStream::with_check(credentials, shown, stream),
            TlsMode::PinnedAuthority(_) | TlsMode::Plaintext => RevalidatedStream::unchecked(stream),
        })
    }
}

impl TlsMode {
    fn client_config(&self) -> io::Result<Option<Arc<ClientConfig>>> {
        Ok(match self {
            Self::Mutual(credentials) => Some(credentials.control_client_config()),
            Self::PinnedAuthority(pin) => Some(joining_client_config(*pin).map_err(io::Error::other)?),
            Self::Plaintext => None,
        })
    }
}

impl Service<Uri> for MtlsConnector {
    type Response = TokioIo<RevalidatedStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<RevalidatedStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The address is the connector's own: a URI has no room for what is expected there.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}
