//! Makes calls like a client, and answers them like a server: empty calls, and calls whose answers are random bytes.
//!
//! The server generates each answer: random bytes, then a checksum of eight bytes. The checksum is the CRC-32C of the
//! random bytes, and its complement. The client computes the checksum again.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farfork_fabric::{AdaptiveSpin, Security};
use farfork_rpc::client::TcpConnector;
use farfork_rpc::server::{Acceptor, PlainAcceptor, SecuredAcceptor, ServerConfig};
use farfork_rpc::{
    Client, Completion, HandlerTable, OutgoingRequest, ReplyWriter, RequestPayload, Server, SessionHandle,
};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::endpoint::CallCounts;
use crate::endpoint::announce_port;
use crate::endpoint::latencies::{Latencies, new_latencies};
use crate::endpoint::specification::{ClientLoad, ClientOptions};

/// The method with empty answers.
const METHOD_EMPTY: u32 = 778;

/// The method that answers with the requested number of random bytes and their checksum.
const METHOD_RANDOM: u32 = 779;

/// Size of an answer's checksum, in bytes.
pub(crate) const CHECKSUM_BYTES: usize = 8;

/// Number of parallel generators of random numbers. Several generators let the compiler vectorise them.
const RANDOM_LANES: usize = 8;

/// Maximum sleep of a client's thread, after which the thread checks whether to stop.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// With several requests in flight, one latency is recorded per this many requests.
const CALLS_PER_SAMPLE: u64 = 16;

/// Serves until standard input ends.
pub(crate) fn serve(ip: IpAddr, threads: usize, spins: bool, security: Option<Arc<dyn Security>>) -> io::Result<()> {
    let listener = TcpListener::bind((ip, 0))?;
    let acceptor: Arc<dyn Acceptor> = match security {
        Some(security) => Arc::new(SecuredAcceptor(security)),
        None => Arc::new(PlainAcceptor),
    };
    let server = Server::start(listener, &ServerConfig { threads, should_spin: spins }, acceptor, handlers)?;
    announce_port(server.address().port())
}

fn handlers() -> HandlerTable {
    let mut handlers = HandlerTable::default();
    let mut random = RandomBytes::new();
    handlers.add_handler(METHOD_EMPTY, |_, _| {});
    handlers.add_handler(METHOD_RANDOM, move |request, reply| answer(request, reply, &mut random));
    handlers
}

fn answer(request: &[u8], reply: &mut ReplyWriter<'_>, random: &mut RandomBytes) {
    let Some(count) = request.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize) else {
        return reply.refuse("the request has no length");
    };
    let space = reply.append_zeroed(count + CHECKSUM_BYTES);
    let (bytes, checksum) = space.split_at_mut(count);
    random.fill(bytes);
    checksum.copy_from_slice(&checksum_of(bytes));
}

/// The checksum that follows the bytes of an answer.
fn checksum_of(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let checksum = crc32c::crc32c(bytes);
    (u64::from(checksum) | u64::from(!checksum) << 32).to_le_bytes()
}

/// Whether an answer has this many bytes and the right checksum.
fn is_answer_valid(answer: &[u8], payload_bytes: usize) -> bool {
    answer.len() == payload_bytes + CHECKSUM_BYTES && answer[payload_bytes..] == checksum_of(&answer[..payload_bytes])
}

/// A fast generator of random bytes (xorshift, several lanes).
#[derive(Debug)]
struct RandomBytes([u64; RANDOM_LANES]);

impl RandomBytes {
    fn new() -> Self {
        let mut seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id());
        Self(std::array::from_fn(|lane| {
            seed = (seed ^ lane as u64).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            seed | 1
        }))
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(RANDOM_LANES * 8) {
            let mut block = [0; RANDOM_LANES * 8];
            for (lane, word) in self.0.iter_mut().zip(block.chunks_exact_mut(8)) {
                *lane ^= *lane << 13;
                *lane ^= *lane >> 7;
                *lane ^= *lane << 17;
                word.copy_from_slice(&lane.to_le_bytes());
            }
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

/// One thread of a client node. It keeps the windows of all sessions of its connections full.
struct LoadThread<'a> {
    load: &'a ClientLoad,
    counts: &'a CallCounts,
    lanes: Vec<LoadConnection>,
    epoll: OwnedFd,
    latencies: Latencies,
    /// Answers until the next one whose latency is recorded. It counts across polls, which may return fewer answers.
    until_sample: u64,
    began: Instant,
    call: OutgoingRequest,
    request: Vec<u8>,
}

struct LoadConnection {
    client: Client,
    sessions: Vec<SessionHandle>,
    /// The number of the client's connection whose socket is registered in the epoll instance, and whether the
    /// registration includes writability.
    epoll_interest: (u64, bool),
}

/// Connects, and calls `run`, which waits for the common start. Then sends requests until the flag `stop` of `counts` is
/// set.
pub(crate) fn run_client<T>(
    to: SocketAddr,
    load: &ClientLoad,
    client_options: &ClientOptions,
    counts: &CallCounts,
    run: impl FnOnce() -> T,
) -> io::Result<Latencies> {
    let (handler, request) = match load.payload_bytes {
        0 => (METHOD_EMPTY, Vec::new()),
        bytes => (METHOD_RANDOM, (bytes as u32).to_le_bytes().to_vec()),
    };
    let lanes =
        (0..load.connections).map(|_| LoadConnection::connect(to, load, client_options)).collect::<io::Result<_>>()?;
    let (latencies, epoll) = (new_latencies(), epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let call = OutgoingRequest { handler, ..OutgoingRequest::default() };
    run();
    let (until_sample, began) = (1, Instant::now());
    let mut driver = LoadThread { load, counts, lanes, epoll, latencies, until_sample, began, call, request };
    driver.run(client_options.spins)?;
    Ok(driver.latencies)
}

impl LoadConnection {
    fn connect(to: SocketAddr, load: &ClientLoad, client_options: &ClientOptions) -> io::Result<Self> {
        let connector = match &client_options.security {
            Some(security) => TcpConnector::secured(to, Arc::clone(security)),
            None => TcpConnector::new(to),
        };
        let mut client = Client::new(Box::new(connector), false);
        let open = |_| client.open_session(load.window as u64).ok_or_else(|| io::Error::other("too many sessions"));
        let sessions = (0..load.sessions).map(open).collect::<io::Result<_>>()?;
        Ok(Self { client, sessions, epoll_interest: (0, false) })
    }

    fn register(&mut self, epoll: &OwnedFd, number: usize) -> io::Result<()> {
        let wanted = (self.client.connection_count(), self.client.has_unsent());
        if wanted == self.epoll_interest {
            return Ok(());
        }
        let Some(socket) = self.client.socket() else { return Ok(()) };
        let mut interest = epoll::EventFlags::IN;
        interest.set(epoll::EventFlags::OUT, wanted.1);
        let data = epoll::EventData::new_u64(number as u64);
        if wanted.0 == self.epoll_interest.0 {
            epoll::modify(epoll, socket, data, interest)?;
        } else {
            epoll::add(epoll, socket, data, interest)?;
        }
        self.epoll_interest = wanted;
        Ok(())
    }
}

impl LoadThread<'_> {
    fn run(&mut self, spins: bool) -> io::Result<()> {
        let mut now = Instant::now();
        for number in 0..self.lanes.len() {
            for session in 0..self.load.sessions {
                (0..self.load.window).try_for_each(|_| self.submit(number, session, now))?;
            }
            self.poll_connection(number, now)?;
        }
        let (mut events, mut spin) = (Vec::with_capacity(64), spins.then(|| AdaptiveSpin::new(now)));
        while !self.counts.stop.load(Ordering::Relaxed) {
            let looks_again = spin.as_ref().is_some_and(|spin| spin.should_spin(now));
            let worked = if self.lanes.len() == 1 && looks_again {
                self.poll_connection(0, now)?
            } else {
                events.clear();
                let wait = if looks_again { Duration::ZERO } else { SLEEP_MAX };
                let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
                epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout))?;
                now = Instant::now();
                let mut worked = false;
                for event in &events {
                    worked |= self.poll_connection(event.data.u64() as usize, now)?;
                }
                if events.is_empty() && wait > Duration::ZERO {
                    self.reconnect_failed(now)?;
                }
                worked
            };
            match &mut spin {
                Some(spin) if worked => {
                    spin.record_event(now);
                    now = Instant::now();
                    spin.start_wait(now);
                }
                Some(_) => {
                    std::thread::yield_now();
                    now = Instant::now();
                }
                None => now = Instant::now(),
            }
        }
        Ok(())
    }

    /// Polls all connections, so that those without a socket reconnect.
    fn reconnect_failed(&mut self, now: Instant) -> io::Result<()> {
        (0..self.lanes.len()).try_for_each(|number| self.poll_connection(number, now).map(drop))
    }

    fn submit(&mut self, number: usize, session: usize, now: Instant) -> io::Result<()> {
        let lane = &mut self.lanes[number];
        // The tag encodes the session and the time at which the request was sent.
        let tag = (now - self.began).as_nanos() as u64 * self.load.sessions as u64 + session as u64;
        let call = OutgoingRequest { tag, ..self.call };
        lane.client
            .submit(now, lane.sessions[session], &call, RequestPayload::Borrowed(&self.request))
            .map_err(io::Error::other)
    }

    /// Receives answers, and sends a new request for each answer. Returns whether there were any answers.
    fn poll_connection(&mut self, number: usize, now: Instant) -> io::Result<bool> {
        let Self { load, counts, lanes, latencies, until_sample, began, call, request, epoll } = self;
        let lane = &mut lanes[number];
        let (now_ns, sessions) = ((now - *began).as_nanos() as u64, load.sessions as u64);
        let sampled = if load.window == 1 { 1 } else { CALLS_PER_SAMPLE };
        let (mut answers, mut failed, mut damaged) = (0, 0, 0);
        let mut ended = [0usize; SESSIONS_MAX];
        let worked = lane.client.poll(now, |Completion { tag, result }| {
            ended[(tag % sessions) as usize] += 1;
            match result {
                Ok(payload) if load.payload_bytes == 0 && payload.is_empty() => answers += 1,
                Ok(payload) if load.payload_bytes > 0 && is_answer_valid(&payload, load.payload_bytes) => answers += 1,
                Ok(_) => damaged += 1,
                Err(_) => failed += 1,
            }
            *until_sample -= 1;
            if *until_sample == 0 {
                *until_sample = sampled;
                latencies.saturating_record(now_ns.saturating_sub(tag / sessions));
            }
        });
        for (session, count) in ended[..load.sessions].iter().enumerate() {
            let call = OutgoingRequest { tag: now_ns * sessions + session as u64, ..*call };
            for _ in 0..*count {
                let body = RequestPayload::Borrowed(request);
                lane.client.submit(now, lane.sessions[session], &call, body).map_err(io::Error::other)?;
            }
        }
        lane.client.flush(now);
        lane.register(epoll, number)?;
        counts.answers.fetch_add(answers, Ordering::Relaxed);
        if failed + damaged > 0 {
            counts.errors.fetch_add(failed, Ordering::Relaxed);
            counts.damaged.fetch_add(damaged, Ordering::Relaxed);
        }
        Ok(worked)
    }
}

/// Maximum sessions per connection of a client.
pub(crate) const SESSIONS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{CHECKSUM_BYTES, RandomBytes, checksum_of, is_answer_valid};

    #[test]
    fn each_answer_is_different_and_checked() {
        let mut random = RandomBytes::new();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let mut answer = vec![0; 2048];
            random.fill(&mut answer);
            answer.extend(checksum_of(&answer));
            assert!(is_answer_valid(&answer, 2048) && !is_answer_valid(&answer, 2047));
            answers.push(answer);
        }
        assert!(answers[0] != answers[1] && answers[1] != answers[2]);
        for at in [0, 1000, 2048, 2048 + CHECKSUM_BYTES - 1] {
            answers[0][at] ^= 16;
            assert!(!is_answer_valid(&answers[0], 2048), "a bit of byte {at} was flipped");
            answers[0][at] ^= 16;
        }
    }
}
