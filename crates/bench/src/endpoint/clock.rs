//! Compares the clocks of two hosts. The time until a child on another host runs is a difference of both clocks.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{announce_port, print_line};

/// Number of questions. The fastest answer counts.
const QUESTIONS: usize = 200;

/// The wall clock, in ns since 1970.
pub(crate) fn now_unix_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64
}

/// Answers each byte with the time, until the standard input ends.
pub(super) fn serve(ip: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            while stream.read_exact(&mut [0]).is_ok() && stream.write_all(&now_unix_ns().to_le_bytes()).is_ok() {}
        }
    });
    announce_port(port)
}

/// Prints `offset NS ERROR_NS`: how far this clock is ahead of the server's, and half of the time of the fastest answer.
pub(super) fn compare(to: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let mut ask = || {
        let (sent, began, mut answer) = (now_unix_ns(), Instant::now(), [0; 8]);
        stream.write_all(&[0])?;
        stream.read_exact(&mut answer)?;
        let half_ns = began.elapsed().as_nanos() as i64 / 2;
        Ok::<_, io::Error>((half_ns, sent + half_ns - i64::from_le_bytes(answer)))
    };
    let answers = (0..QUESTIONS).map(|_| ask()).collect::<Result<Vec<_>, _>>()?;
    let (error_ns, offset_ns) = answers.into_iter().min().unwrap_or_default();
    print_line(&format!("offset {offset_ns} {error_ns}"))
}
