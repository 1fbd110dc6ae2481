//! The summary of `farfork bench fault`: a table as text, and a JSON document for scripts.

use serde_json::{Value, json};

use super::table::{FigureTable, format_figure};
use crate::baseline::fault::WaitMode;
use crate::figure::Pace;
use crate::machine::MachineState;
use crate::parameters::fault::{FaultParameters, FaultSampleKey, FaultSeries};
use crate::report::section::SectionSource as _;
use crate::samples::{Samples, Spread, figure_json};

/// All figures of a run.
#[derive(Debug)]
pub struct FaultSummary {
    pub(super) machine_state: MachineState,
    pub(super) plan: FaultParameters,
    pub(super) samples: Samples<FaultSampleKey>,
}

/// The floor of faults without a stream.
const SLEEPING_FLOOR: FaultSeries = FaultSeries::Floor { waiting: WaitMode::Sleep };

/// The rows of the table, with their names.
pub(super) const ROWS: [(FaultSeries, Pace, &str); 12] = [
    (FaultSeries::Farfork, Pace::BackToBack, "a child of farfork"),
    (FaultSeries::Floor { waiting: WaitMode::Sleep }, Pace::BackToBack, "floor: page there and copy, sleeping"),
    (FaultSeries::BareTouch { waiting: WaitMode::Sleep }, Pace::BackToBack, "a bare pager, sleeping"),
    (FaultSeries::Floor { waiting: WaitMode::Spin }, Pace::BackToBack, "floor: page there and copy, spinning"),
    (FaultSeries::BareTouch { waiting: WaitMode::Spin }, Pace::BackToBack, "a bare pager, spinning"),
    (FaultSeries::BesideStream, Pace::BackToBack, "a child of farfork, during a stream"),
    (FaultSeries::FloorBesideStream, Pace::BackToBack, "floor: sleeping, during a bare stream"),
    (FaultSeries::BareBesideStream, Pace::BackToBack, "a bare pager, during a bare stream"),
    (FaultSeries::Farfork, Pace::Idle, "a child of farfork, after idle"),
    (FaultSeries::Floor { waiting: WaitMode::Sleep }, Pace::Idle, "floor: sleeping, after idle"),
    (FaultSeries::BareTouch { waiting: WaitMode::Sleep }, Pace::Idle, "a bare pager, sleeping, after idle"),
    (FaultSeries::BareTouch { waiting: WaitMode::Spin }, Pace::Idle, "a bare pager, spinning, after idle"),
];

impl FaultSummary {
    pub(crate) fn new(plan: &FaultParameters, samples: Samples<FaultSampleKey>) -> Self {
        Self { machine_state: MachineState::detect(), plan: plan.clone(), samples }
    }

    pub(super) fn spread(&self, timed: FaultSeries, pace: Pace) -> Option<Spread> {
        self.samples.spread(&FaultSampleKey { series: timed, pace })
    }

    pub(super) fn p99(&self, timed: FaultSeries, pace: Pace) -> Option<f64> {
        self.samples.percentile(&FaultSampleKey { series: timed, pace }, 0.99)
    }

    /// The median and the 99th percentile of a figure, each divided by the same percentile of its floor at the same
    /// pace.
    fn ratios_to_floor(&self, timed: FaultSeries, pace: Pace) -> Option<[f64; 2]> {
        let floor = floor_of(timed);
        let p50 = self.spread(timed, pace)?.median / self.spread(floor, pace)?.median;
        Some([p50, self.p99(timed, pace)? / self.p99(floor, pace)?])
    }

    /// The 99th percentile during a stream ÷ the median without one: of farfork's faults, and of the floor.
    fn stream_ratios(&self) -> [Option<f64>; 2] {
        [(FaultSeries::BesideStream, FaultSeries::Farfork), (FaultSeries::FloorBesideStream, SLEEPING_FLOOR)].map(
            |(beside, alone)| Some(self.p99(beside, Pace::BackToBack)? / self.spread(alone, Pace::BackToBack)?.median),
        )
    }

    /// The rates of the streams during measured faults, in MiB/s: of farfork, and of the minimal programs.
    fn stream_speeds(&self) -> [Option<f64>; 2] {
        [FaultSeries::StreamBeside, FaultSeries::BareStreamBeside]
            .map(|timed| Some(self.spread(timed, Pace::BackToBack)?.median))
    }

    /// The document for scripts.
    pub fn to_json(&self) -> Value {
        let figure = |(timed, pace, _): (FaultSeries, Pace, _)| {
            let (key, spread) = (FaultSampleKey { series: timed, pace }, self.spread(timed, pace)?);
            let mut figure = figure_json(&key, spread, Some("us"));
            let ratios = self.ratios_to_floor(timed, pace);
            figure["p99_us"] = json!(self.p99(timed, pace));
            figure["floor_ratio"] = json!(ratios.map(|[p50, _]| p50));
            figure["p99_floor_ratio"] = json!(ratios.map(|[_, p99]| p99));
            Some(figure)
        };
        let ([ratio, bare_ratio], [speed, bare_speed]) = (self.stream_ratios(), self.stream_speeds());
        json!({
            "benchmark": "fault",
            "machine": self.machine_state.machine,
            "load_average": self.machine_state.load_average,
            "encrypted": self.plan.encrypted,
            "stream_mib": self.plan.stream_mib,
            "stream_mib_per_s": speed,
            "bare_stream_mib_per_s": bare_speed,
            "beside_stream_p99_ratio": ratio,
            "bare_beside_stream_p99_ratio": bare_ratio,
            "streams": self.streams_json(),
            "figures": ROWS.into_iter().filter_map(figure).collect::<Vec<_>>(),
            "section": self.section(),
        })
    }

    /// Several concurrent streams: the time of each, and the slowest ÷ the mean of its round.
    fn streams_json(&self) -> Option<Value> {
        let (each, ratio) = (
            self.spread(FaultSeries::Stream, Pace::BackToBack)?,
            self.spread(FaultSeries::SlowestStream, Pace::BackToBack)?,
        );
        let rounds = ratio.count;
        Some(
            json!({ "count": self.plan.streams, "rounds": rounds, "p50_us": each.median, "slowest_ratio": ratio.median }),
        )
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let headings = ["one fault, µs", "n", "p50", "p10", "p90", "p99", "÷ floor", "p99 ÷"];
        let mut table =
            FigureTable::new("One page of a process on another node, from the touch to its arrival", &headings);
        for (timed, pace, name) in ROWS {
            let Some(spread) = self.spread(timed, pace) else { continue };
            let percentile = self.p99(timed, pace).unwrap_or_default();
            let ratios = self
                .ratios_to_floor(timed, pace)
                .map_or(["–".to_owned(), "–".to_owned()], |both| both.map(format_figure));
            let ([p50, p10, p90, p99], [ratio, p99_ratio]) =
                ([spread.median, spread.p10, spread.p90, percentile].map(format_figure), ratios);
            table.add_row([name.to_owned(), spread.count.to_string(), p50, p10, p90, p99, ratio, p99_ratio]);
        }
        let link = if self.plan.encrypted { "encrypted" } else { "in clear" };
        let mut text = format!("{}; farfork's link {link}\n\n{}\n\n", self.machine_state.describe(), table.render());
        let names = ["During a stream", "The floor's, during a bare one,"];
        for (name, (ratio, speed)) in names.into_iter().zip(self.stream_ratios().into_iter().zip(self.stream_speeds()))
        {
            if let (Some(ratio), Some(speed)) = (ratio, speed) {
                text += &format!("{name} of {speed:.0} MiB/s the p99 is {ratio:.1} × the p50 alone.\n");
            }
        }
        let of = |timed| self.spread(timed, Pace::BackToBack);
        if let (Some(each), Some(ratio)) = (of(FaultSeries::Stream), of(FaultSeries::SlowestStream)) {
            let (ms, count) = (format_figure(each.median / 1e3), self.plan.streams);
            text += &format!(
                "{count} children of {count} seeds fetch all their memory concurrently, in {ms} ms each; the slowest {:.2} × the mean.\n",
                ratio.median
            );
        }
        text += "floor: a request and a page over the link in clear, and UFFDIO_COPY, by two bare programs, same run\n";
        text += "a bare pager: these programs serving a thread's fault; sleeping, spinning: how they wait\n";
        text += "a bare stream: two further programs, one of which sends pages that the other one maps\n";
        text
    }
}

/// Returns the floor of a series: minimal programs that sleep, during a stream if the series is measured during a
/// stream.
pub(super) fn floor_of(series: FaultSeries) -> FaultSeries {
    match series {
        FaultSeries::BesideStream | FaultSeries::BareBesideStream | FaultSeries::FloorBesideStream => {
            FaultSeries::FloorBesideStream
        }
        _ => SLEEPING_FLOOR,
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultParameters, FaultSampleKey, FaultSeries, FaultSummary, Pace, Samples, WaitMode};

    #[test]
    fn figures_are_shown_next_to_their_floors() {
        let mut samples = Samples::new();
        let mut add = |timed, pace, us| samples.add(FaultSampleKey { series: timed, pace }, us).unwrap();
        add(FaultSeries::Farfork, Pace::BackToBack, 60.0);
        add(FaultSeries::BesideStream, Pace::BackToBack, 120.0);
        add(FaultSeries::Floor { waiting: WaitMode::Sleep }, Pace::BackToBack, 40.0);
        add(FaultSeries::FloorBesideStream, Pace::BackToBack, 100.0);
        add(FaultSeries::StreamBeside, Pace::BackToBack, 800.0);
        add(FaultSeries::BareStreamBeside, Pace::BackToBack, 900.0);
        add(FaultSeries::Farfork, Pace::Idle, 90.0);
        add(FaultSeries::Stream, Pace::BackToBack, 2e5);
        add(FaultSeries::SlowestStream, Pace::BackToBack, 1.25);
        let plan = FaultParameters {
            runs: 1,
            faults: 1,
            idle_faults: 1,
            stream_mib: 64,
            streams: 8,
            encrypted: true,
            samples_file: None,
        };
        let report = FaultSummary::new(&plan, samples);
        let document = report.to_json();
        let figures = document["figures"].as_array().unwrap();
        assert_eq!(figures.len(), 5, "series without samples are omitted: {document}");
        assert_eq!((&figures[0]["of"], &figures[0]["floor_ratio"]), (&"farfork".into(), &1.5.into()));
        let beside = figures.iter().find(|figure| figure["of"] == "beside_stream").unwrap();
        assert_eq!((&beside["floor_ratio"], &beside["p99_floor_ratio"]), (&1.2.into(), &1.2.into()));
        assert_eq!(document["beside_stream_p99_ratio"], 2.0);
        assert_eq!(document["bare_beside_stream_p99_ratio"], 2.5);
        assert_eq!((&document["streams"]["slowest_ratio"], &document["streams"]["count"]), (&1.25.into(), &8.into()));
        assert!(report.to_text().contains("the slowest 1.25 × the mean"), "{}", report.to_text());
        assert!(report.to_text().contains("of 800 MiB/s the p99 is 2.0 × the p50 alone"), "{}", report.to_text());
        assert!(report.to_text().contains("of 900 MiB/s the p99 is 2.5 × the p50 alone"), "{}", report.to_text());
        assert!(report.to_text().lines().all(|line| line.chars().count() <= 110), "{}", report.to_text());
    }
}
