//! The pager's side of the control socket: few, small requests, each answered at once. The daemon's side is `client`, what they
//! say is `protocol`.

pub(super) mod client;
pub(super) mod protocol;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_sys::fdpass;
use farfork_wire::ChildId;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::child::Child;
use super::keeper::station::Station;
use super::server::watch::Source;
use super::server::{Ended, Server};
use protocol::{
    CHILDREN_PER_REPLY_MAX, MESSAGE_BYTES_MAX, MessageError, PagerHello, RELEASE, Reply, Request, decode, encode,
};

/// Most clients connected at once: threads of the daemon, each of which keeps its connection for the next request. The one that has been
/// connected for longest makes room for another, and connects anew where it still is there.
const CLIENTS_MAX: usize = 64;

/// The clients that are connected, and may ask.
#[derive(Debug, Default)]
pub(super) struct Clients {
    sockets: BTreeMap<u64, OwnedFd>,
    next: u64,
    /// Where requests are read to.
    message: Vec<u8>,
}

impl Server<'_> {
    /// Takes a client's connection.
    pub(super) fn accept(&mut self) {
        let accept = |station: &Station| {
            rustix::net::accept_with(station.listener(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        };
        let accepted = match accept(self.station) {
            Err(Errno::MFILE) => self.station.with_reserve(accept),
            other => other,
        };
        let Ok(socket) = accepted else { return };
        if self.clients.sockets.len() >= CLIENTS_MAX
            && let Some((oldest, socket)) = self.clients.sockets.pop_first()
        {
            self.watch.remove(Source::Client(oldest), &socket);
        }
        let client = self.clients.next;
        self.clients.next += 1;
        match self.watch.add(Source::Client(client), &socket) {
            Ok(()) => drop(self.clients.sockets.insert(client, socket)),
            Err(error) => tracing::error!("a client of the pager cannot be watched: {error}"),
        }
    }

    /// Answers a client's request, and ends the connection of one that has gone.
    pub(super) fn converse(&mut self, client: u64) {
        let Some(socket) = self.clients.sockets.remove(&client) else { return };
        match self.serve(&socket) {
            Ok(true) => drop(self.clients.sockets.insert(client, socket)),
            Ok(false) => self.watch.remove(Source::Client(client), &socket),
            Err(error) => {
                self.watch.remove(Source::Client(client), &socket);
                tracing::warn!("a request to the pager was not answered: {error}");
            }
        }
    }

    /// Tells whether there was a request: else the client has gone.
    fn serve(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        let bytes = &mut self.clients.message;
        bytes.resize(MESSAGE_BYTES_MAX, 0);
        let (length, fds) = fdpass::receive(socket.as_fd(), bytes, 1)?;
        if length == 0 {
            return Ok(false);
        }
        let reply = match decode::<Request>(&bytes[..length]) {
            Ok(request) => self.fulfil(request, fds.into_iter().next()),
            // Whoever asks can tell from the reply of which form this is.
            Err(error @ MessageError::Form { .. }) => Reply::Refused(error.to_string()),
            Err(error) => return Err(io::Error::other(error)),
        };
        let reply = encode(&reply).map_err(io::Error::other)?;
        fdpass::send(socket.as_fd(), &reply, &[])?;
        Ok(true)
    }

    fn fulfil(&mut self, request: Request, fd: Option<OwnedFd>) -> Reply {
        match request {
            Request::Hello => Reply::Hello(PagerHello { release: RELEASE.to_owned(), trusting: self.trusting.clone() }),
            Request::Replace => {
                self.end = Some(Ended::Replaced);
                Reply::Done
            }
            Request::Adopt { child, dir } => self.adopt(child, &dir, fd),
            Request::Transfer { zygote, child, dir, pid } => self.transfer(&zygote, (&child, &dir, pid), fd),
            Request::Filling { zygote } => match self.key_of(&zygote) {
                Some(key) => Reply::Filling(self.is_filling(key)),
                None => Reply::Refused(format!("zygote {zygote} is not known to the pager")),
            },
            Request::Release { child } => self.release(&child),
            Request::Stats { child } => match self.key_of(&child).and_then(|key| self.children.get(&key)) {
                Some(served) => Reply::Stats(served.child.stats()),
                None => Reply::Refused(format!("child {child} is not known to the pager")),
            },
            Request::Cache => {
                self.cache.limit(self.station.cache_bytes_max());
                Reply::Cache(self.cache.stats())
            }
            Request::Prewarm { seed, dir } => self.warm(&seed, &dir),
            Request::Children { after } => {
                let mut ids: Vec<ChildId> = self.children.values().map(|served| served.child.id.clone()).collect();
                ids.retain(|id| after.as_ref().is_none_or(|after| id > after));
                ids.sort_unstable();
                ids.truncate(CHILDREN_PER_REPLY_MAX);
                Reply::Children(ids)
            }
            Request::Settle { child, begin, pid } => self.settle(&child, begin, pid),
            Request::NextSpace { child } => self.next_space(&child),
            Request::FindSpace { child, since, address } => self.find_space(&child, since, address),
            Request::Map { child, space, from } => self.map_of(&child, space, from),
            Request::Leave { child, space } => self.leave(&child, space),
            Request::Reclaim { child, dir } => self.reclaim(child, &dir, fd),
            Request::Stop => self.stop(),
        }
    }

    pub(super) fn adopt(&mut self, id: ChildId, dir: &Path, socket: Option<OwnedFd>) -> Reply {
        if self.key_of(&id).is_some() {
            return Reply::Done; // Asked again, because a reply was lost.
        }
        let Some(socket) = socket else {
            return Reply::Refused(format!("child {id} came without a socket for its userfaultfd"));
        };
        let refused = |error: &dyn std::fmt::Display| Reply::Refused(format!("child {id} is not served: {error}"));
        let child = match Child::adopt(id.clone(), dir, socket) {
            Ok(child) => child,
            Err(error) => return refused(&error),
        };
        let entered = self.station.registry().enter(&id, dir).and_then(|()| self.take_in(child));
        match entered {
            Ok(()) => {
                self.ask_for_set(&id);
                Reply::Done
            }
            Err(error) => {
                self.station.registry().strike(&id);
                refused(&error)
            }
        }
    }

    pub(super) fn release(&mut self, id: &ChildId) -> Reply {
        let Some(key) = self.key_of(id) else { return Reply::Done };
        self.sweep_child(key);
        let Some(served) = self.children.get_mut(&key) else { return Reply::Done };
        served.child.released = true;
        if served.child.spaces.is_empty() {
            let stats = served.child.stats();
            self.forget(key);
            Reply::Stats(stats)
        } else {
            Reply::StillRunning
        }
    }

    fn stop(&mut self) -> Reply {
        let keys: Vec<u64> = self.children.keys().copied().collect();
        keys.into_iter().for_each(|key| self.sweep_child(key));
        let running: Vec<String> = self
            .children
            .values()
            .filter(|served| !served.child.is_over())
            .map(|served| served.child.id.to_string())
            .collect();
        if running.is_empty() {
            self.end = Some(Ended::Stopped);
            return Reply::Done;
        }
        let list = running.join(", ");
        Reply::Refused(format!("the pager still serves {list}: without it they would read zeroes; end them first"))
    }

    pub(super) fn key_of(&self, id: &ChildId) -> Option<u64> {
        self.keys.get(id).copied()
    }
}
