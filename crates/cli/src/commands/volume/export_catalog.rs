//! `farfork volume export-catalog FILE`: saves the records of volumes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::ExportCatalogRequest;
use farfork_cluster::catalog::{CatalogContents, FileCatalog};
use tonic::Code;

use crate::GlobalArgs;
use crate::output::{print_json, print_line, print_note};

/// Save the records of all volumes in a file, as a backup of the catalog.
///
/// If the catalog does not answer, the file gets what this node has read last, and the command says so (`catalog_failure` of
/// --json). Then export the catalog on each node that still runs: another one may have read a later record.
/// `farfork volume import-catalog` writes the records into a new catalog. The file is also one for `farfork node --catalog`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume export-catalog /srv/catalog.json

Exit status: 0 the file is written, 1 failure, 2 wrong usage.")]
pub(crate) struct ExportCatalog {
    /// File to create.
    file: PathBuf,
}

impl ExportCatalog {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        const OBJECT: &str = "the catalog";
        let exported = global.connection.open().await?.export_catalog(ExportCatalogRequest {}).await;
        let exported = exported.map_err(|status| Failure::from_status(OBJECT, &status))?.into_inner();
        let contents: CatalogContents = serde_json::from_slice(&exported.contents)?;
        let catalog_failure = Some(exported.catalog_failure).filter(|failure| !failure.is_empty());
        FileCatalog::create(&self.file, &contents).map_err(|error| {
            let failure = Failure::new(Code::FailedPrecondition, OBJECT, error.to_string());
            failure.with_next_step("name a file that does not exist, in a directory that does")
        })?;
        let (file, volumes) = (self.file.display(), &contents.volumes);
        if global.json {
            let names: Vec<_> = volumes.keys().collect();
            let file = file.to_string();
            print_json(&serde_json::json!({ "file": file, "volumes": names, "catalog_failure": catalog_failure }));
        } else {
            print_line(&format!("{file} has the records of {} volumes", volumes.len()));
            if let Some(failure) = &catalog_failure {
                print_note(format!("this is what the node has read last, because it {failure}"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
