//! Who may ask a node for what: the one place where that is decided.
//!
//! A request comes through one of two doors. The Unix socket is guarded by its permissions (mode 0600: its owner), and
//! whoever gets through may ask for everything. At the network's door the connection has shown who it is
//! (`gate`), and each request, of every service, passes [`Doorkeeper`]:
//!
//! | who | may ask for |
//! |---|---|
//! | a node | everything |
//! | a client | what users ask for, on any node |
//! | a read-only client | lists, details, logs, results |
//! | any of them | whom the cluster trusts |
//! | whoever showed no certificate | to join, with a token |
//!
//! A certificate that was revoked since its connection began counts no longer with the next request.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use farfork_trust::{Credentials, Peer, Role};
use tonic::codegen::http;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::failure::Failure;
use crate::gate::{ArrivalInfo, Complaints};

/// The service for users.
const NODE: &str = "farfork.v1.Node";

/// The service for nodes.
const PEER: &str = "farfork.v1.Peer";

/// The service that makes members.
const CLUSTER: &str = "farfork.v1.Cluster";

/// Longest path of a request that is looked at, in bytes; no method's is longer.
const PATH_BYTES_MAX: usize = 100;

/// What changes nothing.
const READS: [&str; 6] = ["ListSeeds", "ListChildren", "ListNodes", "Inspect", "Logs", "Wait"];

/// Who asks. Each request carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Whoever may write to the Unix socket.
    Socket,
    /// A member of the cluster.
    Member(Peer),
    /// Somebody who showed no certificate.
    Stranger,
    /// Whoever reaches the port of a node that was told to trust everybody.
    Anybody,
}

impl Caller {
    /// Whether this may be asked for.
    ///
    /// # Errors
    /// What it may not, and what would help.
    fn check(&self, service: &str, method: &str) -> Result<(), Failure> {
        let refuse = |code, cause: String, step: &str| {
            Err(Failure::new(code, format!("request {service}/{method}"), cause).with_next_step(step))
        };
        let allowed = match self {
            Self::Socket | Self::Anybody => true,
            Self::Stranger => (service, method) == (CLUSTER, "Join"),
            Self::Member(peer) => match peer.identity.role {
                Role::Node => true,
                _ if (service, method) == (CLUSTER, "GetRoster") => true,
                Role::Client => service == NODE,
                Role::ReadOnly => service == NODE && READS.contains(&method),
            },
        };
        match self {
            _ if allowed => Ok(()),
            Self::Member(peer) => {
                let needed = if service == PEER || service == CLUSTER { Role::Node } else { Role::Client };
                let cause = format!("{peer} has the role {}, and this takes {needed}", peer.identity.role);
                refuse(Code::PermissionDenied, cause, "have `farfork cluster issue` make a certificate with that role")
            }
            _ => {
                let cause = "the connection showed no certificate".to_owned();
                refuse(Code::Unauthenticated, cause, "name the directory with your certificate with --trust")
            }
        }
    }
}

/// Stands at a door, looks at each request, and notes on it who asks.
#[derive(Debug, Clone)]
pub(crate) enum Doorkeeper {
    /// At the Unix socket.
    Socket,
    /// At the control port.
    Network {
        /// Absent where everybody is trusted.
        credentials: Option<Credentials>,
        /// What was refused.
        complaints: Arc<Complaints>,
    },
}

impl Doorkeeper {
    fn admit<B>(&self, request: &mut http::Request<B>) -> Result<(), Failure> {
        let caller = match self {
            Self::Socket => Caller::Socket,
            Self::Network { credentials: None, .. } => Caller::Anybody,
            Self::Network { credentials: Some(credentials), .. } => {
                let peer = request.extensions().get::<ArrivalInfo>().and_then(|arrival| arrival.peer.clone());
                if let Some(peer) = peer.as_ref().filter(|peer| credentials.is_revoked(peer)) {
                    let cause = format!("{peer} was revoked");
                    let failure = Failure::new(Code::PermissionDenied, "a request", cause);
                    return Err(failure.with_next_step("let it join again with a new token"));
                }
                peer.map_or(Caller::Stranger, Caller::Member)
            }
        };
        let path = request.uri().path();
        let path = path.get(..PATH_BYTES_MAX).unwrap_or(path);
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        caller.check(service, method)?;
        request.extensions_mut().insert(caller);
        Ok(())
    }

    /// Who asks for what it may not, from the network, does not fill the disk with it.
    fn tell(&self, failure: &Failure) {
        match self {
            Self::Socket => tracing::warn!("refused: {failure}"),
            Self::Network { complaints, .. } => complaints.tell(|| format!("refused: {failure}")),
        }
    }
}

impl<S> Layer<S> for Doorkeeper {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { doorkeeper: self.clone(), inner }
    }
}

/// A service behind a doorkeeper.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<S> {
    doorkeeper: Doorkeeper,
    inner: S,
}

impl<S, B, R> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        match self.doorkeeper.admit(&mut request) {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(failure) => {
                self.doorkeeper.tell(&failure);
                Box::pin(ready(Ok(Status::from(failure).into_http())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farfork_trust::Identity;
    use farfork_wire::NodeName;

    use super::*;

    fn member(role: Role) -> Caller {
        let name = NodeName::new("x").unwrap();
        Caller::Member(Peer { identity: Identity { cluster: name.clone(), role, name }, issued_us: 1 })
    }

    #[test]
    fn each_role_may_do_its_part() {
        let reads = READS.map(|method| (NODE, method));
        let changes =
            ["Prepare", "Fork", "Kill", "Drop", "Remove", "Pause", "Unpause", "Attach", "Check", "NotYetInvented"];
        let changes = changes.map(|method| (NODE, method));
        let nodes =
            ["Heartbeat", "Leave", "DescribeSeed", "StartChildren", "Tend", "WarmUp"].map(|method| (PEER, method));
        let own = [(CLUSTER, "Renew"), (CLUSTER, "Rotate"), ("unknown", "Service"), ("", "")];
        let may = |caller: &Caller, requests: &[(&str, &str)], expected: bool| {
            for (service, method) in requests {
                assert_eq!(caller.check(service, method).is_ok(), expected, "{caller:?}: {service}/{method}");
            }
        };
        for (caller, [may_read, may_change, may_as_node, may_own]) in [
            (Caller::Socket, [true; 4]),
            (Caller::Anybody, [true; 4]),
            (member(Role::Node), [true; 4]),
            (member(Role::Client), [true, true, false, false]),
            (member(Role::ReadOnly), [true, false, false, false]),
            (Caller::Stranger, [false; 4]),
        ] {
            may(&caller, &reads, may_read);
            may(&caller, &changes, may_change);
            may(&caller, &nodes, may_as_node);
            may(&caller, &own, may_own);
        }
        may(&Caller::Stranger, &[(CLUSTER, "Join")], true);
        for role in [Role::Node, Role::Client, Role::ReadOnly] {
            may(&member(role), &[(CLUSTER, "GetRoster")], true);
        }
        may(&Caller::Stranger, &[(CLUSTER, "GetRoster")], false);
    }

    #[test]
    fn a_refusal_says_what_would_help() {
        let failure = member(Role::ReadOnly).check(NODE, "Kill").unwrap_err();
        assert_eq!(failure.code(), Code::PermissionDenied);
        let text = failure.to_string();
        for part in ["Kill", "farfork://x/read-only/x", "takes client", "cluster issue"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
