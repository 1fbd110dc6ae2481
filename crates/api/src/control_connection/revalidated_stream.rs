//! A control-port connection that lasts only as long as its peer is trusted. Requests of unlimited length (attach,
//! logs, wait, tend) end with it.
//!
//! Reads and writes check the peer once per interval. The interval's timer also wakes idle connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use farfork_trust::Credentials;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::stream::ControlStream;

/// Time between two checks of the peer's certificate. Credentials are reread at the same interval, so a shorter one gains
/// nothing. A peer that is no longer trusted is disconnected within two intervals.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A connection, and the certificate that must stay valid.
#[derive(Debug)]
pub struct RevalidatedStream {
    stream: ControlStream,
    /// `None` if the peer showed no certificate.
    check: Option<CertificateCheck>,
}

#[derive(Debug)]
struct CertificateCheck {
    credentials: Credentials,
    /// The peer's certificate.
    certificate: CertificateDer<'static>,
    ticks: Interval,
}

impl RevalidatedStream {
    /// Checks the peer's certificate against `credentials` while the connection lasts.
    pub fn with_check(
        credentials: &Credentials,
        shown: Option<CertificateDer<'static>>,
        stream: ControlStream,
    ) -> Self {
        let certificate_check = shown.map(|shown| {
            // The handshake was the first check. If the peer is revoked before the next check, `auth` of `farfork-node`
            // refuses its requests with the reason.
            let mut ticks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            CertificateCheck { credentials: credentials.clone(), certificate: shown, ticks }
        });
        Self { stream, check: certificate_check }
    }

    /// A stream whose peer is never checked.
    pub fn unchecked(stream: ControlStream) -> Self {
        Self { stream, check: None }
    }

    /// Returns the stream if the peer is still trusted.
    fn check_peer(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut ControlStream>> {
        if let Some(certificate_check) = &mut self.check {
            while certificate_check.ticks.poll_tick(context).is_ready() {
                certificate_check.credentials.check_certificate(&certificate_check.certificate).map_err(|error| {
                    tracing::warn!("closed a control-port connection: {error}");
                    io::Error::new(io::ErrorKind::PermissionDenied, error)
                })?;
            }
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl AsyncRead for RevalidatedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_peer(context)?.poll_read(context, into)
    }
}

impl AsyncWrite for RevalidatedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_peer(context)?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_peer(context)?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Checks the peer too: writes to a peer that reads nothing wait in this function.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_peer(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
