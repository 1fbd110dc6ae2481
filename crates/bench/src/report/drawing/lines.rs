//! Draws line plots: by size, over time, by percentile and by count. Measured series have markers and spreads; floors
//! are dashed, references dotted.

use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, DashedLineSeries, LineSeries, PathElement, RGBColor, Rectangle,
    SVGBackend,
};
use plotters::style::Color as _;

use super::axis_scale::AxisScale;
use super::{DrawingError, INK, PlotCanvas, grid_style, series_colours, text_style};
use crate::report::plot::{PlotKind, PlotPoint, PlotSeries, ReportPlot, SeriesRole};

/// An axis of a scaling plot is logarithmic if the values on this axis span more than this ratio.
const LINEAR_RATIO_MAX: f64 = 16.0;

/// Opacity of the shading of a stable interval.
pub(super) const STABLE_OPACITY: f64 = 0.1;

type LineChart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<AxisScale, AxisScale>>;

pub(super) fn draw(plot: &ReportPlot, canvas: &PlotCanvas<'_>) -> Result<(), DrawingError> {
    let (x_scale, y_scale) = (x_scale(plot), y_scale(plot));
    let top = y_scale.until();
    let mut chart = ChartBuilder::on(canvas)
        .margin(6)
        .margin_right(16)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(x_scale, y_scale.clone())?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(grid_style())
        .light_line_style(INK.mix(0.0))
        .axis_style(INK.mix(0.5))
        .label_style(text_style())
        .axis_desc_style(text_style())
        .x_desc(plot.x.label())
        .y_desc(plot.y.label())
        .x_labels(12)
        .y_labels(12)
        .draw()?;
    if let Some(stable) = plot.stable {
        let corners = [(stable.from_s, y_scale.from()), (stable.until_s, top)];
        chart.draw_series([Rectangle::new(corners, INK.mix(STABLE_OPACITY).filled())])?;
    }
    for (series, colour) in plot.series.iter().zip(series_colours(&plot.series)) {
        draw_series(&mut chart, series, colour)?;
    }
    Ok(())
}

fn draw_series(chart: &mut LineChart<'_, '_>, series: &PlotSeries, colour: RGBColor) -> Result<(), DrawingError> {
    let points: Vec<(f64, f64)> = series.points.iter().map(|point| (point.x, point.y)).collect();
    match series.role {
        SeriesRole::Measured => {
            let spread = series.points.iter().filter_map(|point| spread_line(point, colour));
            chart.draw_series(spread)?;
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        SeriesRole::Floor => {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 7, 4, colour.stroke_width(2)))?;
        }
        SeriesRole::Reference => {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 2, 3, colour.stroke_width(2)))?;
        }
    }
    Ok(())
}

/// A line from the 10th to the 90th percentile.
fn spread_line(point: &PlotPoint, colour: RGBColor) -> Option<PathElement<(f64, f64)>> {
    let ends = vec![(point.x, point.low?), (point.x, point.high?)];
    Some(PathElement::new(ends, colour.mix(0.5).stroke_width(4)))
}

fn x_scale(plot: &ReportPlot) -> AxisScale {
    let values = || plot.series.iter().flat_map(|series| &series.points).map(|point| point.x);
    let ends = plot.stable.map(|stable| stable.until_s);
    match plot.kind {
        PlotKind::Percentiles => AxisScale::categories(&plot.categories, 0.3),
        PlotKind::BySize => AxisScale::logarithmic(values(), 2.0),
        PlotKind::Scaling if spans_far(values()) => AxisScale::logarithmic(values(), 2.0),
        PlotKind::OverTime | PlotKind::Scaling | PlotKind::Bars => AxisScale::linear(values().chain(ends)),
    }
}

fn y_scale(plot: &ReportPlot) -> AxisScale {
    let of_point = |point: &PlotPoint| [Some(point.y), point.low, point.high].into_iter().flatten();
    let values = || plot.series.iter().flat_map(|series| &series.points).flat_map(of_point);
    match plot.kind {
        PlotKind::BySize | PlotKind::Percentiles => AxisScale::logarithmic(values(), 10.0),
        PlotKind::Scaling if spans_far(values()) => AxisScale::logarithmic(values(), 10.0),
        PlotKind::OverTime | PlotKind::Scaling | PlotKind::Bars => AxisScale::linear(values()),
    }
}

fn spans_far(values: impl Iterator<Item = f64>) -> bool {
    let positive = values.filter(|value| *value > 0.0);
    let (smallest, largest) = positive
        .fold((f64::INFINITY, 0.0), |(smallest, largest): (f64, f64), value| (smallest.min(value), largest.max(value)));
    largest > smallest * LINEAR_RATIO_MAX
}
