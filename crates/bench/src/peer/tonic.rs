//! Calls by tonic, a gRPC library: one request for each call, or all calls on one stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use super::CallRecorder;

#[expect(unreachable_pub, reason = "generated from echo.proto")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/farfork.bench.rs"));
}

use proto::Empty;
use proto::echo_client::EchoClient;
use proto::echo_server::{Echo, EchoServer};

struct TonicService;

#[tonic::async_trait]
impl Echo for TonicService {
    async fn unary(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }

    type StreamStream = Pin<Box<dyn Stream<Item = Result<Empty, Status>> + Send>>;

    async fn stream(&self, request: Request<Streaming<Empty>>) -> Result<Response<Self::StreamStream>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }
}

pub(super) async fn serve(listener: TcpListener) -> io::Result<()> {
    let incoming = TcpListenerStream::new(listener).map(|stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        io::Result::Ok(stream)
    });
    Server::builder()
        .add_service(EchoServer::new(TonicService))
        .serve_with_incoming(incoming)
        .await
        .map_err(io::Error::other)
}

async fn connect(to: SocketAddr) -> io::Result<EchoClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{to}")).map_err(io::Error::other)?.tcp_nodelay(true);
    Ok(EchoClient::new(endpoint.connect().await.map_err(io::Error::other)?))
}

pub(super) async fn run_unary_client(to: SocketAddr, window: usize, tally: &CallRecorder<'_>) -> io::Result<()> {
    let client = connect(to).await?;
    super::run_concurrently(window, async || {
        let mut client = client.clone();
        loop {
            let sent_at = Instant::now();
            client.unary(Empty {}).await.map_err(io::Error::other)?;
            tally.record_answer(sent_at);
        }
    })
    .await
}

pub(super) async fn run_stream_client(to: SocketAddr, window: usize, tally: &CallRecorder<'_>) -> io::Result<()> {
    let (request_sender, request_receiver) = mpsc::channel(window);
    let times = RefCell::new(VecDeque::with_capacity(window));
    let ask = async || {
        times.borrow_mut().push_back(Instant::now());
        request_sender.send(Empty {}).await.map_err(io::Error::other)
    };
    for _ in 0..window {
        ask().await?;
    }
    let mut client = connect(to).await?;
    let mut answers =
        client.stream(ReceiverStream::new(request_receiver)).await.map_err(io::Error::other)?.into_inner();
    while answers.message().await.map_err(io::Error::other)?.is_some() {
        let sent_at = times.borrow_mut().pop_front().expect("each answer has a request");
        tally.record_answer(sent_at);
        ask().await?;
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
