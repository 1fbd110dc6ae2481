//! Connecting to a control port: the node that answers has to prove that it is of the cluster, and which one it is.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use farfork_trust::{Credentials, Fingerprint, joining_client};
use farfork_wire::NodeName;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::{DnsName, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Uri;
use tower::Service;

use super::standing::Standing;
use super::stream::{Stream, in_words};

/// What this side shows, and what it wants to see.
#[derive(Debug, Clone)]
pub(crate) enum Proof {
    /// A member's certificate; a node of the cluster.
    Member(Credentials),
    /// None yet; a node of the cluster whose authority has this fingerprint.
    Pin(Fingerprint),
    /// None, of nobody: in clear.
    Nothing,
}

/// Makes the connections of a channel; each uses the credentials of its time.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    address: SocketAddr,
    /// The node that must answer; any of the cluster where it is not known.
    expected: Option<NodeName>,
    proof: Proof,
}

impl Connector {
    pub(crate) fn new(address: SocketAddr, expected: Option<NodeName>, proof: Proof) -> Self {
        Self { address, expected, proof }
    }

    async fn connect(self) -> io::Result<Standing> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let Some(config) = self.proof.config()? else {
            return Ok(Standing::unwatched(Stream::Plain(stream)));
        };
        let name = match self.expected {
            Some(node) => ServerName::DnsName(DnsName::try_from(node.as_str().to_owned()).map_err(io::Error::other)?),
            None => ServerName::IpAddress(self.address.ip().into()),
        };
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(in_words)?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
        let stream = Stream::welcomed(stream.into()).await?;
        Ok(match &self.proof {
            Proof::Member(credentials) => Standing::by(credentials, shown, stream),
            Proof::Pin(_) | Proof::Nothing => Standing::unwatched(stream),
        })
    }
}

impl Proof {
    fn config(&self) -> io::Result<Option<Arc<ClientConfig>>> {
        Ok(match self {
            Self::Member(credentials) => Some(credentials.control_client()),
            Self::Pin(pin) => Some(joining_client(*pin).map_err(io::Error::other)?),
            Self::Nothing => None,
        })
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Standing>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Standing>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The address is the connector's own: a URI has no room for what is expected there.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}
