//! Connects to a control port. Unless the connection is plaintext, the server must prove that it is a node of the cluster,
//! and the expected node if one is given.

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

/// How each side proves its identity.
#[derive(Debug, Clone)]
pub enum TlsMode {
    /// This side shows a member's certificate; the server must be a node of the cluster.
    Mutual(Credentials),
    /// This side has no certificate yet; the server must be a node of the cluster whose authority has this fingerprint.
    PinnedAuthority(Fingerprint),
    /// Neither side proves anything; the connection is not encrypted.
    Plaintext,
}

/// Makes the connections of a channel. Each connection uses the credentials at the time when it is made.
#[derive(Debug, Clone)]
pub struct MtlsConnector {
    address: SocketAddr,
    /// The node that must answer; `None` permits any node of the cluster.
    expected: Option<NodeName>,
    tls_mode: TlsMode,
}

impl MtlsConnector {
    /// A connector to `address`. `proof` selects how each side proves its identity. If `expected` is given, the server must
    /// be that node.
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

    /// Ignores the URI and uses the connector's address: a URI cannot name the expected node.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}
