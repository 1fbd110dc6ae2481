//! `farfork volume import-catalog FILE`: writes saved records of volumes into a new catalog.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::ImportCatalogRequest;
use farfork_cluster::catalog::{Catalog as _, CatalogContents, FileCatalog, VolumeName};
use tonic::Code;

use super::damaged_record::{DamagedRecordView, report_damaged};
use super::parse_volume_name;
use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// The object of failures.
const OBJECT: &str = "the catalog";

/// Write the records of a file of `farfork volume export-catalog` into the catalog of this node.
///
/// Use it when an etcd is gone for good and a new one is empty. Restart all daemons before, with the --catalog of the new one.
/// All records are validated first. The command refuses a file with an older record than the catalog has, and names the
/// volume. Records that the catalog has already are not changed, so the command may be repeated. A damaged record, in the file
/// or in the catalog, is named and left out (`damaged` of --json).
///
/// With names of volumes, the command writes only their records. It then also replaces a record that cannot be read: one that
/// `farfork volume ls` shows as `damaged`. The record of the file should be the latest one, because the damaged record cannot be
/// compared with it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume import-catalog /srv/catalog.json
  farfork volume import-catalog /srv/catalog.json data

Exit status: 0 the catalog has the records, 1 failure, 2 wrong usage, 3 damaged records are left out.")]
pub(crate) struct ImportCatalog {
    /// File of `farfork volume export-catalog`.
    file: PathBuf,
    /// Volumes whose records are written [default: all of the file].
    #[arg(value_name = "VOLUME", value_parser = parse_volume_name)]
    volumes: Vec<VolumeName>,
}

impl ImportCatalog {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let records = self.read_records()?;
        let contents = serde_json::to_vec(&records)?;
        let request = ImportCatalogRequest { contents, replaces_damaged: !self.volumes.is_empty() };
        let imported = global.connection.open().await?.import_catalog(request).await;
        let imported = imported.map_err(|status| Failure::from_status(OBJECT, &status))?.into_inner();
        let mut damaged: Vec<_> =
            records.damaged.iter().map(|(name, record)| DamagedRecordView::in_file(name, record)).collect();
        damaged.extend(imported.damaged.into_iter().map(DamagedRecordView::in_catalog));
        if global.json {
            let (written, present) = (imported.written, imported.present);
            print_json(&serde_json::json!({ "written": written, "present": present, "damaged": damaged }));
        } else {
            print_names("written", &imported.written);
            print_names("in the catalog already", &imported.present);
        }
        Ok(report_damaged(&damaged))
    }

    /// Reads the records to import.
    fn read_records(&self) -> Result<CatalogContents, Failure> {
        const NEXT_STEP: &str = "name a file of `farfork volume export-catalog`";
        let file = self.file.display();
        let failure = |cause: String| Failure::new(Code::FailedPrecondition, OBJECT, cause).with_next_step(NEXT_STEP);
        if !self.file.try_exists().map_err(|error| failure(format!("cannot read {file}: {error}")))? {
            return Err(failure(format!("the file {file} does not exist")));
        }
        let read = FileCatalog::new(&self.file).read().map_err(|error| failure(error.to_string()))?;
        if read.volumes.is_empty() && read.damaged.is_empty() {
            return Err(failure(format!("{file} has no records of volumes")));
        }
        for name in &self.volumes {
            if let Some(record) = read.damaged.get(name) {
                let cause = format!("the record of volume {name} in {file} is damaged: {}", record.reason);
                return Err(failure(cause).with_next_step("name another file of `farfork volume export-catalog`"));
            }
            if !read.volumes.contains_key(name) {
                let names: Vec<&str> = read.volumes.keys().map(VolumeName::as_str).collect();
                let failure = failure(format!("{file} has no record of volume {name}"));
                return Err(failure.with_next_step(format!("it has those of {}", names.join(", "))));
            }
        }
        let mut contents = (*read).clone();
        if !self.volumes.is_empty() {
            contents.volumes.retain(|name, _| self.volumes.contains(name));
            contents.damaged.clear();
        }
        Ok(contents)
    }
}

fn print_names(what: &str, names: &[String]) {
    if !names.is_empty() {
        print_line(&format!("{what}: {}", names.join(", ")));
    }
}
