//! `farfork volume check NAME`: compares the replicas of a volume, and repairs damaged ones.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_api::v1::check_volume_event::Event;
use farfork_api::v1::{CheckVolumeRequest, ReplicaDifference, VolumeCheckReport};
use farfork_cluster::catalog::VolumeName;
use farfork_terminal::command_failure::report_error;
use farfork_volume::process::DIFFERENCES_MAX;
use farfork_wire::NodeName;
use serde::Serialize;
use tonic::Code;

use super::parse_volume_name;
use crate::GlobalArgs;
use crate::output::{ByteProgressBar, Table, format_bytes, print_failure, print_json, print_line};

/// Exit status if the replicas could not be compared. If they differ, it is 1, as with cmp(1).
const EXIT_NOT_COMPARED: u8 = 3;

/// Compare the live replicas of a volume, and repair damaged ones.
///
/// Each replica computes digests of its files, directories and logs. Programs may write during the check. Where replicas
/// differ, the majority is right. Without a majority, as with two replicas, choose the right one with --good.
/// With --repair, a damaged replica leaves the chain and is copied again. During the copy, the mount on the replica's node
/// is interrupted: calls fail with ECONNABORTED and ENOTCONN. The command waits until the mount is usable again, or says
/// after 30 s that it is not. If the chain changes during a comparison, the comparison starts again. After the third
/// change, the check fails.
///
/// In the output, KIND says what differs or is damaged. inode: attributes, extended attributes or directory entries. data:
/// the contents of a file (OFFSET is a multiple of 16 MiB). log: the log of a client. mark: the file that says how far a log
/// is published. tree: the directory of a replica cannot be read, or it has a file that does not belong to the volume. The
/// other differences of a replica that cannot be read are unknown. DAMAGED is ? without a majority.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork volume check data
  farfork volume check data --repair
  farfork volume check data --repair --good n2
  farfork volume check data --json | jq -r '.differences[].path'

Exit status: 0 the replicas are equal or were repaired, 1 they differ, 2 wrong usage, 3 they cannot be compared, or there is no such volume.")]
pub(crate) struct CheckVolume {
    /// Name of the volume.
    #[arg(value_parser = parse_volume_name)]
    name: VolumeName,
    /// Copy damaged replicas again, and wait until the copies are complete.
    #[arg(long)]
    repair: bool,
    /// The replica on this node is right wherever replicas differ.
    #[arg(long, value_name = "NODE")]
    good: Option<NodeName>,
}

impl CheckVolume {
    pub(super) async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        self.compare(global).await.or_else(|failure| {
            report_error(&failure, global.json);
            Ok(ExitCode::from(EXIT_NOT_COMPARED))
        })
    }

    async fn compare(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut report = self.request_report(global).await?;
        let repair_failure = report.repair_failure.take();
        let view = CheckView::new(&self.name, self.good, report);
        if global.json {
            print_json(&view);
        } else {
            view.print();
        }
        if let Some(failure) = repair_failure {
            print_failure(&failure.into());
        }
        Ok(if view.is_settled() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Requests the check, and shows its progress.
    async fn request_report(&self, global: &GlobalArgs) -> anyhow::Result<VolumeCheckReport> {
        let object = format!("volume {}", self.name);
        let good = self.good.as_ref().map(NodeName::to_string).unwrap_or_default();
        let request = CheckVolumeRequest { name: self.name.to_string(), repair: self.repair, good };
        let events = global.connection.open().await?.check_volume(request).await;
        let mut events = events.map_err(|status| Failure::from_status(&object, &status))?.into_inner();
        let bar = ByteProgressBar::new("comparing");
        while let Some(message) = events.message().await.map_err(|status| Failure::from_status(&object, &status))? {
            match message.event {
                Some(Event::Progress(progress)) => bar.show(progress.compared_bytes, progress.data_bytes),
                Some(Event::Report(report)) => return Ok(report),
                None => {}
            }
        }
        let failure = Failure::new(Code::Unavailable, object, "the node ended the check without a result");
        Err(failure.with_next_step("repeat the command").into())
    }
}

/// The result of a check, for JSON output and for text.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct CheckView {
    volume: String,
    replicas: Vec<String>,
    inodes: u64,
    data_bytes: u64,
    differences: Vec<ReplicaDifferenceView>,
    repaired: Vec<String>,
    remounting: Vec<String>,
    /// The node of `--good`. The suggested next command repeats it.
    #[serde(skip)]
    good: Option<NodeName>,
}

/// One difference between replicas.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ReplicaDifferenceView {
    kind: String,
    path: Option<String>,
    inode: Option<u64>,
    /// Offset in the data of a file, or in a log.
    offset: Option<u64>,
    /// The client that owns the log.
    client: Option<String>,
    reason: Option<String>,
    damaged: Vec<String>,
}

impl ReplicaDifferenceView {
    fn new(difference: ReplicaDifference) -> Self {
        let ReplicaDifference { kind, path, inode, offset, client, reason, damaged } = difference;
        Self { kind, path, inode, offset, client, reason, damaged }
    }

    fn subject(&self) -> String {
        let inode = || self.inode.map(|inode| format!("inode {inode}"));
        let client = || self.client.as_ref().map(|client| format!("{} of {client}", self.kind));
        let path = self.path.clone().or_else(inode).or_else(client).or_else(|| self.reason.clone());
        path.unwrap_or_else(|| "-".to_owned())
    }
}

impl CheckView {
    fn new(name: &VolumeName, good: Option<NodeName>, report: VolumeCheckReport) -> Self {
        let VolumeCheckReport { replicas, inodes, data_bytes, differences, repaired, remounting, repair_failure: _ } =
            report;
        let differences = differences.into_iter().map(ReplicaDifferenceView::new).collect();
        Self { volume: name.to_string(), replicas, inodes, data_bytes, differences, repaired, remounting, good }
    }

    /// Returns whether there is no difference, or each difference has damaged replicas that were all copied again.
    fn is_settled(&self) -> bool {
        let is_repaired = |difference: &ReplicaDifferenceView| {
            !difference.damaged.is_empty() && difference.damaged.iter().all(|node| self.repaired.contains(node))
        };
        self.differences.iter().all(is_repaired)
    }

    fn print(&self) {
        let (inodes, data) = (self.inodes, format_bytes(self.data_bytes));
        let replicas = self.replicas.join(",");
        if self.differences.is_empty() {
            return print_line(&format!("{}: equal on {replicas}: {inodes} inodes, {data} of data", self.volume));
        }
        let mut table = Table::new(&["KIND", "WHERE", ">OFFSET", "DAMAGED"]);
        for difference in &self.differences {
            let offset = difference.offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
            let damaged = if difference.damaged.is_empty() { "?".to_owned() } else { difference.damaged.join(",") };
            table.add_row([difference.kind.clone(), difference.subject(), offset, damaged]);
        }
        table.print();
        print_line("");
        print_line(&self.next_step());
    }

    fn remounting_text(&self) -> String {
        if self.remounting.is_empty() {
            return String::new();
        }
        let nodes = self.remounting.join(",");
        format!("; the mount is still being restarted on {nodes}: see mount-{}.log of the node", self.volume)
    }

    fn next_step(&self) -> String {
        let count = self.differences.len();
        let at_least = if count >= DIFFERENCES_MAX { "at least " } else { "" };
        let noun = if count == 1 { "difference" } else { "differences" };
        let found = format!("{}: {at_least}{count} {noun}", self.volume);
        if self.is_settled() {
            format!("{found}; copied again: {}{}", self.repaired.join(","), self.remounting_text())
        } else if self.differences.iter().any(|difference| difference.damaged.is_empty()) {
            format!("{found}; no majority says which replica is right: choose one with `--repair --good NODE`")
        } else {
            let good = self.good.as_ref().map_or_else(String::new, |good| format!(" --good {good}"));
            format!("{found}; repair with `farfork volume check {} --repair{good}`", self.volume)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(damaged: &[&str], repaired: &[&str]) -> VolumeCheckReport {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let difference = ReplicaDifference {
            kind: "data".to_owned(),
            path: Some("/file".to_owned()),
            inode: Some(7),
            offset: Some(0),
            damaged: names(damaged),
            ..ReplicaDifference::default()
        };
        VolumeCheckReport {
            replicas: names(&["n1", "n2"]),
            inodes: 9,
            data_bytes: 100,
            differences: vec![difference],
            repaired: names(repaired),
            ..VolumeCheckReport::default()
        }
    }

    fn view(report: VolumeCheckReport) -> CheckView {
        CheckView::new(&VolumeName::new("data").unwrap(), None, report)
    }

    #[test]
    fn the_document_has_stable_keys() {
        let document = serde_json::to_value(view(report(&["n2"], &[]))).unwrap();
        let expected = serde_json::json!({
            "volume": "data", "replicas": ["n1", "n2"], "inodes": 9, "data_bytes": 100, "repaired": [], "remounting": [],
            "differences": [{
                "kind": "data", "path": "/file", "inode": 7, "offset": 0, "client": null, "reason": null, "damaged": ["n2"],
            }],
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn an_unsettled_check_names_the_next_step() {
        let (open, undecided, repaired) = (report(&["n2"], &[]), report(&[], &[]), report(&["n2"], &["n2"]));
        assert!(!view(open.clone()).is_settled() && view(open).next_step().contains("check data --repair"));
        assert!(!view(undecided.clone()).is_settled() && view(undecided).next_step().contains("--good NODE"));
        assert!(view(repaired.clone()).is_settled() && view(repaired).next_step().contains("copied again: n2"));
        let remounting = VolumeCheckReport { remounting: vec!["n2".to_owned()], ..report(&["n2"], &["n2"]) };
        assert!(view(remounting).next_step().contains("still being restarted on n2"));
        assert!(view(VolumeCheckReport::default()).is_settled());
    }
}
