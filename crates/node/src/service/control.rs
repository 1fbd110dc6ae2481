//! The gRPC service for users: passes each request to the module for its kind.

use std::sync::Arc;

use farfork_api::v1;
use farfork_cluster::membership::MemberView;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    attach, caller_disconnect, children, compare, core_dump, exec, fork, inspect, prewarm, seeds, settle, stream,
    volumes, wait,
};
use crate::auth::Caller;
use crate::node::Node;

type UnaryResult<T> = Result<Response<T>, Status>;
type ResponseStream<T> = ReceiverStream<Result<T, Status>>;

/// Handles the requests of users to this node.
#[derive(Debug, Clone)]
pub(crate) struct ControlService(pub(crate) Arc<Node>);

#[tonic::async_trait]
impl v1::node_server::Node for ControlService {
    type ForkStream = ResponseStream<v1::ForkOutcome>;
    type WaitStream = ResponseStream<v1::WaitEvent>;
    type AttachStream = ResponseStream<v1::AttachOutput>;
    type ExecStream = ResponseStream<v1::ExecOutput>;
    type LogsStream = ResponseStream<v1::LogChunk>;
    type CoreStream = ResponseStream<v1::CoreEvent>;
    type SettleStream = ResponseStream<v1::SettleProgress>;
    type CheckVolumeStream = ResponseStream<v1::CheckVolumeEvent>;

    async fn check(&self, request: Request<v1::CheckRequest>) -> UnaryResult<v1::CheckResponse> {
        Ok(Response::new(seeds::check(&self.0, request.into_inner()).await?))
    }

    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> UnaryResult<v1::Seed> {
        Ok(Response::new(seeds::prepare(&self.0, request.into_inner()).await?))
    }

    async fn fork(&self, request: Request<v1::ForkRequest>) -> UnaryResult<Self::ForkStream> {
        Ok(Response::new(fork::fork(&self.0, request.into_inner(), false).await?))
    }

    async fn stop_fork(&self, request: Request<v1::StopForkRequest>) -> UnaryResult<v1::StopForkResponse> {
        caller_disconnect::stop_fork(&self.0, request.into_inner().batch).await;
        Ok(Response::new(v1::StopForkResponse {}))
    }

    async fn wait(&self, request: Request<v1::WaitRequest>) -> UnaryResult<Self::WaitStream> {
        Ok(Response::new(wait::wait(&self.0, request.into_inner())))
    }

    async fn attach(&self, request: Request<Streaming<v1::AttachInput>>) -> UnaryResult<Self::AttachStream> {
        Ok(Response::new(attach::attach(&self.0, request.into_inner()).await?))
    }

    async fn exec(&self, request: Request<Streaming<v1::ExecInput>>) -> UnaryResult<Self::ExecStream> {
        Ok(Response::new(exec::exec(&self.0, request.into_inner()).await?))
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> UnaryResult<Self::LogsStream> {
        Ok(Response::new(stream::logs(&self.0, request.into_inner()).await?))
    }

    async fn kill(&self, request: Request<v1::KillRequest>) -> UnaryResult<v1::KillResponse> {
        Ok(Response::new(children::kill(&self.0, request.into_inner()).await?))
    }

    async fn pause(&self, request: Request<v1::PauseRequest>) -> UnaryResult<v1::Child> {
        Ok(Response::new(children::pause(&self.0, request.into_inner()).await?))
    }

    async fn unpause(&self, request: Request<v1::UnpauseRequest>) -> UnaryResult<v1::Child> {
        Ok(Response::new(children::unpause(&self.0, request.into_inner()).await?))
    }

    async fn open_freezer(&self, request: Request<v1::OpenFreezerRequest>) -> UnaryResult<v1::Freezer> {
        let caller = request.extensions().get::<Caller>().cloned();
        Ok(Response::new(children::open_freezer(&self.0, caller.as_ref(), &request.into_inner())?))
    }

    async fn settle(&self, request: Request<v1::SettleRequest>) -> UnaryResult<Self::SettleStream> {
        Ok(Response::new(settle::settle(&self.0, request.into_inner()).await?))
    }

    async fn core(&self, request: Request<v1::CoreRequest>) -> UnaryResult<Self::CoreStream> {
        Ok(Response::new(core_dump::dump_core(&self.0, request.into_inner()).await?))
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> UnaryResult<v1::RemoveResponse> {
        Ok(Response::new(children::remove(&self.0, request.into_inner()).await?))
    }

    async fn drop(&self, request: Request<v1::DropRequest>) -> UnaryResult<v1::DropResponse> {
        Ok(Response::new(seeds::drop_seed(&self.0, request.into_inner()).await?))
    }

    async fn prewarm(&self, request: Request<v1::PrewarmRequest>) -> UnaryResult<v1::PrewarmResponse> {
        Ok(Response::new(prewarm::prewarm(&self.0, request.into_inner()).await?))
    }

    async fn list_seeds(&self, request: Request<v1::ListRequest>) -> UnaryResult<v1::ListSeedsResponse> {
        Ok(Response::new(seeds::list(&self.0, request.into_inner()).await))
    }

    async fn list_children(&self, request: Request<v1::ListRequest>) -> UnaryResult<v1::ListChildrenResponse> {
        Ok(Response::new(children::list(&self.0, request.into_inner()).await))
    }

    async fn list_nodes(&self, _: Request<v1::ListNodesRequest>) -> UnaryResult<v1::ListNodesResponse> {
        let to_message = |view: MemberView| {
            let clock_difference_ms = self.0.peers.clock_difference_ms(&view.member.name);
            v1::NodeView { clock_difference_ms, ..view.into() }
        };
        let nodes = self.0.peers.views().into_iter().map(to_message).collect();
        Ok(Response::new(v1::ListNodesResponse { nodes }))
    }

    async fn inspect(&self, request: Request<v1::InspectRequest>) -> UnaryResult<v1::InspectResponse> {
        let object = inspect::inspect(&self.0, &request.into_inner().id).await?;
        Ok(Response::new(v1::InspectResponse { object: Some(object) }))
    }

    async fn compare(&self, request: Request<v1::CompareRequest>) -> UnaryResult<v1::CompareResponse> {
        Ok(Response::new(compare::compare(&self.0, request.into_inner()).await?))
    }

    async fn create_volume(&self, request: Request<v1::CreateVolumeRequest>) -> UnaryResult<v1::CreateVolumeResponse> {
        Ok(Response::new(volumes::create(&self.0, request.into_inner()).await?))
    }

    async fn list_volumes(&self, _: Request<v1::ListVolumesRequest>) -> UnaryResult<v1::ListVolumesResponse> {
        Ok(Response::new(volumes::list(&self.0).await?))
    }

    async fn get_volume(&self, request: Request<v1::GetVolumeRequest>) -> UnaryResult<v1::VolumeStatus> {
        Ok(Response::new(volumes::get(&self.0, request.into_inner()).await?))
    }

    async fn check_volume(&self, request: Request<v1::CheckVolumeRequest>) -> UnaryResult<Self::CheckVolumeStream> {
        Ok(Response::new(volumes::check(&self.0, request.into_inner())?))
    }

    async fn replace_replica(
        &self,
        request: Request<v1::ReplaceReplicaRequest>,
    ) -> UnaryResult<v1::ReplaceReplicaResponse> {
        Ok(Response::new(volumes::replace(&self.0, request.into_inner()).await?))
    }

    async fn drop_volume(&self, request: Request<v1::DropVolumeRequest>) -> UnaryResult<v1::DropVolumeResponse> {
        Ok(Response::new(volumes::drop_volume(&self.0, request.into_inner()).await?))
    }

    async fn export_catalog(&self, _: Request<v1::ExportCatalogRequest>) -> UnaryResult<v1::ExportCatalogResponse> {
        Ok(Response::new(volumes::export_catalog(&self.0).await?))
    }

    async fn import_catalog(
        &self,
        request: Request<v1::ImportCatalogRequest>,
    ) -> UnaryResult<v1::ImportCatalogResponse> {
        Ok(Response::new(volumes::import_catalog(&self.0, request.into_inner()).await?))
    }

    async fn locate_volumes(&self, request: Request<v1::LocateVolumesRequest>) -> UnaryResult<v1::VolumeLocation> {
        let caller = request.extensions().get::<Caller>();
        Ok(Response::new(volumes::locate(&self.0, caller).await?))
    }
}
