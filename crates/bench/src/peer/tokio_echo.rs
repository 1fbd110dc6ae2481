//! Messages with only a length prefix, sent back in order: the cost of calls on tokio without ids, sessions, checksums
//! and deadlines. Reads and writes are buffered. All messages that are ready are sent with one call.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};

use super::CallRecorder;

/// Size of both buffers, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Size of a message after its length prefix, in bytes: the size of farfork's request header.
const MESSAGE_BYTES: usize = 32;

type Reader = BufReader<tokio::net::tcp::OwnedReadHalf>;
type Writer = BufWriter<tokio::net::tcp::OwnedWriteHalf>;

fn split_buffered(stream: TcpStream) -> io::Result<(Reader, Writer)> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    Ok((BufReader::with_capacity(BUFFER_BYTES, read), BufWriter::with_capacity(BUFFER_BYTES, write)))
}

async fn receive(from: &mut Reader, message: &mut [u8; MESSAGE_BYTES]) -> io::Result<()> {
    let bytes = from.read_u32_le().await?;
    if bytes as usize != MESSAGE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    from.read_exact(message).await.map(drop)
}

async fn send(to: &mut Writer, message: &[u8; MESSAGE_BYTES]) -> io::Result<()> {
    to.write_u32_le(MESSAGE_BYTES as u32).await?;
    to.write_all(message).await
}

pub(super) async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut from, mut to) = split_buffered(listener.accept().await?.0)?;
        tokio::task::spawn_local(async move {
            let mut message = [0; MESSAGE_BYTES];
            while receive(&mut from, &mut message).await.is_ok() {
                send(&mut to, &message).await?;
                if from.buffer().is_empty() {
                    to.flush().await?;
                }
            }
            io::Result::Ok(())
        });
    }
}

pub(super) async fn run_client(to: SocketAddr, window: usize, tally: &CallRecorder<'_>) -> io::Result<()> {
    let (mut from, mut to) = split_buffered(TcpStream::connect(to).await?)?;
    let (mut message, mut asked) = ([7; MESSAGE_BYTES], VecDeque::with_capacity(window));
    for _ in 0..window {
        asked.push_back(Instant::now());
        send(&mut to, &message).await?;
    }
    to.flush().await?;
    loop {
        receive(&mut from, &mut message).await?;
        tally.record_answer(asked.pop_front().expect("each answer has a request"));
        asked.push_back(Instant::now());
        send(&mut to, &message).await?;
        if from.buffer().is_empty() {
            to.flush().await?;
        }
    }
}
