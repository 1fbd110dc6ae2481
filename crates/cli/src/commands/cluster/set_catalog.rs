//! `farfork cluster set-catalog`: moves the members of a cluster to another catalog.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::catalog::{CatalogLocation, CatalogReference, reserve_catalog};
use tonic::Code;

use super::enrollment::absolute_location;
use crate::{GlobalArgs, output};

/// Name another catalog for the members of the cluster, such as a new etcd.
///
/// Run the command on the machine of each node, and restart its daemon. Nothing needs to be copied: each node writes its own
/// record and the revoked keys into the catalog. The records of volumes are saved and written with
/// `farfork volume export-catalog` and `import-catalog`. Nodes that join later get the location from the node that admits them.
///
/// The command reserves the catalog for this cluster, and refuses one of another cluster. A cluster that was made without a
/// catalog then keeps its members in this one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster set-catalog etcd://10.0.1.1:2379,10.0.1.2:2379,10.0.1.3:2379

Exit status: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct SetCatalog {
    /// File or etcd cluster, as of `farfork cluster init --catalog`. All nodes must reach it.
    #[arg(value_name = "FILE|URL")]
    catalog: CatalogLocation,
}

impl SetCatalog {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let (directory, location) = (global.trust(), absolute_location(self.catalog)?);
        let cluster = location.open().and_then(|catalog| reserve_catalog(&*catalog, &directory));
        let cluster = cluster.map_err(|error| {
            let failure = Failure::new(Code::FailedPrecondition, format!("catalog {location}"), error);
            failure.with_next_step("the nodes use the former catalog")
        })?;
        CatalogReference { location: Some(location.clone()), cluster }.write(&directory)?;
        if global.json {
            let (catalog, trust) = (location.to_string(), directory.root());
            output::print_json(&serde_json::json!({ "catalog": catalog, "trust": trust }));
        } else {
            output::print_line(&format!(
                "{} names the catalog {location}; restart the daemon of this node",
                directory.root().display()
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
