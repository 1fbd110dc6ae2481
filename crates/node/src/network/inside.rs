//! Sockets in a child's network. A socket stays in the network that it was made in: a thread goes there, makes one, and ends.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;

use farfork_container::RunningContainer;
use farfork_sys::namespace;
use tokio::sync::oneshot;

/// Has something made there.
///
/// # Errors
/// The network cannot be entered, or what `make` says.
pub(super) async fn make<T: Send + 'static>(
    container: Arc<RunningContainer>,
    make: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (told, made) = oneshot::channel();
    let body = move || {
        let entered = namespace::enter_network_of(container.init().as_fd());
        drop(told.send(entered.and_then(|()| make())));
    };
    thread::Builder::new().name("inside".to_owned()).spawn(body)?;
    made.await.map_err(|_| io::Error::other("the thread that makes a socket panicked"))?
}
