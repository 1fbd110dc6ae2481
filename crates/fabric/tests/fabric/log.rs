//! Captures the fabric's log for tests. All tests of the process share the log, so each test searches for lines with
//! its own peer.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Catcher;

impl Write for Catcher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts to capture log lines.
pub(crate) fn catch() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        tracing_subscriber::fmt().with_ansi(false).with_writer(|| Catcher).init();
    });
}

/// Waits for a line that contains all these words.
pub(crate) fn wait_for(words: &[&str]) -> String {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let lines = String::from_utf8_lossy(&LINES.lock().unwrap()).into_owned();
        if let Some(line) = lines.lines().find(|line| words.iter().all(|word| line.contains(word))) {
            return line.to_owned();
        }
        assert!(Instant::now() < limit, "no line with {words:?} in:\n{lines}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Number of lines that contain all these words.
pub(crate) fn count(words: &[&str]) -> usize {
    let lines = String::from_utf8_lossy(&LINES.lock().unwrap()).into_owned();
    lines.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}
