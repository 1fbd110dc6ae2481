//! Creates sockets in a child's network. A socket stays in the network that it was created in: a thread enters that
//! network, creates one, and ends.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Runs `make` on a thread that has entered a network by `enter`.
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
