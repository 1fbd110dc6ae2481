//! Draws a `ReportPlot` as SVG, with plotters. `page` embeds the result, and `farfork bench report` writes it to a
//! separate file. `lines` and `bars` draw the data, `legend` the names of the series. `axis_scale` has positions and
//! labels.

mod axis_scale;
mod bars;
mod legend;
mod lines;

use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _, RGBColor, SVGBackend};
use plotters::style::{Color as _, FontStyle, IntoFont as _, TextStyle};

use super::error::ReportError;
use super::plot::{PlotKind, PlotSeries, ReportPlot, SeriesRole};

/// Width of a plot, in pixels. Narrow, so that text remains readable when a phone scales the plot to the width of its
/// screen.
const WIDTH: u32 = 480;

/// Height of a line plot, without title and legend.
const LINES_HEIGHT: u32 = 270;

const TITLE_HEIGHT: u32 = 28;

/// Text sizes for plotters: 1.24 units are one pixel of SVG.
const TITLE_SIZE: f64 = 19.0;
const LABEL_SIZE: f64 = 17.0;

/// The colour of text, axes and references. `draw_plot` replaces it by the colour of the text around the plot.
const INK: RGBColor = RGBColor(1, 1, 1);
const INK_ATTRIBUTE: &str = "\"#010101\"";

/// Colours that are readable on white and on black.
const MEASURED_COLOURS: [RGBColor; 6] = [
    RGBColor(47, 125, 225),
    RGBColor(224, 123, 0),
    RGBColor(26, 152, 80),
    RGBColor(150, 95, 220),
    RGBColor(214, 51, 108),
    RGBColor(0, 160, 170),
];
const FLOOR_COLOURS: [RGBColor; 3] = [RGBColor(125, 133, 144), RGBColor(165, 120, 85), RGBColor(120, 145, 90)];

/// The style of a separate file: dark text, or light text if the reader prefers dark pages.
const FILE_STYLE: &str = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>\n";

type PlotCanvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawingError = DrawingAreaErrorKind<std::io::Error>;

/// Draws the plot as an element of a page, in the colour of the text around it.
pub(crate) fn draw_plot(plot: &ReportPlot) -> Result<String, ReportError> {
    let mut svg = String::new();
    let fail = |cause: DrawingError| ReportError::Drawing { plot: plot.title.clone(), cause: cause.to_string() };
    draw(plot, &mut svg).map_err(fail)?;
    Ok(svg.replace(INK_ATTRIBUTE, "\"currentColor\""))
}

/// Draws the plot as a separate file.
pub(crate) fn draw_plot_file(plot: &ReportPlot) -> Result<String, ReportError> {
    let svg = draw_plot(plot)?;
    let (start, rest) = svg.split_once('\n').expect("the first line opens the element");
    Ok(format!("{start}\n{FILE_STYLE}{rest}"))
}

fn draw(plot: &ReportPlot, svg: &mut String) -> Result<(), DrawingError> {
    let legend_height = legend::height(plot);
    let height = match plot.kind {
        PlotKind::Bars => bars::height(plot),
        PlotKind::BySize | PlotKind::OverTime | PlotKind::Percentiles | PlotKind::Scaling => LINES_HEIGHT,
    };
    let root = SVGBackend::with_string(svg, (WIDTH, TITLE_HEIGHT + height + legend_height)).into_drawing_area();
    let (title, rest) = root.split_vertically(TITLE_HEIGHT);
    let (chart, legend) = rest.split_vertically(height);
    let style = ("sans-serif", TITLE_SIZE).into_font().style(FontStyle::Bold).color(&INK);
    title.draw_text(&plot.title, &style, (8, 6))?;
    match plot.kind {
        PlotKind::Bars => bars::draw(plot, &chart)?,
        PlotKind::BySize | PlotKind::OverTime | PlotKind::Percentiles | PlotKind::Scaling => {
            lines::draw(plot, &chart)?;
        }
    }
    legend::draw(plot, &legend)?;
    root.present()
}

fn text_style() -> TextStyle<'static> {
    ("sans-serif", LABEL_SIZE).into_font().color(&INK)
}

/// The colour of each series. Floors and references have the same colours in every plot.
fn series_colours(series: &[PlotSeries]) -> Vec<RGBColor> {
    let (mut measured, mut floors) = (MEASURED_COLOURS.iter().cycle(), FLOOR_COLOURS.iter().cycle());
    let colour = |series: &PlotSeries| match series.role {
        SeriesRole::Measured => *measured.next().expect("a cycle does not end"),
        SeriesRole::Floor => *floors.next().expect("a cycle does not end"),
        SeriesRole::Reference => INK,
    };
    series.iter().map(colour).collect()
}

/// Approximate width of a text, in pixels. No font is available to measure it.
fn text_width(text: &str) -> u32 {
    (text.chars().count() as f64 * LABEL_SIZE * 0.44).ceil() as u32
}

/// A faint line of the grid.
fn grid_style() -> plotters::style::ShapeStyle {
    INK.mix(0.15).stroke_width(1)
}

#[cfg(test)]
mod tests {
    use super::{draw_plot, draw_plot_file};
    use crate::report::plot::{PlotAxis, PlotKind, PlotPoint, ReportPlot, SeriesRole};
    use crate::report::stable_interval::StableInterval;

    fn plot(kind: PlotKind) -> ReportPlot {
        let points = [(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)];
        let spread = |(x, y): (f64, f64)| PlotPoint { x, y, low: Some(y * 0.9), high: Some(y * 1.1) };
        ReportPlot::new(kind, "p", "Times <1>", PlotAxis::new("size", "MiB"), PlotAxis::new("time", "ms"))
            .with_series("own", SeriesRole::Measured, points.map(spread))
            .with_series("floor", SeriesRole::Floor, points.map(|(x, y)| PlotPoint::new(x, y / 2.0)))
            .with_series("ref", SeriesRole::Reference, points.map(|(x, y)| PlotPoint::new(x, y * 2.0)))
    }

    /// The centres of the circles, which mark measured points.
    fn circles(svg: &str) -> Vec<(i32, i32)> {
        let number = |tag: &str, name: &str| {
            let value = tag.split(&format!(" {name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
            value.and_then(|value| value.parse().ok()).expect("a number")
        };
        svg.lines()
            .filter(|line| line.starts_with("<circle"))
            .map(|tag| (number(tag, "cx"), number(tag, "cy")))
            .collect()
    }

    #[test]
    fn a_logarithmic_plot_places_powers_at_equal_distances() {
        let svg = draw_plot(&plot(PlotKind::BySize)).unwrap();
        let points = circles(&svg);
        assert_eq!(points.len(), 3, "{svg}");
        let steps = |of: fn(&(i32, i32)) -> i32| [of(&points[1]) - of(&points[0]), of(&points[2]) - of(&points[1])];
        let ([x1, x2], [y1, y2]) = (steps(|point| point.0), steps(|point| point.1));
        assert!(x1 > 50 && (x1 - x2).abs() <= 1 && y1 < -20 && (y1 - y2).abs() <= 1, "{points:?}");
    }

    #[test]
    fn a_plot_has_title_units_and_names_as_text() {
        let svg = draw_plot(&plot(PlotKind::BySize)).unwrap();
        for text in ["Times &lt;1&gt;", "size, MiB", "time, ms", "own", "floor", "ref"] {
            assert!(svg.contains(&format!("\n{text}\n")), "no {text} in {svg}");
        }
        assert!(svg.contains("\"currentColor\"") && !svg.contains("#010101"), "{svg}");
        assert!(draw_plot_file(&plot(PlotKind::BySize)).unwrap().contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn a_stable_interval_is_shaded() {
        let plain = plot(PlotKind::OverTime);
        let stable = Some(StableInterval { from_s: 10.0, until_s: 50.0, mean: 50.0 });
        let shaded = ReportPlot { stable, ..plain.clone() };
        let rectangles = |plot| draw_plot(plot).unwrap().matches("<rect").count();
        assert_eq!(rectangles(&shaded), rectangles(&plain) + 2, "the interval, and its sample in the legend");
        assert!(draw_plot(&shaded).unwrap().contains("stable interval, mean 50.0 ms"));
    }

    #[test]
    fn the_length_of_a_bar_is_proportional_to_its_figure() {
        let bars = ReportPlot::new(PlotKind::Bars, "b", "Bars", PlotAxis::new("", "ms"), PlotAxis::new("", ""))
            .with_categories(["json".to_owned(), "image".to_owned()])
            .with_series("own", SeriesRole::Measured, [PlotPoint::new(0.0, 10.0), PlotPoint::new(1.0, 20.0)]);
        let svg = draw_plot(&bars).unwrap();
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("#2F7DE1"))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        // The last one is the sample in the legend.
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.05, "{widths:?}");
        assert!(svg.contains("json") && svg.contains("image"), "{svg}");
    }

    #[test]
    fn a_long_name_ends_within_the_legend() {
        let mut long = plot(PlotKind::Scaling);
        long.series[0].name = "x".repeat(100);
        let svg = draw_plot(&long).unwrap();
        assert!(svg.contains("xxx…") && !svg.contains(&"x".repeat(80)), "{svg}");
    }

    #[test]
    fn extreme_values_can_be_drawn() {
        for kind in [PlotKind::BySize, PlotKind::OverTime, PlotKind::Percentiles, PlotKind::Scaling, PlotKind::Bars] {
            for value in [0.0, 1e-9, 1e12, 1.7e308, -1.0, f64::NAN] {
                let plot = ReportPlot::new(kind, "e", "Extremes", PlotAxis::new("x", ""), PlotAxis::new("y", ""))
                    .with_categories(["a".to_owned()])
                    .with_series("s", SeriesRole::Measured, [PlotPoint::new(0.0, value)]);
                assert!(draw_plot(&plot).is_ok(), "{kind:?} {value}");
            }
        }
    }
}
