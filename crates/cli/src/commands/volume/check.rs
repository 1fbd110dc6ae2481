//! `farfork volume check NAME`: compares the replicas of a volume, and repairs damaged ones.

use std::process::ExitCode;

use clap::Args;
use farfork_api::failure::Failure;
use farfork_cluster::catalog::VolumeName;
use farfork_terminal::command_failure::report_error;
use farfork_volume::process::{CheckReport, DIFFERENCES_MAX, DifferenceSubject, ReplicaDifference, VolumeCheck};
use farfork_wire::NodeName;
use serde::Serialize;

use super::parse_volume_name;
use super::view::replicas_text;
use super::volume_node::{VolumeNode, failure_of_text};
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
    pub(super) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        self.compare(global).or_else(|failure| {
            report_error(&failure.into(), global.json);
            Ok(ExitCode::from(EXIT_NOT_COMPARED))
        })
    }

    fn compare(self, global: &GlobalArgs) -> Result<ExitCode, Failure> {
        let object = format!("volume {}", self.name);
        let (name, good) = (self.name.clone(), self.good);
        let check = VolumeCheck { name, should_repair: self.repair, good: good.clone() };
        let bar = ByteProgressBar::new("comparing");
        let checked = VolumeNode::find(global, &object)?
            .check(&object, &check, |progress| bar.show(progress.compared_bytes, progress.data_bytes));
        drop(bar);
        let mut report = checked?;
        let repair_failure = report.repair_failure.take();
        let view = CheckView::new(&self.name, good, report);
        if global.json {
            print_json(&view);
        } else {
            view.print();
        }
        if let Some(reason) = repair_failure {
            print_failure(&failure_of_text(&object, &reason));
        }
        Ok(if view.is_settled() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The result of a check, for JSON output and for text.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct CheckView {
    volume: String,
    replicas: Vec<NodeName>,
    inodes: u64,
    data_bytes: u64,
    differences: Vec<ReplicaDifferenceView>,
    repaired: Vec<NodeName>,
    remounting: Vec<NodeName>,
    /// The node of `--good`. The suggested next command repeats it.
    #[serde(skip)]
    good: Option<NodeName>,
}

/// One difference between replicas.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ReplicaDifferenceView {
    kind: &'static str,
    path: Option<String>,
    inode: Option<u64>,
    /// Offset in the data of a file, or in a log.
    offset: Option<u64>,
    /// The client that owns the log.
    client: Option<NodeName>,
    reason: Option<String>,
    damaged: Vec<NodeName>,
}

impl ReplicaDifferenceView {
    fn new(difference: ReplicaDifference) -> Self {
        let damaged = difference.damaged;
        let unnamed = Self { kind: "tree", path: None, inode: None, offset: None, client: None, reason: None, damaged };
        match difference.subject {
            DifferenceSubject::Tree { reason } => Self { reason: Some(reason), ..unnamed },
            DifferenceSubject::Inode { inode, path } => Self { kind: "inode", path, inode: Some(inode), ..unnamed },
            DifferenceSubject::Data { inode, path, range } => {
                Self { kind: "data", path, inode: Some(inode), offset: Some(range.start), ..unnamed }
            }
            DifferenceSubject::Mark { client, reason } => {
                Self { kind: "mark", client: Some(client), reason: Some(reason), ..unnamed }
            }
            DifferenceSubject::Log { client, position } => {
                Self { kind: "log", offset: Some(position), client: Some(client), ..unnamed }
            }
        }
    }

    fn subject(&self) -> String {
        let inode = || self.inode.map(|inode| format!("inode {inode}"));
        let client = || self.client.as_ref().map(|client| format!("{} of {client}", self.kind));
        let path = self.path.clone().or_else(inode).or_else(client).or_else(|| self.reason.clone());
        path.unwrap_or_else(|| "-".to_owned())
    }
}

impl CheckView {
    fn new(name: &VolumeName, good: Option<NodeName>, report: CheckReport) -> Self {
        let CheckReport { replicas, inodes, data_bytes, differences, repaired, remounting, repair_failure: _ } = report;
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
        let replicas = replicas_text(&self.replicas);
        if self.differences.is_empty() {
            return print_line(&format!("{}: equal on {replicas}: {inodes} inodes, {data} of data", self.volume));
        }
        let mut table = Table::new(&["KIND", "WHERE", ">OFFSET", "DAMAGED"]);
        for difference in &self.differences {
            let offset = difference.offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
            let damaged =
                if difference.damaged.is_empty() { "?".to_owned() } else { replicas_text(&difference.damaged) };
            table.add_row([difference.kind.to_owned(), difference.subject(), offset, damaged]);
        }
        table.print();
        print_line("");
        print_line(&self.next_step());
    }

    fn remounting_text(&self) -> String {
        if self.remounting.is_empty() {
            return String::new();
        }
        let nodes = replicas_text(&self.remounting);
        format!("; the mount is still being restarted on {nodes}: see mount-{}.log of the node", self.volume)
    }

    fn next_step(&self) -> String {
        let count = self.differences.len();
        let at_least = if count >= DIFFERENCES_MAX { "at least " } else { "" };
        let noun = if count == 1 { "difference" } else { "differences" };
        let found = format!("{}: {at_least}{count} {noun}", self.volume);
        if self.is_settled() {
            format!("{found}; copied again: {}{}", replicas_text(&self.repaired), self.remounting_text())
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

    fn report(damaged: &[&str], repaired: &[&str]) -> CheckReport {
        let names = |names: &[&str]| names.iter().map(|name| NodeName::new(name).unwrap()).collect::<Vec<_>>();
        let subject = DifferenceSubject::Data { inode: 7, path: Some("/file".to_owned()), range: 0..16 };
        CheckReport {
            replicas: names(&["n1", "n2"]),
            inodes: 9,
            data_bytes: 100,
            differences: vec![ReplicaDifference { subject, damaged: names(damaged) }],
            repaired: names(repaired),
            remounting: Vec::new(),
            repair_failure: None,
        }
    }

    fn view(report: CheckReport) -> CheckView {
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
        let remounting = CheckReport { remounting: vec![NodeName::new("n2").unwrap()], ..report(&["n2"], &["n2"]) };
        assert!(view(remounting).next_step().contains("still being restarted on n2"));
        assert!(view(CheckReport::default()).is_settled());
    }
}
