//! `farfork volume export-catalog FILE`: saves the records of volumes.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::ExportCatalogRequest;
use farfork_cluster::catalog::{CatalogContents, CatalogError, FileCatalog};
use tonic::Code;

use super::damaged_record::{DamagedRecordView, report_damaged};
use crate::GlobalArgs;
use crate::output::{print_json, print_line, print_note};

/// Save the records of all volumes in a file, as a backup of the catalog.
///
/// If the catalog does not answer, the file gets what this node has read last, and the command says so (`catalog_failure` of
/// --json). Then export the catalog on each node that still runs: another one may have read a later record.
/// `farfork volume import-catalog` writes the records into a new catalog. The file is also one for `farfork node --catalog`.
///
/// The file lacks records that cannot be read. The command names each of them (`damaged` of --json).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume export-catalog /srv/catalog.json

Exit status: 0 the file has all records, 1 failure, 2 wrong usage, 3 the file lacks damaged records.")]
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
            let failure = Failure::new(Code::FailedPrecondition, OBJECT, &error);
            failure.with_next_step(next_step_after(&error))
        })?;
        let (file, volumes) = (self.file.display(), &contents.volumes);
        let damaged: Vec<_> = exported.damaged.into_iter().map(DamagedRecordView::in_catalog).collect();
        if global.json {
            let names: Vec<_> = volumes.keys().collect();
            let file = file.to_string();
            print_json(&serde_json::json!({
                "file": file, "volumes": names, "catalog_failure": catalog_failure, "damaged": damaged,
            }));
        } else {
            print_line(&format!("{file} has the records of {} volumes", volumes.len()));
            if let Some(failure) = &catalog_failure {
                print_note(format!("this is what the node has read last, because it {failure}"));
            }
        }
        Ok(report_damaged(&damaged))
    }
}

/// Returns the next step for the user after the file could not be written.
fn next_step_after(error: &CatalogError) -> &'static str {
    let CatalogError::Store { source, .. } = error else { return "name another file" };
    match source.kind() {
        ErrorKind::AlreadyExists => "name a file that does not exist",
        ErrorKind::NotFound | ErrorKind::NotADirectory => "name a file in a directory that exists",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space there, or name a file on another file system",
        _ => "name a file that this user can write",
    }
}
