//! `farfork ps`: lists the children of the cluster.

mod watch;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{Child, ListChildrenResponse, ListRequest};

use crate::GlobalArgs;
use crate::output::screen::TerminalSize;
use crate::output::{self, ChildView, Table, exit_text, format_age, format_microseconds, screen, shorten_command};

/// Interval between two lists of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// List the children of all nodes.
///
/// The list includes children that have ended, until they are removed. PID is the process id on the child's node.
/// RESUME is the time from the request to the child's first instruction. A `settled` child has all of its memory, and
/// no longer needs its seed (see `farfork settle`).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork ps --watch
  farfork ps --json | jq -r '.children[] | select(.exit_code != null and .exit_code != 0).child'
  farfork ps --running --quiet | xargs farfork wait

Exit status: 0 success, 1 at least one node does not answer, 2 wrong usage.")]
pub(crate) struct Ps {
    /// List only children on this node.
    #[arg(long)]
    here: bool,
    /// List only children that have not ended.
    #[arg(long)]
    running: bool,
    /// Print only the ids.
    #[arg(long, short, conflicts_with = "watch")]
    quiet: bool,
    /// Print the list every second until interrupted.
    ///
    /// On a terminal, each list replaces the one before. If it does not fit, running children are shown first. With
    /// --json, each list is a document.
    #[arg(long)]
    watch: bool,
}

impl Ps {
    pub(crate) async fn run(self, global: GlobalArgs) -> anyhow::Result<ExitCode> {
        let mut client = global.connection.open().await?;
        if self.watch {
            return self.watch(&mut client, global.json).await;
        }
        let answer = self.list(&mut client).await?;
        let is_complete = answer.unanswered.is_empty();
        let unanswered = node_failures(&answer);
        if global.json {
            output::print_json(&list_json(answer));
        } else if self.quiet {
            answer.children.iter().for_each(|child| output::print_line(&child.id));
        } else {
            children_table(answer.children).print();
        }
        if !global.json {
            unanswered.iter().for_each(output::print_failure);
        }
        Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Prints lists until interrupted, or until the reader of the output closes the pipe. If a node does not answer,
    /// reports it and queries it again for the next list.
    async fn watch(&self, client: &mut Client, json: bool) -> anyhow::Result<ExitCode> {
        loop {
            let answer = self.list(client).await;
            let write_result = match (answer, screen::terminal_size()) {
                (Ok(answer), _) if json => output::write_bytes(format!("{:#}\n", list_json(answer)).as_bytes()),
                (Ok(answer), Some(size)) => screen::draw(&render_list(answer, Some(size)), size),
                (Ok(answer), None) => output::write_bytes(format!("{}\n", render_list(answer, None)).as_bytes()),
                (Err(failure), Some(size)) if !json => screen::draw(&format!("farfork: {failure}"), size),
                (Err(failure), _) => {
                    output::print_failure(&failure);
                    Ok(())
                }
            };
            if write_result.is_err() {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    async fn list(&self, client: &mut Client) -> Result<ListChildrenResponse, Failure> {
        let mut answer = list_children(client, self.here).await?;
        if self.running {
            answer.children.retain(|child| child.exit.is_none());
        }
        Ok(answer)
    }
}

/// Lists the children of all nodes, or only of the connected node (`here`).
pub(super) async fn list_children(client: &mut Client, here: bool) -> Result<ListChildrenResponse, Failure> {
    let request = ListRequest { this_node_only: here, living_only: false };
    let answer = client.list_children(request_with_timeout(QUERY_TIMEOUT, request)).await;
    Ok(answer.map_err(|status| Failure::from_status("the node", &status))?.into_inner())
}

/// Returns a failure for each node that did not answer.
pub(super) fn node_failures(answer: &ListChildrenResponse) -> Vec<Failure> {
    answer.unanswered.iter().cloned().map(Failure::from).collect()
}

fn list_json(answer: ListChildrenResponse) -> serde_json::Value {
    let unanswered: Vec<String> = node_failures(&answer).iter().map(Failure::to_string).collect();
    let children: Vec<ChildView> = answer.children.into_iter().map(ChildView::from).collect();
    serde_json::json!({ "children": children, "unanswered": unanswered })
}

/// Renders summary, failures and table. Omits the children that do not fit a terminal of this size.
fn render_list(answer: ListChildrenResponse, size: Option<TerminalSize>) -> String {
    let mut text = watch::summary(&answer.children) + "\n";
    for failure in node_failures(&answer) {
        let _ = writeln!(text, "farfork: {failure}");
    }
    let mut children = answer.children;
    let used_lines = text.lines().count();
    let left_out = size.map_or(0, |size| watch::truncate_to_fit(&mut children, used_lines, size));
    let _ = writeln!(text, "{}", children_table(children).render());
    if left_out > 0 {
        let _ = writeln!(text, "and {left_out} more");
    }
    text
}

fn children_table(children: Vec<Child>) -> Table {
    let mut table = Table::new(&["CHILD", "SEED", ">PID", "STATE", ">RESUME", ">AGE", "COMMAND"]);
    for child in children {
        let ended = exit_text(child.exit.as_ref());
        let age = format_age(Duration::from_millis(child.age_ms));
        let view = ChildView::from(child);
        let state = match (ended.is_empty(), view.settled) {
            (true, true) => format!("{}, settled", view.state),
            (true, false) => view.state.to_owned(),
            (false, _) => ended,
        };
        let resume = format_microseconds(view.resume_us);
        table.add_row([
            view.child,
            view.seed,
            view.pid.to_string(),
            state,
            resume,
            age,
            shorten_command(&view.command),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_api::v1;

    #[test]
    fn a_list_with_failures_fits_the_terminal() {
        let children = (0..50).map(|number| Child { id: format!("c{number}"), ..Child::default() }).collect();
        let unanswered = (0..3).map(|_| v1::Error::default()).collect();
        let size = TerminalSize { lines: 12, columns: 80 };
        let text = render_list(ListChildrenResponse { children, unanswered, ..Default::default() }, Some(size));
        // The cursor is on the last line of the terminal.
        assert_eq!(text.lines().count(), size.lines - 1, "{text}");
        assert_eq!(text.lines().last(), Some("and 45 more"));
    }
}
