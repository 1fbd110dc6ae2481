//! Sockets in a child's network. A socket stays in the network that it was made in: a thread goes there, makes one, and ends.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Has something made where `enter` leads a thread.
///
/// # Errors
/// The network cannot be entered, or what `make` says.
pub(super) async fn create_in_netns<T: Send + 'static>(
    enter: impl FnOnce() -> io::Result<()> + Send + 'static,
    make: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (told, made) = oneshot::channel();
    let body = move || drop(told.send(enter().and_then(|()| make())));
    thread::Builder::new().name("inside".to_owned()).spawn(body)?;
    made.await.map_err(|_| io::Error::other("the thread that makes a socket panicked"))?
}
