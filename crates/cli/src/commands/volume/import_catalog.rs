//! `farfork volume import-catalog FILE`: writes saved records of volumes into a new catalog.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::catalog::{Catalog as _, FileCatalog, VolumeName};
use tonic::Code;

use super::volume_node::VolumeNode;
use crate::GlobalArgs;
use crate::output::{print_json, print_line};

/// Write the records of a file of `farfork volume export-catalog` into the catalog of this node.
///
/// Use it when an etcd is gone for good and a new one is empty. Restart all daemons before, with the --catalog of the new one.
/// All records are validated first. The command refuses a file with an older record than the catalog has, and names the
/// volume. Records that the catalog has already are not changed, so the command may be repeated.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume import-catalog /srv/catalog.json

Exit status: 0 the catalog has all records of the file, 1 failure, 2 wrong usage.")]
pub(crate) struct ImportCatalog {
    /// File of `farfork volume export-catalog`.
    file: PathBuf,
}

impl ImportCatalog {
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        const OBJECT: &str = "the catalog";
        let failure = |cause: String| Failure::new(Code::FailedPrecondition, OBJECT, cause);
        let contents = FileCatalog::new(&self.file).read().map_err(|error| failure(error.to_string()))?;
        if contents.volumes.is_empty() {
            let cause = format!("{} has no records of volumes, or does not exist", self.file.display());
            return Err(failure(cause).with_next_step("name a file of `farfork volume export-catalog`").into());
        }
        let summary = VolumeNode::find(global, OBJECT)?.import_catalog(OBJECT, (*contents).clone())?;
        if global.json {
            print_json(&serde_json::json!({ "written": summary.written, "present": summary.present }));
        } else {
            print_names("written", &summary.written);
            print_names("in the catalog already", &summary.present);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_names(what: &str, names: &[VolumeName]) {
    if !names.is_empty() {
        let names: Vec<&str> = names.iter().map(VolumeName::as_str).collect();
        print_line(&format!("{what}: {}", names.join(", ")));
    }
}
