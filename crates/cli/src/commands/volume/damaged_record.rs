//! Records of volumes that cannot be read: `export-catalog` and `import-catalog` name them, and continue with the others.

use std::process::ExitCode;

use farfork_api::v1;
use farfork_cluster::catalog::{DamagedRecord, VolumeName};
use serde::Serialize;

use crate::output::print_note;

/// The exit status if the command has left out damaged records.
const INCOMPLETE: u8 = 3;

/// A record that cannot be read. The JSON keys are stable.
#[derive(Debug, Serialize)]
pub(super) struct DamagedRecordView {
    volume: String,
    reason: String,
    next_step: String,
}

impl DamagedRecordView {
    /// A record of the catalog.
    pub(super) fn in_catalog(volume: v1::Volume) -> Self {
        let next_step = format!("restore it with `farfork volume import-catalog FILE {}`", volume.name);
        Self { volume: volume.name, reason: volume.damage, next_step }
    }

    /// A record of a file of `export-catalog`.
    pub(super) fn in_file(name: &VolumeName, record: &DamagedRecord) -> Self {
        let next_step = format!("take it from another file: `farfork volume import-catalog FILE {name}`");
        Self { volume: name.to_string(), reason: record.reason.clone(), next_step }
    }
}

/// Prints the records. Returns the exit status of the command.
pub(super) fn report_damaged(damaged: &[DamagedRecordView]) -> ExitCode {
    for DamagedRecordView { volume, reason, next_step } in damaged {
        print_note(format!("the record of volume {volume} is damaged, and left out: {reason}; {next_step}"));
    }
    if damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) }
}
