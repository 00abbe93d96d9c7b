//! The pictures: lines over the number of clients (both axes logarithmic), bars per case, dots per kill.
//! A target has the same colour in all of them.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

use super::{TARGETS, median};

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Pixels.
const SIZE: (u32, u32) = (960, 560);
/// Distinguishable also without colour vision (Okabe and Ito); by target.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];
const FAINT: RGBColor = RGBColor(240, 240, 240);
const GRID: RGBColor = RGBColor(215, 215, 215);
/// Room above the greatest value.
const ABOVE: f64 = 1.15;
/// Room beside the longest bar, for the legend.
const BESIDE: f64 = 1.3;

/// Which colour is which target. A macro, since the charts' coordinate types differ.
macro_rules! legend {
    ($chart:expr, $position:expr) => {
        $chart
            .configure_series_labels()
            .position($position)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", 14))
            .draw()?
    };
}

/// One line per target.
pub fn by_clients(path: &Path, title: &str, lines: &BTreeMap<usize, Vec<(f64, f64)>>) -> Drawn {
    let points = || lines.values().flatten().filter(|(_, y)| y.is_finite());
    if points().next().is_none() {
        return Ok(());
    }
    let most_x = points().map(|(x, _)| *x).fold(2.0, f64::max);
    let low = points().map(|(_, y)| *y).fold(f64::MAX, f64::min).max(0.001);
    let high = points().map(|(_, y)| *y).fold(low * 10.0, f64::max);
    let root = area(path)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((0.9..most_x * 1.2).log_scale(), (low * 0.7..high * 1.4).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("clients")
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(FAINT)
        .bold_line_style(GRID)
        .draw()?;
    for (target, points) in lines {
        let colour = COLOURS[*target];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(4))?
            .label(TARGETS[*target])
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    legend!(chart, SeriesLabelPosition::UpperLeft);
    Ok(root.present()?)
}

/// A group of bars per case, side by side per target, from the top down.
pub fn bars(path: &Path, title: &str, cases: &[(String, BTreeMap<usize, f64>)]) -> Drawn {
    let mut targets: Vec<usize> = cases.iter().flat_map(|(_, rates)| rates.keys().copied()).collect();
    targets.sort_unstable();
    targets.dedup();
    let most = cases.iter().flat_map(|(_, rates)| rates.values()).copied().fold(1.0, f64::max);
    let names: Vec<&str> = cases.iter().rev().map(|(name, _)| name.as_str()).collect();
    let root = area(path)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..most * BESIDE, rows(&names))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(names.len())
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|at| label(at, &names))
        .label_style(("sans-serif", 14))
        .light_line_style(FAINT)
        .bold_line_style(GRID)
        .draw()?;
    let height = chart.plotting_area().dim_in_pixel().1 as i32 * 7 / 10 / (cases.len() * targets.len()).max(1) as i32;
    for (place, target) in targets.iter().enumerate() {
        let colour = COLOURS[*target];
        let lift = (targets.len() as i32 * height) / 2 - place as i32 * height;
        let shapes = cases.iter().rev().enumerate().filter_map(|(row, (_, rates))| {
            let rate = *rates.get(target)?;
            let area = chart.plotting_area();
            let (left, y) = area.map_coordinate(&(0.0, SegmentValue::CenterOf(row)));
            let (right, _) = area.map_coordinate(&(rate, SegmentValue::CenterOf(row)));
            Some(((left, y - lift), (right, y - lift + height - 1), rate))
        });
        let shapes: Vec<_> = shapes.collect();
        for (from, to, rate) in shapes {
            root.draw(&Rectangle::new([from, to], colour.filled()))?;
            let at = (to.0 + 4, (from.1 + to.1) / 2 - 6);
            root.draw(&Text::new(number(rate), at, ("sans-serif", 12).into_font()))?;
        }
        // A series without a shape: the legend's entry.
        chart
            .draw_series(std::iter::empty::<Circle<(f64, SegmentValue<usize>), i32>>())?
            .label(TARGETS[*target])
            .legend(move |(x, y)| Rectangle::new([(x + 4, y - 5), (x + 16, y + 5)], colour.filled()));
    }
    legend!(chart, SeriesLabelPosition::LowerRight);
    Ok(root.present()?)
}

/// A column of dots per target.
pub fn kills(path: &Path, title: &str, kills: &BTreeMap<usize, Vec<f64>>) -> Drawn {
    let names: Vec<&str> = kills.keys().map(|target| TARGETS[*target]).collect();
    let most = kills.values().flatten().copied().fold(1.0, f64::max);
    let root = area(path)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(rows(&names), 0.0..most * ABOVE)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_label_formatter(&|at| label(at, &names))
        .y_desc("ms")
        .y_label_formatter(&|y| number(*y))
        .label_style(("sans-serif", 14))
        .light_line_style(FAINT)
        .bold_line_style(GRID)
        .draw()?;
    for (column, (target, times)) in kills.iter().enumerate() {
        let colour = COLOURS[*target];
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let dots = sorted.iter().map(|ms| Circle::new((SegmentValue::CenterOf(column), *ms), 5, colour.filled()));
        chart.draw_series(dots)?;
        let (x, y) = chart.plotting_area().map_coordinate(&(SegmentValue::CenterOf(column), median(&sorted)));
        root.draw(&PathElement::new([(x - 40, y), (x + 40, y)], BLACK.stroke_width(2)))?;
        let text = format!("median {:.0}", median(&sorted));
        root.draw(&Text::new(text, (x + 46, y - 7), ("sans-serif", 14).into_font()))?;
    }
    Ok(root.present()?)
}

fn area(path: &Path) -> Result<Area<'_>, Box<dyn Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    Ok(root)
}

/// One segment per name; the range's end counts.
fn rows(names: &[&str]) -> plotters::coord::ranged1d::SegmentedCoord<plotters::coord::types::RangedCoordusize> {
    (0..names.len().saturating_sub(1)).into_segmented()
}

fn label(at: &SegmentValue<usize>, names: &[&str]) -> String {
    match at {
        SegmentValue::CenterOf(row) => names.get(*row).copied().unwrap_or_default().to_string(),
        _ => String::new(),
    }
}

/// Three digits or so.
fn number(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.1}k", v / 1000.0).replace(".0k", "k"),
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}").trim_end_matches(".0").to_string(),
        0.0 => "0".to_string(),
        v => format!("{v:.2}"),
    }
}
