//! Forwards the standard input of a command to a stream of messages.

use std::io::{self, Read as _};
use std::thread;

use farfork_api::limits::OUTPUT_CHUNK_BYTES;
use tokio::sync::mpsc;

/// Starts a thread that sends the standard input, and then a message for its end, to which `to_message` converts `None`. read(2)
/// on a terminal or pipe cannot be cancelled, so the thread ends with this process.
pub(super) fn forward_stdin<T: Send + 'static>(
    messages: mpsc::Sender<T>,
    to_message: impl Fn(Option<Vec<u8>>) -> T + Send + 'static,
) {
    thread::spawn(move || {
        let mut buffer = vec![0; OUTPUT_CHUNK_BYTES];
        loop {
            let piece = match io::stdin().lock().read(&mut buffer) {
                Ok(count @ 1..) => Some(buffer[..count].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => None,
            };
            let is_last = piece.is_none();
            if messages.blocking_send(to_message(piece)).is_err() || is_last {
                return;
            }
        }
    });
}
