//! Creates sockets in a child's network. A socket stays in the network in which it was created: a thread enters the
//! network, creates the socket, and ends.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Runs `make` on a new thread that has entered a network with `enter`.
///
/// # Errors
/// The network cannot be entered, or `make` fails.
pub(super) async fn create_in_netns<T: Send + 'static>(
    enter: impl FnOnce() -> io::Result<()> + Send + 'static,
    make: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    let body = move || drop(sender.send(enter().and_then(|()| make())));
    thread::Builder::new().name("inside".to_owned()).spawn(body)?;
    receiver.await.map_err(|_| io::Error::other("the thread that creates the socket panicked"))?
}
