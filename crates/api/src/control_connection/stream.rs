//! A control-port connection: TLS, or plaintext on a node with `--insecure`. Replaces TLS errors by readable causes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use farfork_trust::PeerError;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connection of the control port.
#[derive(Debug)]
pub enum ControlStream {
    /// Encrypted. The server has proved its identity. A client that has not proved its own may only request to join.
    Tls(Box<TlsStream<TcpStream>>),
    /// As `Tls`, with the server's first bytes. They were read to learn whether the server accepted this client.
    TlsConfirmed(Vec<u8>, Box<TlsStream<TcpStream>>),
    /// Not encrypted.
    Plain(TcpStream),
}

/// Size of the buffer for the first bytes of a server (its HTTP/2 settings), in bytes.
const FIRST_READ_BYTES_MAX: usize = 256;

const CONNECTION_CLOSED_CAUSE: &str = "it closed the connection";

impl ControlStream {
    /// Waits for the first bytes of the server. TLS lets a client send before it knows whether its certificate was
    /// accepted. The server then sends its settings, or an alert with the reason.
    ///
    /// # Errors
    /// The certificate was not accepted, or the connection broke.
    pub(super) async fn wait_server_accepted(mut stream: TlsStream<TcpStream>) -> io::Result<Self> {
        let mut first = vec![0; FIRST_READ_BYTES_MAX];
        let count = stream.read(&mut first).await.map_err(explain_tls_error)?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, PeerError::Closed));
        }
        first.truncate(count);
        Ok(Self::TlsConfirmed(first, Box::new(stream)))
    }
}

/// If the peer caused a TLS error, replaces the error by a readable one.
pub fn explain_tls_error(error: io::Error) -> io::Error {
    match PeerError::from_io_error(&error) {
        Some(found) => io::Error::new(error.kind(), found),
        // A killed process closes its connections without the closing message of TLS (close_notify). The text of the TLS
        // error would only mention that.
        None if error.kind() == io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), CONNECTION_CLOSED_CAUSE),
        None => error,
    }
}

fn explain_if_ready<T>(outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    outcome.map(|outcome| outcome.map_err(explain_tls_error))
}

impl AsyncRead for ControlStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::TlsConfirmed(first, _) if !first.is_empty() => {
                let count = first.len().min(into.remaining());
                into.put_slice(&first[..count]);
                first.drain(..count);
                Poll::Ready(Ok(()))
            }
            Self::Tls(stream) | Self::TlsConfirmed(_, stream) => {
                explain_if_ready(Pin::new(stream).poll_read(context, into))
            }
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for ControlStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(stream) | Self::TlsConfirmed(_, stream) => {
                explain_if_ready(Pin::new(stream).poll_write(context, bytes))
            }
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(stream) | Self::TlsConfirmed(_, stream) => {
                explain_if_ready(Pin::new(stream).poll_write_vectored(context, slices))
            }
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) | Self::TlsConfirmed(_, stream) => explain_if_ready(Pin::new(stream).poll_flush(context)),
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) | Self::TlsConfirmed(_, stream) => Pin::new(stream).poll_shutdown(context),
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_close_notify_is_a_closed_connection() {
        let of_tls =
            io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed connection without sending TLS close_notify");
        assert_eq!(explain_tls_error(of_tls).to_string(), CONNECTION_CLOSED_CAUSE);
        let other = explain_tls_error(io::ErrorKind::ConnectionReset.into());
        assert_eq!(other.kind(), io::ErrorKind::ConnectionReset);
    }
}
