//! Draws the legend of a plot below it: a sample and the name of each series, on as many lines as they need.

use plotters::element::{PathElement, Rectangle};
use plotters::prelude::RGBColor;
use plotters::style::Color as _;

use super::lines::STABLE_OPACITY;
use super::{DrawingError, INK, PlotCanvas, WIDTH, series_colours, text_style, text_width};
use crate::report::number_text::format_value;
use crate::report::plot::{PlotKind, ReportPlot, SeriesRole};

const LINE_HEIGHT: u32 = 20;
const SAMPLE_WIDTH: i32 = 22;
const ENTRY_GAP: i32 = 14;
const MARGIN: i32 = 12;

/// A name, and the appearance of its series.
struct LegendEntry {
    name: String,
    colour: RGBColor,
    sample: LegendSample,
}

/// The appearance of a series.
enum LegendSample {
    Line,
    Dashes { length: i32, gap: i32 },
    Box { opacity: f64 },
}

pub(super) fn height(plot: &ReportPlot) -> u32 {
    let places = place_entries(&entries(plot));
    places.last().map_or(0, |(_, line)| (*line as u32 + 1) * LINE_HEIGHT + 8)
}

pub(super) fn draw(plot: &ReportPlot, canvas: &PlotCanvas<'_>) -> Result<(), DrawingError> {
    let entries = entries(plot);
    for (entry, (x, line)) in entries.iter().zip(place_entries(&entries)) {
        let middle = line * LINE_HEIGHT as i32 + LINE_HEIGHT as i32 / 2;
        draw_sample(entry, canvas, (x, middle))?;
        canvas.draw_text(&entry.name, &text_style(), (x + SAMPLE_WIDTH + 5, middle - 8))?;
    }
    Ok(())
}

fn draw_sample(entry: &LegendEntry, canvas: &PlotCanvas<'_>, (x, middle): (i32, i32)) -> Result<(), DrawingError> {
    let line = |from: i32, until: i32| {
        PathElement::new(vec![(x + from, middle), (x + until, middle)], entry.colour.stroke_width(2))
    };
    match entry.sample {
        LegendSample::Line => canvas.draw(&line(0, SAMPLE_WIDTH)),
        LegendSample::Dashes { length, gap } => (0..SAMPLE_WIDTH)
            .step_by((length + gap) as usize)
            .try_for_each(|from| canvas.draw(&line(from, (from + length).min(SAMPLE_WIDTH)))),
        LegendSample::Box { opacity } => {
            let corners = [(x + 4, middle - 5), (x + SAMPLE_WIDTH, middle + 5)];
            canvas.draw(&Rectangle::new(corners, entry.colour.mix(opacity).filled()))
        }
    }
}

fn entries(plot: &ReportPlot) -> Vec<LegendEntry> {
    let of_series = plot.series.iter().zip(series_colours(&plot.series)).map(|(series, colour)| {
        let sample = match (plot.kind, series.role) {
            (PlotKind::Bars, _) => LegendSample::Box { opacity: 1.0 },
            (_, SeriesRole::Measured) => LegendSample::Line,
            (_, SeriesRole::Floor) => LegendSample::Dashes { length: 7, gap: 4 },
            (_, SeriesRole::Reference) => LegendSample::Dashes { length: 2, gap: 3 },
        };
        LegendEntry { name: shorten(&series.name), colour, sample }
    });
    let stable = plot.stable.map(|stable| LegendEntry {
        name: format!("stable interval, mean {} {}", format_value(stable.mean), plot.y.unit),
        colour: INK,
        sample: LegendSample::Box { opacity: STABLE_OPACITY },
    });
    of_series.chain(stable).collect()
}

/// Shortens a name so that it fits on a line.
fn shorten(name: &str) -> String {
    let fits = |name: &str| MARGIN * 2 + SAMPLE_WIDTH + 5 + text_width(name) as i32 <= WIDTH as i32;
    let count = name.chars().count();
    let candidates = (1..count).rev().map(|kept| name.chars().take(kept).chain(['…']).collect::<String>());
    std::iter::once(name.to_owned()).chain(candidates).find(|candidate| fits(candidate)).unwrap_or_default()
}

/// Returns the left end and the line number of each entry.
fn place_entries(entries: &[LegendEntry]) -> Vec<(i32, i32)> {
    let (mut x, mut line) = (MARGIN, 0);
    let place = |entry: &LegendEntry| {
        let width = SAMPLE_WIDTH + 5 + text_width(&entry.name) as i32;
        if x > MARGIN && x + width > WIDTH as i32 - MARGIN {
            (x, line) = (MARGIN, line + 1);
        }
        let placed = (x, line);
        x += width + ENTRY_GAP;
        placed
    };
    entries.iter().map(place).collect()
}
