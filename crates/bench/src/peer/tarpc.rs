//! Calls by tarpc, with bincode over TCP and default options.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tarpc::context::Context;
use tarpc::serde_transport::Transport;
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::LengthDelimitedCodec;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt as _;

use super::CallRecorder;

/// Maximum pending requests of a channel: more than any measured window.
const IN_FLIGHT_MAX: usize = 4096;

#[tarpc::service]
trait Echo {
    async fn empty();
}

#[derive(Clone)]
struct TarpcService;

impl Echo for TarpcService {
    async fn empty(self, _: Context) {}
}

pub(super) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let framed = LengthDelimitedCodec::builder().new_framed(stream);
        let transport = tarpc::serde_transport::new(framed, Bincode::default());
        let config = tarpc::server::Config { pending_response_buffer: IN_FLIGHT_MAX };
        let requests = BaseChannel::new(config, transport).execute(TarpcService.serve());
        tokio::task::spawn_local(async move {
            let mut requests = std::pin::pin!(requests);
            while let Some(request) = requests.next().await {
                tokio::task::spawn_local(request);
            }
        });
    }
}

pub(super) async fn run_client(to: SocketAddr, window: usize, tally: &CallRecorder<'_>) -> io::Result<()> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let transport = Transport::from((stream, Bincode::default()));
    let mut config = tarpc::client::Config::default();
    (config.max_in_flight_requests, config.pending_request_buffer) = (IN_FLIGHT_MAX, IN_FLIGHT_MAX);
    let new = EchoClient::new(config, transport);
    tokio::task::spawn_local(new.dispatch);
    let client = new.client;
    super::run_concurrently(window, async || {
        loop {
            let sent_at = Instant::now();
            let mut context = tarpc::context::current();
            context.deadline = sent_at + Duration::from_secs(60);
            client.empty(context).await.map_err(io::Error::other)?;
            tally.record_answer(sent_at);
        }
    })
    .await
}
