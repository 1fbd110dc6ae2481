//! What `farfork bench fault` found: a table for people, one document for scripts.

use serde_json::{Value, json};

use super::table::{Table, figure};
use crate::baseline::fault::Waiting;
use crate::coordinator::fault::{FaultPlan, Key, Timed};
use crate::figure::Pace;
use crate::machine::{Machine, load_average};
use crate::samples::{Samples, Spread, document};

/// All figures of a run.
#[derive(Debug)]
pub struct FaultReport {
    machine: Machine,
    load_average: f64,
    plan: FaultPlan,
    samples: Samples<Key>,
}

/// The rows of the table: what each is called.
const ROWS: [(Timed, Pace, &str); 10] = [
    (Timed::Farfork, Pace::BackToBack, "a child of farfork"),
    (Timed::BesideStream, Pace::BackToBack, "the same, beside a stream"),
    (Timed::Floor { waiting: Waiting::Sleep }, Pace::BackToBack, "floor: page there and copy, sleeping"),
    (Timed::BareTouch { waiting: Waiting::Sleep }, Pace::BackToBack, "a bare pager, sleeping"),
    (Timed::Floor { waiting: Waiting::Spin }, Pace::BackToBack, "floor: page there and copy, spinning"),
    (Timed::BareTouch { waiting: Waiting::Spin }, Pace::BackToBack, "a bare pager, spinning"),
    (Timed::Farfork, Pace::Idle, "a child of farfork, after idle"),
    (Timed::Floor { waiting: Waiting::Sleep }, Pace::Idle, "floor: sleeping, after idle"),
    (Timed::BareTouch { waiting: Waiting::Sleep }, Pace::Idle, "a bare pager, sleeping, after idle"),
    (Timed::BareTouch { waiting: Waiting::Spin }, Pace::Idle, "a bare pager, spinning, after idle"),
];

impl FaultReport {
    pub(crate) fn new(plan: &FaultPlan, samples: Samples<Key>) -> Self {
        Self { machine: Machine::this(), load_average: load_average(), plan: plan.clone(), samples }
    }

    fn spread(&self, timed: Timed, pace: Pace) -> Option<Spread> {
        self.samples.spread(&Key { timed, pace })
    }

    /// What a figure is divided by: the floor of its pace, of programs that sleep.
    fn ratio(&self, timed: Timed, pace: Pace) -> Option<f64> {
        let floor = self.spread(Timed::Floor { waiting: Waiting::Sleep }, pace)?;
        Some(self.spread(timed, pace)?.median / floor.median)
    }

    /// The 99th percentile beside a stream ÷ the median alone.
    fn stream_ratio(&self) -> Option<f64> {
        let beside = self.samples.percentile(&Key { timed: Timed::BesideStream, pace: Pace::BackToBack }, 0.99)?;
        Some(beside / self.spread(Timed::Farfork, Pace::BackToBack)?.median)
    }

    /// For scripts.
    pub fn document(&self) -> Value {
        let figure = |(timed, pace, _): (Timed, Pace, _)| {
            let (key, spread) = (Key { timed, pace }, self.spread(timed, pace)?);
            let mut figure = document(&key, spread, Some("us"));
            figure["p99_us"] = json!(self.samples.percentile(&key, 0.99));
            figure["floor_ratio"] = json!(self.ratio(timed, pace));
            Some(figure)
        };
        json!({
            "benchmark": "fault",
            "machine": self.machine,
            "load_average": self.load_average,
            "encrypted": self.plan.encrypted,
            "stream_mib": self.plan.stream_mib,
            "beside_stream_p99_ratio": self.stream_ratio(),
            "streams": self.streams_document(),
            "figures": ROWS.into_iter().filter_map(figure).collect::<Vec<_>>(),
        })
    }

    /// Several streams side by side: how long each took, and the slowest ÷ the mean of its round.
    fn streams_document(&self) -> Option<Value> {
        let (each, ratio) =
            (self.spread(Timed::Stream, Pace::BackToBack)?, self.spread(Timed::SlowestStream, Pace::BackToBack)?);
        let rounds = ratio.count;
        Some(
            json!({ "count": self.plan.streams, "rounds": rounds, "p50_us": each.median, "slowest_ratio": ratio.median }),
        )
    }

    /// For people.
    pub fn text(&self) -> String {
        let headings = ["one fault, µs", "n", "p50", "p10", "p90", "p99", "÷ floor"];
        let mut table =
            Table::new("One page of a process on another node, from the touch to its being there", &headings);
        for (timed, pace, name) in ROWS {
            let Some(spread) = self.spread(timed, pace) else { continue };
            let percentile = self.samples.percentile(&Key { timed, pace }, 0.99).unwrap_or_default();
            let ratio = self.ratio(timed, pace).map_or("–".to_owned(), figure);
            let [p50, p10, p90, p99] = [spread.median, spread.p10, spread.p90, percentile].map(figure);
            table.row([name.to_owned(), spread.count.to_string(), p50, p10, p90, p99, ratio]);
        }
        let link = if self.plan.encrypted { "encrypted" } else { "in clear" };
        let mut text = format!(
            "{}, load {:.1}; farfork's link {link}\n\n{}\n\n",
            self.machine.text(),
            self.load_average,
            table.text()
        );
        if let Some(ratio) = self.stream_ratio() {
            text +=
                &format!("Beside a stream of {} MiB the p99 is {ratio:.1} × the p50 alone.\n", self.plan.stream_mib);
        }
        let of = |timed| self.spread(timed, Pace::BackToBack);
        if let (Some(each), Some(ratio)) = (of(Timed::Stream), of(Timed::SlowestStream)) {
            let (ms, count) = (figure(each.median / 1e3), self.plan.streams);
            text += &format!(
                "{count} children of {count} seeds side by side take all their memory, in {ms} ms each; the slowest {:.2} × the mean.\n",
                ratio.median
            );
        }
        text += "floor: a request and a page over the link in clear, and UFFDIO_COPY, by two bare programs, same run\n";
        text += "a bare pager: these programs serving a thread's fault; sleeping, spinning: how they wait\n";
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultPlan, FaultReport, Key, Pace, Samples, Timed, Waiting};

    #[test]
    fn figures_stand_beside_their_floors() {
        let mut samples = Samples::new();
        let mut add = |timed, pace, us| samples.add(Key { timed, pace }, us).unwrap();
        add(Timed::Farfork, Pace::BackToBack, 60.0);
        add(Timed::BesideStream, Pace::BackToBack, 120.0);
        add(Timed::Floor { waiting: Waiting::Sleep }, Pace::BackToBack, 40.0);
        add(Timed::Farfork, Pace::Idle, 90.0);
        add(Timed::Stream, Pace::BackToBack, 2e5);
        add(Timed::SlowestStream, Pace::BackToBack, 1.25);
        let plan = FaultPlan {
            runs: 1,
            faults: 1,
            idle_faults: 1,
            stream_mib: 64,
            streams: 8,
            encrypted: true,
            samples_file: None,
        };
        let report = FaultReport::new(&plan, samples);
        let document = report.document();
        let figures = document["figures"].as_array().unwrap();
        assert_eq!(figures.len(), 4, "what was not measured is not told: {document}");
        assert_eq!((&figures[0]["of"], &figures[0]["floor_ratio"]), (&"farfork".into(), &1.5.into()));
        assert_eq!(document["beside_stream_p99_ratio"], 2.0);
        assert_eq!((&document["streams"]["slowest_ratio"], &document["streams"]["count"]), (&1.25.into(), &8.into()));
        assert!(report.text().contains("the slowest 1.25 × the mean"), "{}", report.text());
        assert!(report.text().contains("2.0 × the p50 alone"), "{}", report.text());
        assert!(report.text().lines().all(|line| line.chars().count() <= 110), "{}", report.text());
    }
}
