//! `farfork doctor`: checks whether this machine can run a node. It asks the kernel for each facility instead of reading its
//! configuration, and changes nothing.

mod finding;
mod kernel;
mod limits;
mod network;

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;

use self::finding::{FindingStatus, HostFinding};
use crate::GlobalArgs;
use crate::connection::parse_address;
use crate::output::{self, Table};

/// Check whether this machine can run a node, and name the command that mends each problem.
///
/// Looks at the kernel, the rights of this process, control groups, limits, ports, and the clock. A `problem` prevents a
/// node or its children. A `warning` restricts them. Run the command as the daemon will run: as root, with the same
/// limits. It changes nothing, but the kernel may load the module of overlayfs.
///
/// If a daemon of this machine runs, its clock is compared with those of the other nodes. It is a warning if the daemon of
/// --socket does not answer.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork doctor
  farfork doctor --listen 10.0.0.2:7400
  farfork doctor --json | jq -r '.findings[] | select(.status == \"problem\").remedy'

Exit status: 0 no problem, 1 at least one problem, 2 wrong usage.")]
pub(crate) struct Doctor {
    /// Address at which the node will listen, as in `farfork node --listen`. The next port must be free, too.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address, default_value = "0.0.0.0:7400")]
    listen: SocketAddr,
}

impl Doctor {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let nodes = network::list_nodes(&global.connection).await;
        let mut findings = kernel::check();
        findings.extend(limits::check());
        findings.extend(network::check(self.listen, nodes.as_deref(), global.connection.selected_socket()));
        if global.json {
            output::print_json(&serde_json::json!({ "findings": findings }));
        } else {
            print_findings(&findings);
        }
        let has_problem = findings.iter().any(|finding| finding.status == FindingStatus::Problem);
        Ok(if has_problem { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Prints a table of all findings, then the remedies.
fn print_findings(findings: &[HostFinding]) {
    let mut table = Table::new(&["CHECK", "STATUS", "FOUND"]);
    for finding in findings {
        table.add_row([finding.check.to_owned(), finding.status.to_string(), finding.found.clone()]);
    }
    table.print();
    for HostFinding { check, remedy, .. } in findings {
        if let Some(remedy) = remedy {
            output::print_line(&format!("{check}: {remedy}"));
        }
    }
}
