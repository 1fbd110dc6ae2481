//! What others ask of this node about being members. Whoever does not hold the authority passes a machine that joins on to
//! the node that does; nodes that renew ask round by themselves.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use farfork_cluster::membership::State;
use farfork_trust::member::{self, MemberError};
use farfork_trust::{Credentials, NODE_VALID, REQUEST_BYTES_MAX, Role, Secret, Throttle};
use farfork_wire::NodeName;
use tokio::task::JoinSet;
use tonic::{Code, Request, Response, Status};

use super::keep::{blocking, renew};
use crate::api::v1;
use crate::auth::Caller;
use crate::client::{cluster_client, within};
use crate::failure::Failure;
use crate::gate::ArrivalInfo;
use crate::limits::QUERY_TIMEOUT;
use crate::peers::Peers;

/// What others ask about membership.
#[derive(Debug, Clone)]
pub(crate) struct ClusterService {
    peers: Arc<Peers>,
    throttle: Arc<Mutex<Throttle>>,
}

impl ClusterService {
    pub(crate) fn new(peers: Arc<Peers>) -> Self {
        Self { peers, throttle: Arc::default() }
    }

    fn credentials(&self) -> Result<&Credentials, Failure> {
        let object = format!("node `{}`", self.peers.my_name());
        let failure =
            || Failure::new(Code::FailedPrecondition, object, "it was started with --insecure and trusts everybody");
        self.peers.security().credentials().ok_or_else(failure)
    }

    fn throttle(&self) -> std::sync::MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn admit(
        &self,
        from: IpAddr,
        is_passed_on: bool,
        request: v1::JoinRequest,
    ) -> Result<v1::Credentials, Failure> {
        let object = format!("node `{}` from {from}", request.name);
        let credentials = self.credentials()?;
        let wait = self.throttle().wait(from, Instant::now());
        if !wait.is_zero() {
            let cause = "too many wrong join tokens came from there";
            let step =
                format!("try again in {} s, with a token that `farfork cluster token` printed", wait.as_secs() + 1);
            return Err(Failure::new(Code::ResourceExhausted, object, cause).with_next_step(step));
        }
        let name = self.check_name(&request.name, &object)?;
        let admitted = if credentials.directory().holds_authority() {
            self.admit_here(credentials, name, &object, request).await
        } else if is_passed_on {
            Err(not_here(&object))
        } else {
            self.pass_on(from, &object, request).await
        };
        if admitted.as_ref().is_err_and(|failure| failure.code() == Code::Unauthenticated) {
            let wrong = self.throttle().wrong(from, Instant::now());
            let total = self.throttle().wrong_total();
            tracing::warn!(%from, wrong, total, "a wrong join token");
        }
        admitted
    }

    /// A name that a living node has is not given a second time.
    fn check_name(&self, name: &str, object: &str) -> Result<NodeName, Failure> {
        let refuse = |code, cause: &dyn std::fmt::Display| Failure::new(code, object, cause);
        let name = NodeName::new(name).map_err(|error| refuse(Code::InvalidArgument, &error))?;
        let is_taken = self.peers.views().iter().any(|view| view.member.name == name && view.state == State::Alive);
        if is_taken {
            let failure = refuse(Code::AlreadyExists, &"the cluster has a node of this name, which is alive");
            return Err(failure.with_next_step("give each node a name of its own (`farfork node --name`)"));
        }
        Ok(name)
    }

    async fn admit_here(
        &self,
        credentials: &Credentials,
        name: NodeName,
        object: &str,
        request: v1::JoinRequest,
    ) -> Result<v1::Credentials, Failure> {
        let secret = Secret::from_bytes(&request.secret);
        let secret = secret.ok_or_else(|| Failure::new(Code::Unauthenticated, object, "that is no join token"))?;
        let now = SystemTime::now();
        let directory = credentials.directory().clone();
        let admit = move || member::admit(&directory, &secret, now);
        let admitted = tokio::task::spawn_blocking(admit).await;
        let admitted = admitted.map_err(|panic| Failure::new(Code::Internal, object, panic))?;
        admitted.map_err(|error| {
            let code = if matches!(error, MemberError::Token(_)) { Code::Unauthenticated } else { Code::Internal };
            Failure::new(code, object, error)
        })?;
        let signed = sign(credentials, request.request, name.clone(), object).await?;
        tracing::info!(node = %name, "joins with a token");
        Ok(signed)
    }

    async fn pass_on(&self, from: IpAddr, object: &str, request: v1::JoinRequest) -> Result<v1::Credentials, Failure> {
        let request = v1::JoinRequest { passed_on_for: from.to_string(), ..request };
        for member in self.peers.others_alive() {
            let mut client = cluster_client(self.peers.channel(member.address));
            match client.join(within(QUERY_TIMEOUT, request.clone())).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if status.code() == Code::FailedPrecondition || status.code() == Code::Unavailable => {}
                Err(status) => return Err(Failure::from_status(object, &status)),
            }
        }
        Err(not_here(object))
    }
}

fn not_here(object: &str) -> Failure {
    Failure::new(Code::FailedPrecondition, object, "no node that answers here holds the cluster's authority")
        .with_next_step("join at the node where `farfork cluster init` was run")
}

async fn sign(
    credentials: &Credentials,
    request: Vec<u8>,
    name: NodeName,
    object: &str,
) -> Result<v1::Credentials, Failure> {
    if request.len() > REQUEST_BYTES_MAX {
        return Err(Failure::new(Code::InvalidArgument, object, "the request for a certificate is too long"));
    }
    let roster = credentials.roster().1;
    let sign = move |credentials: &Credentials| {
        let now = SystemTime::now();
        let issued = member::issue(credentials.directory(), &request, Role::Node, &name, now, NODE_VALID);
        issued.map_err(|error| error.to_string())
    };
    let certificate = blocking(credentials, sign).await;
    let certificate = certificate.map_err(|cause| Failure::new(Code::InvalidArgument, object, cause))?;
    Ok(v1::Credentials { certificate, roster })
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for ClusterService {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::Credentials>, Status> {
        let is_node = matches!(request.extensions().get(), Some(Caller::Member(_)));
        let address = request.extensions().get::<ArrivalInfo>().map(|arrival| arrival.address.ip());
        let mut from = address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let request = request.into_inner();
        // Only a node's word counts for where somebody else came from.
        let is_passed_on = is_node && !request.passed_on_for.is_empty();
        if let Ok(origin) = request.passed_on_for.parse()
            && is_node
        {
            from = origin;
        }
        Ok(Response::new(self.admit(from, is_passed_on, request).await?))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::Credentials>, Status> {
        let Some(Caller::Member(peer)) = request.extensions().get().cloned() else {
            return Err(Failure::new(Code::PermissionDenied, "a renewal", "only a node can ask for its own").into());
        };
        let object = format!("certificate of {peer}");
        let credentials = self.credentials()?;
        if !credentials.directory().holds_authority() {
            return Err(not_here(&object).into());
        }
        let signed = sign(credentials, request.into_inner().request, peer.identity.name, &object).await?;
        tracing::info!("{object} is renewed");
        Ok(Response::new(signed))
    }

    async fn get_roster(&self, _: Request<v1::GetRosterRequest>) -> Result<Response<v1::GetRosterResponse>, Status> {
        let roster = self.peers.security().credentials().map(|credentials| credentials.roster().1);
        Ok(Response::new(v1::GetRosterResponse { roster: roster.unwrap_or_default() }))
    }

    async fn rotate(&self, request: Request<v1::RotateRequest>) -> Result<Response<v1::RotateResponse>, Status> {
        let mut response = v1::RotateResponse::default();
        match renew(&self.peers).await {
            Ok(()) => response.nodes.push(self.peers.my_name().to_string()),
            Err(failure) => response.failed.push(failure.into()),
        }
        if request.into_inner().all_nodes {
            let mut asked = JoinSet::new();
            for member in self.peers.others_alive() {
                let mut client = cluster_client(self.peers.channel(member.address));
                asked.spawn(async move {
                    let answer = client.rotate(within(QUERY_TIMEOUT, v1::RotateRequest { all_nodes: false })).await;
                    answer.map_err(|status| Failure::from_status(format!("node {}", member.name), &status))
                });
            }
            for answer in asked.join_all().await {
                match answer {
                    Ok(answer) => {
                        let answer = answer.into_inner();
                        response.nodes.extend(answer.nodes);
                        response.failed.extend(answer.failed);
                    }
                    Err(failure) => response.failed.push(failure.into()),
                }
            }
        }
        response.nodes.sort();
        Ok(Response::new(response))
    }
}
