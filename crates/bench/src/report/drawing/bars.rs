//! Draws bar plots: a group for each category, from top to bottom, with a bar for each series.

use plotters::prelude::{ChartBuilder, PathElement, Rectangle};
use plotters::style::Color as _;

use super::axis_scale::AxisScale;
use super::{DrawingError, INK, PlotCanvas, grid_style, series_colours, text_style, text_width};
use crate::report::plot::ReportPlot;

/// Height of a bar, in pixels.
const BAR_HEIGHT: u32 = 10;

/// Gap between two groups, in pixels.
const GROUP_GAP: u32 = 9;

/// Height of the axis and its labels, in pixels.
const AXIS_HEIGHT: u32 = 52;

/// Maximum width of the names, in pixels.
const NAMES_WIDTH_MAX: u32 = 240;

pub(super) fn height(plot: &ReportPlot) -> u32 {
    let groups = plot.categories.len().max(1) as u32;
    groups * (plot.series.len().max(1) as u32 * BAR_HEIGHT + GROUP_GAP) + AXIS_HEIGHT
}

pub(super) fn draw(plot: &ReportPlot, canvas: &PlotCanvas<'_>) -> Result<(), DrawingError> {
    let points = plot.series.iter().flat_map(|series| &series.points);
    let x_scale = AxisScale::linear(points.flat_map(|point| [point.y, point.high.unwrap_or(point.y)]));
    // plotters draws upwards, so reverse the axis to have the first category at the top.
    let y_scale = AxisScale::categories(&plot.categories, 0.5).reversed();
    let names_width = plot.categories.iter().map(|name| text_width(name) + 8).max().unwrap_or(0);
    let mut chart = ChartBuilder::on(canvas)
        .margin(4)
        .margin_right(18)
        .x_label_area_size(AXIS_HEIGHT - 8)
        .y_label_area_size(names_width.min(NAMES_WIDTH_MAX))
        .build_cartesian_2d(x_scale, y_scale)?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(grid_style())
        .light_line_style(INK.mix(0.0))
        .disable_y_mesh()
        .axis_style(INK.mix(0.5))
        .label_style(text_style())
        .axis_desc_style(text_style())
        .x_desc(plot.x.label())
        .x_labels(12)
        .y_labels(plot.categories.len() + 1)
        .draw()?;
    let group_height = f64::from(plot.series.len().max(1) as u32 * BAR_HEIGHT + GROUP_GAP);
    let bar = f64::from(BAR_HEIGHT) / group_height;
    let top = -bar * plot.series.len() as f64 / 2.0;
    for ((index, series), colour) in plot.series.iter().enumerate().zip(series_colours(&plot.series)) {
        let from = top + bar * index as f64;
        let bars = series.points.iter().map(|point| {
            let corners = [(0.0, point.x + from), (point.y, point.x + from + bar * 0.9)];
            Rectangle::new(corners, colour.filled())
        });
        chart.draw_series(bars)?;
        let spreads = series.points.iter().filter_map(|point| {
            let y = point.x + from + bar * 0.45;
            Some(PathElement::new(vec![(point.low?, y), (point.high?, y)], INK.mix(0.6).stroke_width(1)))
        });
        chart.draw_series(spreads)?;
    }
    Ok(())
}
