//! Output for people. A closed pipe (`make test | head`), a full disk, or a pager that does not read (`make test | less`)
//! neither ends nor stops a run: its logs must still get the rest. A thread prints, so that no other thread waits for it.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// Maximum size of the text that waits to be printed: many times the output of a run. Further text is omitted.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Printed in place of text that was omitted.
const OMISSION: &str = "\n== output is omitted here, because it was not read in time; the logs have it\n";

/// Leads to the thread that prints, which starts with the first request and ends only with this process.
static PRINT_REQUESTS: LazyLock<Sender<PrintRequest>> = LazyLock::new(|| {
    let (requests, receiver) = mpsc::channel();
    thread::spawn(move || print_requests(&receiver));
    requests
});

/// A request to the thread that prints.
enum PrintRequest {
    Text(String),
    /// Asks for a message when all earlier text was printed.
    Flush(Sender<()>),
}

/// Size of the text that waits to be printed.
static WAITING_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Whether text was omitted since the last output.
static HAS_OMITTED: AtomicBool = AtomicBool::new(false);

fn request_print(text: String) {
    if WAITING_BYTES.fetch_add(text.len(), Ordering::Relaxed) > WAITING_BYTES_MAX {
        WAITING_BYTES.fetch_sub(text.len(), Ordering::Relaxed);
        HAS_OMITTED.store(true, Ordering::Relaxed);
        return;
    }
    let _ = PRINT_REQUESTS.send(PrintRequest::Text(text));
}

fn print_requests(requests: &Receiver<PrintRequest>) {
    for request in requests {
        let text = match request {
            PrintRequest::Text(text) => text,
            PrintRequest::Flush(printed) => {
                // The other thread may have stopped to wait.
                let _ = printed.send(());
                continue;
            }
        };
        let _ = io::stdout().write_all(text.as_bytes());
        WAITING_BYTES.fetch_sub(text.len(), Ordering::Relaxed);
        if HAS_OMITTED.swap(false, Ordering::Relaxed) {
            let _ = io::stdout().write_all(OMISSION.as_bytes());
        }
        let _ = io::stdout().flush();
    }
}

/// Prints text on standard output, without a line end. Ignores errors, and does not wait for the output.
pub(crate) fn print(text: impl Display) {
    if cfg!(test) {
        // libtest captures only `print!`. Otherwise it would show results of other tests, which these tests print.
        print!("{text}");
    } else {
        request_print(text.to_string());
    }
}

/// Prints a line on standard output, as `print`.
pub(crate) fn print_line(text: impl Display) {
    print(format_args!("{text}\n"));
}

/// Waits until everything was printed, at most for `limit`.
pub(crate) fn flush(limit: Option<Duration>) {
    let (sender, printed) = mpsc::channel();
    let _ = PRINT_REQUESTS.send(PrintRequest::Flush(sender));
    let _ = match limit {
        Some(limit) => printed.recv_timeout(limit).ok(),
        None => printed.recv().ok(),
    };
}

/// Prints a line on standard error. Ignores errors.
pub(crate) fn print_note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
