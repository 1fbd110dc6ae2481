//! Serves the metrics over HTTP, to any client that reaches the port: one response per connection, and few connections
//! at a time.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::timeout;

use crate::node::Node;

/// Content type of the text format with units and metric types.
const OPEN_METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of connections at once: more than two Prometheus servers and a person need. Further ones wait in the
/// backlog. A request whose client has disconnected counts until its metrics are gathered.
const CONNECTIONS_MAX: usize = 8;

/// Time limit for a connection, from accept to its last byte. The pager reports about all children in less time. No
/// client can occupy a connection for longer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after accept(2) has failed, for example for lack of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Maximum size of a request's head, in bytes: the minimum that the library allows. The head of a scrape has a few
/// hundred bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Registers a listener with the runtime. Must be called within the runtime.
///
/// # Errors
/// The runtime cannot watch the listener.
pub(crate) fn to_async_listener(listener: &std::net::TcpListener) -> io::Result<TcpListener> {
    let listener = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves until the daemon ends.
pub(crate) async fn serve(node: Arc<Node>, listener: TcpListener) {
    let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(turn) = turns.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection for the metrics is not taken");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let node = node.clone();
        tokio::spawn(async move {
            // The timeout disconnects clients that are slow. Errors, such as bytes that are not HTTP, are ignored.
            let _ = timeout(CONNECTION_TIMEOUT, serve_connection(node, stream, Arc::new(turn))).await;
        });
    }
}

async fn serve_connection(node: Arc<Node>, stream: TcpStream, turn: Arc<OwnedSemaphorePermit>) -> hyper::Result<()> {
    let service = service_fn(|request| handle_request(node.clone(), request, turn.clone()));
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    http.serve_connection(TokioIo::new(stream), service).await
}

async fn handle_request(
    node: Arc<Node>,
    request: Request<Incoming>,
    turn: Arc<OwnedSemaphorePermit>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() != "/metrics" {
        return Ok(text_response(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"));
    }
    if *request.method() != Method::GET && *request.method() != Method::HEAD {
        let mut refusal = text_response(StatusCode::METHOD_NOT_ALLOWED, "the metrics can be read only\n");
        refusal.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("a header"));
        return Ok(refusal);
    }
    // Rendering blocks on requests to the pager, and continues if the client disconnects. So the permit is held until
    // the rendering ends.
    let text = run_with_permit(turn, move || node.metrics.render_text(Arc::downgrade(&node))).await;
    Ok(match text {
        Ok(Ok(text)) => {
            let mut response = Response::new(Full::from(text));
            response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS_CONTENT_TYPE.parse().expect("a header"));
            response
        }
        Ok(Err(_)) | Err(_) => {
            text_response(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be collected; see the log\n")
        }
    })
}

/// Runs blocking work on a separate thread, and releases the permit when the work ends.
async fn run_with_permit<T: Send + 'static>(
    turn: Arc<OwnedSemaphorePermit>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    tokio::task::spawn_blocking(move || {
        let done = work();
        drop(turn);
        done
    })
    .await
}

fn text_response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_permit_is_held_until_its_work_ends() {
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::new(turns.clone().acquire_owned().await.unwrap());
        let (go_on, waits) = mpsc::channel::<()>();
        let (begin, started) = mpsc::channel::<()>();
        let work = run_with_permit(turn, move || {
            begin.send(()).unwrap();
            waits.recv()
        });
        let task = tokio::spawn(work);
        tokio::task::spawn_blocking(move || started.recv()).await.unwrap().unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(turns.available_permits(), 0, "the blocking thread still runs");
        go_on.send(()).unwrap();
        drop(timeout(CONNECTION_TIMEOUT, turns.acquire()).await.expect("the turn ends with the work").unwrap());
    }
}
