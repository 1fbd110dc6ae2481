//! The gRPC service for other nodes.

use std::sync::Arc;
use std::time::Instant;

use farfork_api::v1;
use farfork_cluster::membership::Member;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{caller_disconnect, channel, exit_watch, prewarm, seeds, speculative_prewarm, start};
use crate::auth::Caller;
use crate::heartbeat;
use crate::lost_seeds;
use crate::node::Node;

/// Handles the requests of other nodes to this node.
#[derive(Debug, Clone)]
pub(crate) struct PeerService(pub(crate) Arc<Node>);

#[tonic::async_trait]
impl v1::peer_server::Peer for PeerService {
    type StartChildrenStream = ReceiverStream<Result<v1::ForkOutcome, Status>>;
    type OpenChannelStream = ReceiverStream<Result<v1::ChannelOutput, Status>>;
    type TendStream = ReceiverStream<Result<v1::TendOutput, Status>>;

    async fn heartbeat(&self, request: Request<v1::Member>) -> Result<Response<v1::Members>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        Ok(Response::new(heartbeat::handle_heartbeat(&self.0.peers, caller.as_ref(), request.into_inner())?))
    }

    async fn leave(&self, request: Request<v1::Member>) -> Result<Response<v1::LeaveResponse>, Status> {
        heartbeat::check_sender(request.extensions().get(), request.get_ref())?;
        let mut leaving = request.into_inner();
        let kept_seeds = leaving.kept_seeds.take();
        let member = Member::try_from(leaving)?;
        tracing::info!(node = %member.name, "leaves");
        self.0.peers.membership().handle_leave(&member, Instant::now());
        if let Some(v1::KeptSeeds { ids }) = kept_seeds {
            lost_seeds::report_to_pager(&self.0, &member.name, &ids, "its node has left the cluster");
        }
        Ok(Response::new(v1::LeaveResponse {}))
    }

    async fn describe_seed(
        &self,
        request: Request<v1::DescribeSeedRequest>,
    ) -> Result<Response<v1::SeedAccess>, Status> {
        Ok(Response::new(seeds::describe_local(&self.0, request.into_inner()).await?))
    }

    async fn foretell(&self, request: Request<v1::ForetellRequest>) -> Result<Response<v1::ForetellResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        Ok(Response::new(speculative_prewarm::prewarm_for_next_seed(&self.0, caller.as_ref(), request.into_inner())?))
    }

    async fn warm_up(&self, request: Request<v1::SeedAccess>) -> Result<Response<v1::Warm>, Status> {
        Ok(Response::new(prewarm::prewarm_local(&self.0, request.into_inner()).await?))
    }

    async fn start_children(
        &self,
        request: Request<v1::StartChildrenRequest>,
    ) -> Result<Response<Self::StartChildrenStream>, Status> {
        let outcomes = start::start_children(&self.0, request.into_inner())?;
        Ok(Response::new(ReceiverStream::new(outcomes)))
    }

    async fn end_batch(&self, request: Request<v1::EndBatchRequest>) -> Result<Response<v1::EndBatchResponse>, Status> {
        caller_disconnect::end_local_batch(&self.0, request.get_ref());
        Ok(Response::new(v1::EndBatchResponse {}))
    }

    async fn tend(&self, request: Request<Streaming<v1::TendInput>>) -> Result<Response<Self::TendStream>, Status> {
        // An unreadable input ends the stream, like a disconnect of the sender.
        let children = request.into_inner().map_while(Result::ok);
        Ok(Response::new(exit_watch::watch_children(&self.0, children)))
    }

    async fn open_channel(
        &self,
        request: Request<Streaming<v1::ChannelInput>>,
    ) -> Result<Response<Self::OpenChannelStream>, Status> {
        Ok(Response::new(channel::serve_channel(&self.0, request.into_inner()).await?))
    }
}
