//! Authorization: the only place that decides what a caller may request from a node.
//!
//! Only the owner of the Unix socket can connect to it (mode 0600), and may request everything. At the control port the
//! handshake identifies the peer (`control_port`), and `RequestAuthorizer` checks each request of every service. If a
//! certificate is revoked while its connection is open, the next request is refused.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use farfork_api::failure::Failure;
use farfork_trust::{AuthenticatedPeer, Credentials, Role};
use tonic::codegen::http;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::control_port::{ConnectionInfo, RateLimitedLog};

/// The service for users.
const NODE_SERVICE: &str = "farfork.v1.Node";

/// The service for nodes.
const PEER_SERVICE: &str = "farfork.v1.Peer";

/// The service through which machines join the cluster.
const CLUSTER_SERVICE: &str = "farfork.v1.Cluster";

/// Number of bytes of a request's path that are parsed. The paths of all methods are shorter.
const PATH_BYTES_MAX: usize = 100;

/// Methods that change nothing.
const READ_ONLY_METHODS: [&str; 9] =
    ["ListSeeds", "ListChildren", "ListNodes", "Inspect", "Logs", "Wait", "ListVolumes", "GetVolume", "ExportCatalog"];

/// The caller of a request. `RequestAuthorizer` attaches it to each request.
///
/// | caller | may request |
/// |---|---|
/// | a process at the Unix socket, or any peer with `--insecure` | everything |
/// | a node | everything |
/// | a client | everything of the service for users, on any node |
/// | a read-only client | lists, details, logs, results, records of volumes |
/// | any client | the roster |
/// | a peer without a certificate | to join, with a token |
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A process that may write to the Unix socket.
    Socket,
    /// A member of the cluster.
    Member(AuthenticatedPeer),
    /// A peer without a certificate.
    Anonymous,
    /// A peer of a node that runs without certificates (`--insecure`).
    Insecure,
}

impl Caller {
    /// Checks whether the caller may make this request.
    ///
    /// # Errors
    /// The request is not allowed. The failure contains the cause and the next step.
    fn authorize(&self, service: &str, method: &str) -> Result<(), Failure> {
        let refuse = |code, cause: String, step: &str| {
            Err(Failure::new(code, format!("request {service}/{method}"), cause).with_next_step(step))
        };
        let allowed = match self {
            Self::Socket | Self::Insecure => true,
            Self::Anonymous => (service, method) == (CLUSTER_SERVICE, "Join"),
            Self::Member(peer) => match peer.identity.role {
                Role::Node => true,
                _ if (service, method) == (CLUSTER_SERVICE, "GetRoster") => true,
                Role::Client => service == NODE_SERVICE,
                Role::ReadOnly => service == NODE_SERVICE && READ_ONLY_METHODS.contains(&method),
            },
        };
        match self {
            _ if allowed => Ok(()),
            Self::Member(peer) => {
                let needed =
                    if service == PEER_SERVICE || service == CLUSTER_SERVICE { Role::Node } else { Role::Client };
                let cause = format!("{peer} has the role {}, but {needed} is required", peer.identity.role);
                refuse(Code::PermissionDenied, cause, "have `farfork cluster issue` make a certificate with that role")
            }
            _ => {
                let cause = "the connection showed no certificate".to_owned();
                refuse(Code::Unauthenticated, cause, "name the directory with your certificate with --trust")
            }
        }
    }
}

/// Checks each request at a listener, and attaches its [`Caller`].
#[derive(Debug, Clone)]
pub(crate) enum RequestAuthorizer {
    /// At the Unix socket.
    Socket,
    /// At the control port.
    Network {
        /// `None` if the node runs without certificates.
        credentials: Option<Credentials>,
        /// Logs refused requests, at a limited rate.
        denial_log: Arc<RateLimitedLog>,
    },
}

impl RequestAuthorizer {
    fn authorize<B>(&self, request: &mut http::Request<B>) -> Result<(), Failure> {
        let caller = match self {
            Self::Socket => Caller::Socket,
            Self::Network { credentials: None, .. } => Caller::Insecure,
            Self::Network { credentials: Some(credentials), .. } => {
                let peer = request.extensions().get::<ConnectionInfo>().and_then(|arrival| arrival.peer.clone());
                if let Some(peer) = peer.as_ref().filter(|peer| credentials.is_revoked(peer)) {
                    let cause = format!("{peer} was revoked");
                    let failure = Failure::new(Code::PermissionDenied, "a request", cause);
                    return Err(failure.with_next_step(peer.identity.role.readmission_step()));
                }
                peer.map_or(Caller::Anonymous, Caller::Member)
            }
        };
        let path = request.uri().path();
        let path = path.get(..PATH_BYTES_MAX).unwrap_or(path);
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        caller.authorize(service, method)?;
        request.extensions_mut().insert(caller);
        Ok(())
    }

    /// Logs a refused request. For the network, the log is rate-limited, so that refused requests cannot fill the disk.
    fn log_denial(&self, failure: &Failure) {
        match self {
            Self::Socket => tracing::warn!("refused: {failure}"),
            Self::Network { denial_log: complaints, .. } => complaints.warn(|| format!("refused: {failure}")),
        }
    }
}

impl<S> Layer<S> for RequestAuthorizer {
    type Service = AuthorizedService<S>;

    fn layer(&self, inner: S) -> AuthorizedService<S> {
        AuthorizedService { authorizer: self.clone(), inner }
    }
}

/// A service whose requests are authorized first.
#[derive(Debug, Clone)]
pub(crate) struct AuthorizedService<S> {
    authorizer: RequestAuthorizer,
    inner: S,
}

impl<S, B, R> Service<http::Request<B>> for AuthorizedService<S>
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
        match self.authorizer.authorize(&mut request) {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(failure) => {
                self.authorizer.log_denial(&failure);
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
        Caller::Member(AuthenticatedPeer { identity: Identity { cluster: name.clone(), role, name }, issued_us: 1 })
    }

    #[test]
    fn each_role_may_call_its_methods() {
        let reads = READ_ONLY_METHODS.map(|method| (NODE_SERVICE, method));
        let changes = [
            [
                "Prepare",
                "Fork",
                "Kill",
                "Drop",
                "Remove",
                "Pause",
                "Unpause",
                "Attach",
                "Exec",
                "Check",
                "NotYetInvented",
            ]
            .as_slice(),
            &["CreateVolume", "CheckVolume", "ReplaceReplica", "DropVolume", "ImportCatalog"],
        ];
        let changes: Vec<_> = changes.concat().into_iter().map(|method| (NODE_SERVICE, method)).collect();
        let nodes = ["Heartbeat", "Leave", "DescribeSeed", "StartChildren", "Tend", "WarmUp"]
            .map(|method| (PEER_SERVICE, method));
        let own = [(CLUSTER_SERVICE, "Renew"), (CLUSTER_SERVICE, "Rotate"), ("unknown", "Service"), ("", "")];
        let may = |caller: &Caller, requests: &[(&str, &str)], expected: bool| {
            for (service, method) in requests {
                assert_eq!(caller.authorize(service, method).is_ok(), expected, "{caller:?}: {service}/{method}");
            }
        };
        for (caller, [may_read, may_change, may_as_node, may_own]) in [
            (Caller::Socket, [true; 4]),
            (Caller::Insecure, [true; 4]),
            (member(Role::Node), [true; 4]),
            (member(Role::Client), [true, true, false, false]),
            (member(Role::ReadOnly), [true, false, false, false]),
            (Caller::Anonymous, [false; 4]),
        ] {
            may(&caller, &reads, may_read);
            may(&caller, &changes, may_change);
            may(&caller, &nodes, may_as_node);
            may(&caller, &own, may_own);
        }
        may(&Caller::Anonymous, &[(CLUSTER_SERVICE, "Join")], true);
        for role in [Role::Node, Role::Client, Role::ReadOnly] {
            may(&member(role), &[(CLUSTER_SERVICE, "GetRoster")], true);
        }
        may(&Caller::Anonymous, &[(CLUSTER_SERVICE, "GetRoster")], false);
    }

    #[test]
    fn a_refusal_gives_the_next_step() {
        let failure = member(Role::ReadOnly).authorize(NODE_SERVICE, "Kill").unwrap_err();
        assert_eq!(failure.code(), Code::PermissionDenied);
        let text = failure.to_string();
        for part in ["Kill", "farfork://x/read-only/x", "client is required", "cluster issue"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
