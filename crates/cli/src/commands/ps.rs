//! `farfork ps`: the cluster's children.

use std::io::{IsTerminal as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use farfork_node::api::v1::{Child, ListChildrenResponse, ListRequest};
use farfork_node::client::{Client, within};
use farfork_node::failure::Failure;
use farfork_node::limits::QUERY_TIMEOUT;

use crate::Global;
use crate::output::{self, ChildView, Table, age, exit_text, microseconds, shortened};

/// Between two pictures of `--watch`: as fast as people read.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Clears the screen and the lines above it, and goes to its corner (ECMA-48).
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J\x1b[3J";

/// List children of all nodes; those that have ended too, until they are removed.
///
/// RESUME is the time from the request to the child's first step; the process id is the one on the child's node.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork ps --watch
  farfork ps --json | jq -r '.children[] | select(.exit_code != 0).child'
  farfork ps --running --quiet | xargs farfork wait

Exit status: 0 listed, 1 one or more nodes cannot be asked, 2 wrong usage.")]
pub(crate) struct Ps {
    /// Only those of this node.
    #[arg(long)]
    here: bool,
    /// Only those that have not ended.
    #[arg(long)]
    running: bool,
    /// Print the ids only.
    #[arg(long, short, conflicts_with = "watch")]
    quiet: bool,
    /// Show the list again each second, until interrupted.
    #[arg(long)]
    watch: bool,
}

impl Ps {
    pub(crate) async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        loop {
            let answer = self.list(&mut client).await?;
            if self.watch && stdout().is_terminal() {
                output::raw(CLEAR_SCREEN.as_bytes())?;
            }
            let is_complete = answer.unanswered.is_empty();
            self.show(answer, global.json);
            if !self.watch {
                return Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    async fn list(&self, client: &mut Client) -> Result<ListChildrenResponse, Failure> {
        let request = ListRequest { this_node_only: self.here };
        let answer = client.list_children(within(QUERY_TIMEOUT, request)).await;
        let mut answer = answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner();
        if self.running {
            answer.children.retain(|child| child.exit.is_none());
        }
        Ok(answer)
    }

    fn show(&self, answer: ListChildrenResponse, json: bool) {
        let ListChildrenResponse { children, unanswered } = answer;
        let unanswered: Vec<Failure> = unanswered.into_iter().map(Failure::from).collect();
        if json {
            let children: Vec<ChildView> = children.into_iter().map(ChildView::from).collect();
            let unanswered: Vec<String> = unanswered.iter().map(Failure::to_string).collect();
            output::json(&serde_json::json!({ "children": children, "unanswered": unanswered }));
            return;
        }
        if self.quiet {
            children.iter().for_each(|child| output::line(&child.id));
        } else {
            table(children).print();
        }
        unanswered.iter().for_each(output::failure);
    }
}

fn table(children: Vec<Child>) -> Table {
    let mut table = Table::new(&["CHILD", "SEED", ">PID", "STATE", ">RESUME", ">AGE", "COMMAND"]);
    for child in children {
        let ended = exit_text(child.exit.as_ref());
        let age = age(child.started_unix_ms);
        let view = ChildView::from(child);
        let state = if ended.is_empty() { view.state.to_owned() } else { ended };
        let resume = microseconds(view.resume_us);
        table.row([view.child, view.seed, view.pid.to_string(), state, resume, age, shortened(&view.command)]);
    }
    table
}
