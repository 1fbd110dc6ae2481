//! The gRPC service for membership. A node without the authority forwards a join request to the node that holds the
//! authority. It does not forward a renewal: the requesting node tries all nodes itself.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use farfork_api::client::{cluster_client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1;
use farfork_cluster::catalog::CatalogReference;
use farfork_trust::member::{self, IssuedCertificate, MemberError};
use farfork_trust::{Credentials, JoinProof, JoinThrottle, REQUEST_BYTES_MAX};
use farfork_wire::NodeName;
use tokio::task::JoinSet;
use tonic::{Code, Request, Response, Status};

use super::join_limiter::JoinLimiter;
use super::renewal::{renew_certificate, with_credentials};
use crate::auth::Caller;
use crate::control_port::ConnectionInfo;
use crate::peers::Peers;

/// Handles the membership requests of machines, nodes and users.
#[derive(Debug, Clone)]
pub(crate) struct ClusterService {
    peers: Arc<Peers>,
    throttle: Arc<Mutex<JoinThrottle>>,
    join_limiter: Arc<JoinLimiter>,
}

impl ClusterService {
    pub(crate) fn new(peers: Arc<Peers>) -> Self {
        Self { peers, throttle: Arc::default(), join_limiter: Arc::default() }
    }

    fn credentials(&self) -> Result<&Credentials, Failure> {
        let object = format!("node `{}`", self.peers.local_name());
        let failure =
            || Failure::new(Code::FailedPrecondition, object, "it was started with --insecure, so it has no cluster");
        self.peers.security().credentials().ok_or_else(failure)
    }

    fn throttle(&self) -> std::sync::MutexGuard<'_, JoinThrottle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn admit_machine(
        &self,
        from: IpAddr,
        is_passed_on: bool,
        request: v1::JoinRequest,
    ) -> Result<v1::Credentials, Failure> {
        let object = format!("node `{}` from {from}", request.name);
        let credentials = self.credentials()?;
        let _turn = self.join_limiter.acquire(from).ok_or_else(|| {
            let cause = "too many join requests from this address are in progress";
            Failure::new(Code::ResourceExhausted, &object, cause).with_next_step("try again when those have ended")
        })?;
        let wait = self.throttle().remaining_wait(from, Instant::now());
        if !wait.is_zero() {
            let cause = "too many wrong join tokens from this address";
            let step =
                format!("try again in {} s, with a token that `farfork cluster token` printed", wait.as_secs() + 1);
            return Err(Failure::new(Code::ResourceExhausted, object, cause).with_next_step(step));
        }
        let name = NodeName::new(&request.name);
        let name = name.map_err(|error| Failure::new(Code::InvalidArgument, &object, error))?;
        let admitted = if credentials.directory().holds_authority() {
            self.sign_join(credentials, name, &object, request).await
        } else if is_passed_on {
            tracing::info!("{object} was forwarded to this node, which does not hold the authority");
            Err(no_authority_failure(&object))
        } else {
            self.forward_to_authority(from, &object, request).await
        };
        if admitted.as_ref().is_err_and(|failure| failure.code() == Code::Unauthenticated) {
            let wrong = self.throttle().record_wrong_token(from, Instant::now());
            let total = self.throttle().wrong_total();
            tracing::warn!(%from, wrong, total, "a wrong join token");
        }
        admitted
    }

    async fn sign_join(
        &self,
        credentials: &Credentials,
        name: NodeName,
        object: &str,
        request: v1::JoinRequest,
    ) -> Result<v1::Credentials, Failure> {
        let proof = JoinProof::from_bytes(&request.proof).ok_or_else(|| {
            Failure::new(Code::Unauthenticated, object, "it sent no proof that it has a join token")
                .with_next_step("join with the same release of farfork")
        })?;
        let (peers, wanted) = (self.peers.clone(), name.clone());
        let admit = move |credentials: &Credentials| {
            let request = &request.request;
            check_length(request)?;
            let is_free =
                || peers.reserved_names().reserve(&wanted, request, Instant::now()) && !peers.is_alive(&wanted);
            member::admit_node(credentials.directory(), &proof, request, &wanted, is_free, SystemTime::now)
        };
        let issued = run_authority(credentials, object, admit).await?;
        tracing::info!(node = %name, "joins with a token");
        Ok(issued)
    }

    /// Forwards a join request only to the node that reported that it holds the authority. A peer without a certificate
    /// must not cause requests to all nodes.
    async fn forward_to_authority(
        &self,
        from: IpAddr,
        object: &str,
        request: v1::JoinRequest,
    ) -> Result<v1::Credentials, Failure> {
        let request = v1::JoinRequest { passed_on_for: from.to_string(), ..request };
        let holder = self.peers.authority_address().ok_or_else(|| no_authority_failure(object))?;
        let mut client = cluster_client(self.peers.channel(holder));
        match client.join(request_with_timeout(QUERY_TIMEOUT, request)).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) if status.code() == Code::FailedPrecondition || status.code() == Code::Unavailable => {
                Err(no_authority_failure(object))
            }
            Err(status) => Err(Failure::from_status(object, &status)),
        }
    }
}

fn no_authority_failure(object: &str) -> Failure {
    Failure::new(Code::FailedPrecondition, object, "no reachable node holds the cluster's authority")
        .with_next_step("join at the node where `farfork cluster init` was run")
}

/// Runs `work`, which uses the authority's files, in a separate thread. Converts an error to the failure of the
/// request.
async fn run_authority(
    credentials: &Credentials,
    object: &str,
    work: impl FnOnce(&Credentials) -> Result<IssuedCertificate, MemberError> + Send + 'static,
) -> Result<v1::Credentials, Failure> {
    let issued = with_credentials(credentials, move |credentials| Ok(work(credentials))).await;
    let issued = issued.map_err(|panic| Failure::new(Code::Internal, object, panic))?;
    let IssuedCertificate { certificate, roster } = issued.map_err(|error| refusal(object, &error))?;
    let catalog = CatalogReference::read(credentials.directory());
    let catalog = catalog.map_err(|error| Failure::new(Code::Internal, object, error))?;
    Ok(v1::Credentials { certificate, roster, catalog: catalog.map(|catalog| catalog.to_bytes()).unwrap_or_default() })
}

fn check_length(request: &[u8]) -> Result<(), MemberError> {
    if request.len() > REQUEST_BYTES_MAX { Err(MemberError::TooLong) } else { Ok(()) }
}

fn refusal(object: &str, error: &MemberError) -> Failure {
    let code = match error {
        MemberError::Token(_) => Code::Unauthenticated,
        MemberError::NameTaken => Code::AlreadyExists,
        MemberError::Revoked { .. } => Code::PermissionDenied,
        MemberError::Authority(_) | MemberError::TooLong => Code::InvalidArgument,
        _ => Code::Internal,
    };
    let failure = Failure::new(code, object, error);
    match error {
        MemberError::NameTaken => failure.with_next_step("give each node a name of its own (`farfork node --name`)"),
        _ => failure,
    }
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for ClusterService {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::Credentials>, Status> {
        let is_node = matches!(request.extensions().get(), Some(Caller::Member(_)));
        let address = request.extensions().get::<ConnectionInfo>().map(|arrival| arrival.address.ip());
        let mut from = address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let request = request.into_inner();
        // Only a node may report the source address of a request that it forwards.
        let is_passed_on = is_node && !request.passed_on_for.is_empty();
        if let Ok(origin) = request.passed_on_for.parse()
            && is_node
        {
            from = origin;
        }
        Ok(Response::new(self.admit_machine(from, is_passed_on, request).await?))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::Credentials>, Status> {
        let Some(Caller::Member(peer)) = request.extensions().get().cloned() else {
            return Err(Failure::new(Code::PermissionDenied, "a renewal", "only a node can ask for its own").into());
        };
        let object = format!("certificate of {peer}");
        let credentials = self.credentials()?;
        if !credentials.directory().holds_authority() {
            return Err(no_authority_failure(&object).into());
        }
        let request = request.into_inner().request;
        let renew = move |credentials: &Credentials| {
            check_length(&request)?;
            member::renew_certificate(credentials.directory(), &peer, &request, SystemTime::now)
        };
        let signed = run_authority(credentials, &object, renew).await?;
        tracing::info!("{object} is renewed");
        Ok(Response::new(signed))
    }

    async fn get_roster(&self, _: Request<v1::GetRosterRequest>) -> Result<Response<v1::GetRosterResponse>, Status> {
        let roster = self.peers.security().credentials().map(|credentials| credentials.roster().1);
        Ok(Response::new(v1::GetRosterResponse { roster: roster.unwrap_or_default() }))
    }

    async fn rotate(&self, request: Request<v1::RotateRequest>) -> Result<Response<v1::RotateResponse>, Status> {
        let mut response = v1::RotateResponse::default();
        match renew_certificate(&self.peers).await {
            Ok(()) => response.nodes.push(self.peers.local_name().to_string()),
            Err(failure) => response.failed.push(failure.into()),
        }
        if request.into_inner().all_nodes {
            let mut tasks = JoinSet::new();
            for member in self.peers.others_alive() {
                let mut client = cluster_client(self.peers.channel(member.address));
                tasks.spawn(async move {
                    let answer = client
                        .rotate(request_with_timeout(QUERY_TIMEOUT, v1::RotateRequest { all_nodes: false }))
                        .await;
                    answer.map_err(|status| Failure::from_status(format!("node {}", member.name), &status))
                });
            }
            for answer in tasks.join_all().await {
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
