//! `farfork inspect CHILD --against PARENT`: compares the state that the kernel shows of a child and of its parent.

use std::process::ExitCode;

use farfork_api::client::{Client, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::COMPARE_TIMEOUT;
use farfork_api::v1::{CompareRequest, CompareResponse, FieldDifference, ToleratedFields};
use serde::Serialize;

use crate::GlobalArgs;
use crate::output::{self, Table};
use crate::process_names::{ProcessName, resolve_pid};

/// A field that differs.
#[derive(Debug, Serialize)]
struct DifferenceView {
    field: String,
    /// Null if the parent lacks the field.
    parent: Option<String>,
    child: Option<String>,
}

/// Fields that differ, and that a tolerance allows to differ.
#[derive(Debug, Serialize)]
struct ToleratedView {
    pattern: String,
    reason: String,
    /// Whether the fields should be equal, but farfork cannot make them equal yet.
    known_gap: bool,
    count: u32,
    first: Option<DifferenceView>,
}

#[derive(Debug, Serialize)]
struct ComparisonView {
    child: String,
    pid: u32,
    fields: u32,
    differences_count: u32,
    differences: Vec<DifferenceView>,
    tolerated: Vec<ToleratedView>,
}

/// Compares a child with its parent, and prints the differences.
pub(super) async fn run_comparison(
    mut client: Client,
    child: String,
    parent: &ProcessName,
    global: &GlobalArgs,
) -> anyhow::Result<ExitCode> {
    let pid = resolve_pid(&mut client, parent, global.connection.run_dir()).await?;
    let request = CompareRequest { child: child.clone(), pid, place: None };
    let answer = client.compare(request_with_timeout(COMPARE_TIMEOUT, request)).await;
    let answer = answer.map_err(|status| Failure::from_status(format!("child {child}"), &status))?.into_inner();
    let is_same = answer.differences_count == 0;
    let view = ComparisonView::new(child, pid, answer);
    if global.json {
        output::print_json(&view)
    } else {
        view.print()
    }
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl ComparisonView {
    fn new(child: String, pid: u32, answer: CompareResponse) -> Self {
        let CompareResponse { fields, differences_count, differences, tolerated } = answer;
        let differences = differences.into_iter().map(DifferenceView::from).collect();
        let tolerated = tolerated.into_iter().map(ToleratedView::from).collect();
        Self { child, pid, fields, differences_count, differences, tolerated }
    }

    fn print(&self) {
        if !self.differences.is_empty() {
            let mut table = Table::new(&["FIELD", "PARENT", "CHILD"]);
            for DifferenceView { field, parent, child } in &self.differences {
                let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
                table.add_row([field.clone(), value(parent), value(child)]);
            }
            table.print();
        }
        let gaps: Vec<&ToleratedView> = self.tolerated.iter().filter(|row| row.known_gap).collect();
        let tolerated: u32 = self.tolerated.iter().map(|row| row.count).sum();
        output::print_line(&format!(
            "{} fields: {} differ and should not, {tolerated} differ and may ({} of them are known gaps); --json has all",
            self.fields,
            self.differences_count,
            gaps.iter().map(|row| row.count).sum::<u32>()
        ));
        for row in gaps {
            output::print_line(&format!("known gap: {}: {}", row.pattern, row.reason));
        }
    }
}

impl From<FieldDifference> for DifferenceView {
    fn from(difference: FieldDifference) -> Self {
        let FieldDifference { field, parent, child } = difference;
        Self { field, parent, child }
    }
}

impl From<ToleratedFields> for ToleratedView {
    fn from(row: ToleratedFields) -> Self {
        let ToleratedFields { pattern, reason, known_gap, count, first } = row;
        Self { pattern, reason, known_gap, count, first: first.map(DifferenceView::from) }
    }
}
