//! `farfork volume status --watch`: how fast each log is written, replicated and published.

use std::time::{Duration, Instant};

use farfork_api::failure::Failure;
use farfork_api::v1::VolumeStatus;
use serde::Serialize;
use serde_json::Value;

use super::view::{ReplicaView, VolumeView, backlog_table};
use crate::output::screen::{draw, terminal_size};
use crate::output::{Table, format_bytes, format_time_of_day, print_failure, write_bytes};

/// Interval between two reports.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The speed at which a client's log is written, committed and published on a replica. A value is `None` if the
/// previous report lacks the log.
#[derive(Debug, PartialEq, Serialize)]
struct LogRate {
    node: String,
    client: String,
    logged_per_s: Option<u64>,
    committed_per_s: Option<u64>,
    published_per_s: Option<u64>,
}

/// The replicas and the time at which they were queried.
struct StatusSnapshot {
    taken: Instant,
    replicas: Vec<ReplicaView>,
}

/// Every second, calls `read` and shows the state that it returns. Continues until interrupted, or until the reader of
/// the output closes the pipe. If `read` fails, shows the error and tries again.
pub(super) async fn watch(
    read: impl AsyncFn() -> Result<VolumeStatus, Failure>,
    document: impl Fn(&VolumeStatus, &[ReplicaView]) -> anyhow::Result<Value>,
    is_json: bool,
) -> anyhow::Result<()> {
    let mut earlier: Option<StatusSnapshot> = None;
    loop {
        let is_shown = match read().await {
            Ok(status) => {
                let mut now = StatusSnapshot { taken: Instant::now(), replicas: ReplicaView::all(&status) };
                if let Some(earlier) = &earlier {
                    let elapsed = now.taken.duration_since(earlier.taken);
                    ReplicaView::measure_rates(&mut now.replicas, &earlier.replicas, elapsed);
                }
                let rates = rates_between(earlier.as_ref(), &now);
                let shown = if is_json {
                    let mut document = document(&status, &now.replicas)?;
                    document["rates"] = serde_json::to_value(&rates)?;
                    write_bytes(format!("{document:#}\n").as_bytes())
                } else {
                    show(&render(&status, &now.replicas, &rates))
                };
                earlier = Some(now);
                shown
            }
            Err(failure) if is_json => {
                print_failure(&failure);
                Ok(())
            }
            Err(failure) => show(&format!("farfork: {failure}\n")),
        };
        if is_shown.is_err() {
            return Ok(());
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Replaces the previous report on a terminal; otherwise appends the new one.
fn show(picture: &str) -> std::io::Result<()> {
    match terminal_size() {
        Some(size) => draw(picture, size),
        None => write_bytes(format!("{picture}\n").as_bytes()),
    }
}

fn rates_between(earlier: Option<&StatusSnapshot>, now: &StatusSnapshot) -> Vec<LogRate> {
    let mut rates = Vec::new();
    for replica in &now.replicas {
        let before = earlier.and_then(|earlier| {
            let before = earlier.replicas.iter().find(|before| before.node == replica.node)?;
            Some((before, now.taken.duration_since(earlier.taken).as_secs_f64()))
        });
        for log in &replica.logs {
            let before = before.and_then(|(before, seconds)| {
                Some((before.logs.iter().find(|before| before.client == log.client)?, seconds))
            });
            // A replica that is copied again may have less than before.
            let rate = |now: u64, before: u64, seconds: f64| (now.saturating_sub(before) as f64 / seconds) as u64;
            rates.push(LogRate {
                node: replica.node.clone(),
                client: log.client.clone(),
                logged_per_s: before.map(|(before, seconds)| rate(log.logged, before.logged, seconds)),
                committed_per_s: before.map(|(before, seconds)| rate(log.committed, before.committed, seconds)),
                published_per_s: before.map(|(before, seconds)| rate(log.published, before.published, seconds)),
            });
        }
    }
    rates
}

fn render(status: &VolumeStatus, replicas: &[ReplicaView], rates: &[LogRate]) -> String {
    let volume = VolumeView::of(status);
    let mut table = Table::new(&[
        "REPLICA",
        "STATE",
        "CLIENT",
        ">LOGGED/s",
        ">COMMITTED/s",
        ">PUBLISHED/s",
        ">UNCOMMITTED",
        ">UNPUBLISHED",
        ">LOG IN USE",
    ]);
    let rate_text = |rate: Option<u64>| rate.map_or("-".to_owned(), format_bytes);
    let mut rates = rates.iter();
    for replica in replicas {
        if replica.logs.is_empty() {
            let cells = [&*replica.node, replica.state()].into_iter().chain(["-"; 7]);
            table.add_row(cells.map(str::to_owned));
        }
        for (log, rate) in replica.logs.iter().zip(rates.by_ref()) {
            let in_use = log.logged.saturating_sub(log.published) as f64 / volume.log_bytes.max(1) as f64;
            table.add_row([
                replica.node.clone(),
                replica.state().to_owned(),
                log.client.clone(),
                rate_text(rate.logged_per_s),
                rate_text(rate.committed_per_s),
                rate_text(rate.published_per_s),
                format_bytes(log.uncommitted()),
                format_bytes(log.unpublished()),
                format!("{:.0} %", in_use * 100.0),
            ]);
        }
    }
    let backlogs = backlog_table(replicas).map_or_else(String::new, |backlogs| format!("\n{}", backlogs.render()));
    format!(
        "{} UTC  volume {}: {} of {} replicas live, writer {}, logs of {}\n{}{backlogs}",
        format_time_of_day(),
        volume.volume,
        volume.live.len(),
        volume.replicas.len(),
        volume.writer.as_deref().unwrap_or("-"),
        format_bytes(volume.log_bytes),
        table.render(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::status;
    use super::*;

    #[test]
    fn rates_are_differences_divided_by_time() {
        let (mut first, taken) = (status(), Instant::now());
        let earlier = StatusSnapshot { taken, replicas: ReplicaView::all(&first) };
        first.replicas[0].logs[0].logged += 4000;
        let now = StatusSnapshot { taken: taken + Duration::from_secs(2), replicas: ReplicaView::all(&first) };
        let without = rates_between(None, &now);
        assert_eq!((without.len(), without[0].logged_per_s), (1, None), "the other replica does not answer");
        let rates = rates_between(Some(&earlier), &now);
        assert_eq!((rates[0].logged_per_s, rates[0].published_per_s), (Some(2000), Some(0)));
        let picture = render(&first, &now.replicas, &rates);
        assert!(picture.contains("volume data: 1 of 2 replicas live, writer n2"), "{picture}");
        assert!(picture.lines().all(|line| line.chars().count() <= 100), "{picture}");
        assert!(picture.lines().last().unwrap().starts_with("n2       no answer  -"), "{picture}");
    }
}
