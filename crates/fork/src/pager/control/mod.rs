//! The pager's side of the control socket. It handles each request of the daemon at once; requests are few and small.
//! `client` is the daemon's side, and `protocol` defines the messages.

pub(super) mod client;
pub(super) mod protocol;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_sys::fd_passing;
use farfork_wire::ChildId;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::child::Child;
use super::keeper::context::KeeperContext;
use super::server::event_poller::EventSource;
use super::server::{PagerServer, ServerExit};
use protocol::{
    CHILDREN_PER_REPLY_MAX, ControlMessageError, MESSAGE_BYTES_MAX, PagerHello, PagerReply, PagerRequest, RELEASE,
    decode, encode,
};

/// Maximum number of connections at once. The daemon opens one for each request that overlaps others, and keeps some
/// for further requests. If there are too many, the oldest connection is closed; its client connects again.
const CLIENTS_MAX: usize = 64;

/// The connected clients.
#[derive(Debug, Default)]
pub(super) struct ClientConnections {
    sockets: BTreeMap<u64, OwnedFd>,
    next_client_id: u64,
    /// The buffer for requests.
    request_buffer: Vec<u8>,
}

impl PagerServer<'_> {
    /// Accepts a client's connection.
    pub(super) fn accept_client(&mut self) {
        let accept = |keeper_context: &KeeperContext| {
            rustix::net::accept_with(keeper_context.listener(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        };
        let accepted = match accept(self.context) {
            Err(Errno::MFILE) => self.context.with_reserved_fds(accept),
            other => other,
        };
        let Ok(socket) = accepted else { return };
        if self.clients.sockets.len() >= CLIENTS_MAX
            && let Some((oldest, socket)) = self.clients.sockets.pop_first()
        {
            self.poller.remove(EventSource::Client(oldest), &socket);
        }
        let client = self.clients.next_client_id;
        self.clients.next_client_id += 1;
        match self.poller.add(EventSource::Client(client), &socket) {
            Ok(()) => drop(self.clients.sockets.insert(client, socket)),
            Err(error) => tracing::error!("a client of the pager cannot be watched: {error}"),
        }
    }

    /// Handles a client's request. Closes the connection if the client is gone or the request is invalid.
    pub(super) fn handle_client(&mut self, client: u64) {
        let Some(socket) = self.clients.sockets.remove(&client) else { return };
        match self.serve_request(&socket) {
            Ok(true) => drop(self.clients.sockets.insert(client, socket)),
            Ok(false) => self.poller.remove(EventSource::Client(client), &socket),
            Err(error) => {
                self.poller.remove(EventSource::Client(client), &socket);
                tracing::warn!("a request to the pager was not answered: {error}");
            }
        }
    }

    /// Receives a request, handles it and sends the reply. Returns false if the client is gone.
    fn serve_request(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        let bytes = &mut self.clients.request_buffer;
        bytes.resize(MESSAGE_BYTES_MAX, 0);
        let (length, fds) = fd_passing::receive(socket.as_fd(), bytes, 1)?;
        if length == 0 {
            return Ok(false);
        }
        let reply = match decode::<PagerRequest>(&bytes[..length]) {
            Ok(request) => self.dispatch_request(request, fds.into_iter().next()),
            // The client can tell the pager's protocol version from the reply.
            Err(error @ ControlMessageError::VersionMismatch { .. }) => PagerReply::Refused(error.to_string()),
            Err(error) => return Err(io::Error::other(error)),
        };
        let reply = encode(&reply).map_err(io::Error::other)?;
        fd_passing::send(socket.as_fd(), &reply, &[])?;
        Ok(true)
    }

    fn dispatch_request(&mut self, request: PagerRequest, fd: Option<OwnedFd>) -> PagerReply {
        match request {
            PagerRequest::Hello => {
                PagerReply::Hello(PagerHello { release: RELEASE.to_owned(), trust_policy: self.trust_policy.clone() })
            }
            PagerRequest::Replace => {
                self.exit = Some(ServerExit::Replaced);
                PagerReply::Done
            }
            PagerRequest::Adopt { child, dir } => self.handle_adopt(child, &dir, fd),
            PagerRequest::Transfer { zygote, child, dir, pid } => self.handle_transfer(&zygote, &child, &dir, pid, fd),
            PagerRequest::IsZygoteFilling { zygote } => match self.child_key(&zygote) {
                Some(key) => PagerReply::ZygoteFilling(self.is_zygote_filling(key)),
                None => PagerReply::Refused(format!("zygote {zygote} is not known to the pager")),
            },
            PagerRequest::Release { child } => self.handle_release(&child),
            PagerRequest::Stats { child } => match self.child_key(&child).and_then(|key| self.children.get(&key)) {
                Some(served) => PagerReply::Stats(served.child.stats()),
                None => PagerReply::Refused(format!("child {child} is not known to the pager")),
            },
            PagerRequest::CacheStats => {
                self.cache.set_limit(self.context.cache_bytes_max());
                PagerReply::CacheStats(self.cache.stats())
            }
            PagerRequest::Prewarm { seed, dir } => self.handle_prewarm(&seed, &dir),
            PagerRequest::ListChildren { after } => {
                let mut ids: Vec<ChildId> = self.children.values().map(|served| served.child.id.clone()).collect();
                ids.retain(|id| after.as_ref().is_none_or(|after| id > after));
                ids.sort_unstable();
                ids.truncate(CHILDREN_PER_REPLY_MAX);
                PagerReply::Children(ids)
            }
            PagerRequest::Settle { child, begin, pid } => self.handle_settle(&child, begin, pid),
            PagerRequest::NextSpace { child } => self.handle_next_space(&child),
            PagerRequest::FindSpace { child, since, address } => self.handle_find_space(&child, since, address),
            PagerRequest::ListSegments { child, space, from } => self.handle_list_segments(&child, space, from),
            PagerRequest::CloseSpace { child, space } => self.handle_close_space(&child, space),
            PagerRequest::Reclaim { child, dir } => self.handle_reclaim(child, &dir, fd),
            PagerRequest::Stop => self.handle_stop(),
            PagerRequest::LoseSeed { seed, reason } => self.handle_lose_seed(&seed, &reason),
        }
    }

    pub(super) fn handle_adopt(&mut self, id: ChildId, dir: &Path, socket: Option<OwnedFd>) -> PagerReply {
        if self.child_key(&id).is_some() {
            return PagerReply::Done; // The request was repeated because a reply was lost.
        }
        let Some(socket) = socket else {
            return PagerReply::Refused(format!("the request to adopt child {id} has no socket for its userfaultfd"));
        };
        let refused = |error: &dyn std::fmt::Display| PagerReply::Refused(format!("child {id} is not served: {error}"));
        let child = match Child::adopt(id.clone(), dir, socket) {
            Ok(child) => child,
            Err(error) => return refused(&error),
        };
        let entered = self.context.registry().insert(&id, dir).and_then(|()| self.serve_child(child));
        match entered {
            Ok(()) => {
                self.request_working_set(&id);
                PagerReply::Done
            }
            Err(error) => {
                self.context.registry().remove(&id);
                refused(&error)
            }
        }
    }

    pub(super) fn handle_release(&mut self, id: &ChildId) -> PagerReply {
        let Some(key) = self.child_key(id) else { return PagerReply::Done };
        self.close_ended_spaces(key);
        let Some(served) = self.children.get_mut(&key) else { return PagerReply::Done };
        served.child.release_requested = true;
        if served.child.spaces.is_empty() {
            let stats = served.child.stats();
            self.remove_child(key);
            PagerReply::Stats(stats)
        } else {
            PagerReply::StillRunning
        }
    }

    fn handle_stop(&mut self) -> PagerReply {
        let keys: Vec<u64> = self.children.keys().copied().collect();
        keys.into_iter().for_each(|key| self.close_ended_spaces(key));
        let running: Vec<String> = self
            .children
            .values()
            .filter(|served| !served.child.has_ended())
            .map(|served| served.child.id.to_string())
            .collect();
        if running.is_empty() {
            self.exit = Some(ServerExit::Stopped);
            return PagerReply::Done;
        }
        let list = running.join(", ");
        PagerReply::Refused(format!("the pager still serves {list}: without it they would read zeroes; end them first"))
    }

    pub(super) fn child_key(&self, id: &ChildId) -> Option<u64> {
        self.child_keys.get(id).copied()
    }
}
