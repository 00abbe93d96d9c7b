//! The latency of a benchmark as a picture: percentiles from the median far into the tail, one line per number of clients.
//!
//! Both axes are logarithmic: across, each step is a nine more (90 %, 99 %, 99.9 % …); up, each is ten times slower.

use std::path::Path;

use hdrhistogram::Histogram;
use plotters::prelude::*;

use super::load::Measure;
use super::report::ms;

/// Pixels.
const SIZE: (u32, u32) = (960, 560);
/// Distinguishable also without colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
/// Points of a line.
const POINTS: u32 = 200;

/// Writes the picture.
pub fn draw(path: &Path, title: &str, measures: &[Measure]) -> Result<(), String> {
    draw_svg(path, title, measures).map_err(|error| format!("{}: {error}", path.display()))
}

fn draw_svg(path: &Path, title: &str, measures: &[Measure]) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<(usize, Vec<(f64, f64)>)> =
        measures.iter().map(|measure| (measure.clients, line(&measure.latency_us))).collect();
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let nines = points().map(|(nines, _)| *nines).fold(2.0, f64::max);
    let lowest = points().map(|(_, us)| *us).fold(f64::MAX, f64::min).clamp(1.0, 1_000.0);
    let highest = points().map(|(_, us)| *us).fold(lowest * 10.0, f64::max);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(median_nines()..nines, (lowest * 0.8..highest * 1.25).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("percentile")
        .y_desc("latency, ms")
        // One label per nine, not between them.
        .x_labels(nines.ceil() as usize)
        .x_label_formatter(&percentile)
        .y_label_formatter(&|us| ms(*us as u64))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()?;
    for ((clients, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        let label = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(215, 215, 215))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(root.present()?)
}

/// (number of nines, microseconds) from the median to the last percentile that one operation stands for.
fn line(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let most = (histogram.len().max(2) as f64).log10();
    let step = (most - median_nines()) / f64::from(POINTS);
    (0..=POINTS)
        .map(|point| median_nines() + step * f64::from(point))
        .map(|nines| (nines, histogram.value_at_quantile(1.0 - 10f64.powf(-nines)).max(1) as f64))
        .collect()
}

/// Where the median stands: `-log10(1 - 0.5)`.
fn median_nines() -> f64 {
    2f64.log10()
}

fn percentile(nines: &f64) -> String {
    let percent = 100.0 * (1.0 - 10f64.powf(-nines));
    // As many decimals as there are nines behind the point.
    let decimals = (nines.ceil() as usize).saturating_sub(2);
    format!("{percent:.decimals$}")
}
