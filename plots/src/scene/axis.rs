//! Axes: from values to the unit interval, and where the ticks stand.
//!
//! Every range is padded to a finite width greater than zero before anything is drawn, so equal or huge values
//! cannot stall a tick search.

use super::text::{clean, clipped};
use crate::number;

const LARGEST: f64 = 1e300;

/// The smallest interval around values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    pub(crate) lo: f64,
    pub(crate) hi: f64,
}

impl Extent {
    /// Around `values`; `None` when there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        values.into_iter().filter(|value| value.is_finite()).fold(None, |extent, value| {
            let value = value.clamp(-LARGEST, LARGEST);
            Some(match extent {
                None => Self { lo: value, hi: value },
                Some(Self { lo, hi }) => Self { lo: lo.min(value), hi: hi.max(value) },
            })
        })
    }

    /// Widened to hold `value`.
    pub(crate) fn include(self, value: f64) -> Self {
        let value = value.clamp(-LARGEST, LARGEST);
        Self { lo: self.lo.min(value), hi: self.hi.max(value) }
    }

    /// At least `width` wide, around the same middle.
    pub(crate) fn at_least(self, width: f64) -> Self {
        let floor = (self.lo.abs().max(self.hi.abs()) * 1e-6).max(1e-9);
        let missing = width.max(floor) - self.width();
        if missing > 0.0 { Self { lo: self.lo - missing / 2.0, hi: self.hi + missing / 2.0 } } else { self }
    }

    /// With `share` of the width added below and above.
    pub(crate) fn padded(self, below: f64, above: f64) -> Self {
        Self { lo: self.lo - self.width() * below, hi: self.hi + self.width() * above }
    }

    pub(crate) fn width(self) -> f64 {
        self.hi - self.lo
    }
}

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    Linear,
    /// Equal factors take equal lengths; only for values above 0.
    Log,
}

/// Where ticks may stand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TickRule {
    /// Round numbers.
    Round,
    /// Whole numbers, the smallest and the largest among them.
    Whole,
    /// At these values, as far as their labels fit; the largest is always among them.
    At(Vec<f64>),
    /// Powers of ten, and twice and five times them on a short axis.
    Decades,
    /// Names at values.
    Named(Vec<(f64, String)>),
}

/// One axis of a panel.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    spread: Spread,
    /// In spread units: the logarithm on a log axis.
    lo: f64,
    hi: f64,
    /// No tick stands outside, for instance above 1 on a share's axis.
    natural: Option<Extent>,
    rule: TickRule,
}

/// A tick at `unit` of the axis's length.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) unit: f64,
    pub(crate) label: String,
}

impl Axis {
    /// A linear axis over `extent`.
    pub(crate) fn linear(label: impl Into<String>, extent: Extent, rule: TickRule) -> Self {
        let extent = extent.at_least(0.0);
        Self {
            label: label.into(),
            spread: Spread::Linear,
            lo: extent.lo,
            hi: extent.hi,
            natural: None,
            rule,
        }
    }

    /// A logarithmic axis over `extent`; linear when the extent is not above 0.
    pub(crate) fn log(label: impl Into<String>, extent: Extent, rule: TickRule) -> Self {
        if extent.lo <= 0.0 {
            return Self::linear(label, extent, rule);
        }
        let logs = Extent { lo: extent.lo.ln(), hi: extent.hi.ln() }.at_least(0.2);
        Self { label: label.into(), spread: Spread::Log, lo: logs.lo, hi: logs.hi, natural: None, rule }
    }

    /// Refuses ticks outside `lo..=hi`.
    pub(crate) fn naturally(mut self, lo: f64, hi: f64) -> Self {
        self.natural = Some(Extent { lo, hi });
        self
    }

    /// How many names it has, where it has names.
    pub(crate) fn names(&self) -> usize {
        match &self.rule {
            TickRule::Named(names) => names.len(),
            _ => 0,
        }
    }

    /// Where `value` stands, 0 at the start and 1 at the end; below or above when it is off the axis.
    /// `None` for values that the axis cannot hold.
    pub(crate) fn unit(&self, value: f64) -> Option<f64> {
        let value = value.clamp(-LARGEST, LARGEST);
        let spread = match self.spread {
            Spread::Linear => value,
            Spread::Log if value > 0.0 => value.ln(),
            Spread::Log => return None,
        };
        let unit = (spread - self.lo) / (self.hi - self.lo);
        unit.is_finite().then_some(unit)
    }

    /// Ticks for an axis `length` pixels long; `room` gives the pixels a label takes along the axis.
    pub(crate) fn ticks(&self, length: f64, room: impl Fn(&str) -> f64) -> Vec<Tick> {
        let (values, step) = match &self.rule {
            TickRule::Round => self.round_values(length, &room, 0.0),
            TickRule::Whole => self.round_values(length, &room, 1.0),
            TickRule::At(values) => (values.clone(), smallest_gap(values)),
            TickRule::Decades => (self.decades(), 0.0),
            TickRule::Named(names) => (names.iter().map(|name| name.0).collect(), 0.0),
        };
        let largest = values.iter().fold(0.0_f64, |size, value| size.max(value.abs()));
        let mut ticks = Vec::new();
        for (at, value) in values.into_iter().enumerate() {
            let natural = self.natural.is_none_or(|n| value >= n.lo - 1e-9 && value <= n.hi + 1e-9);
            if let Some(unit) = self.unit(value)
                && (-1e-6..=1.0 + 1e-6).contains(&unit)
                && natural
            {
                let label = match &self.rule {
                    TickRule::Named(names) => clipped(&clean(&names[at].1), 60),
                    TickRule::Decades | TickRule::At(_) => short(value),
                    TickRule::Round | TickRule::Whole => number::tick(value, step, largest),
                };
                ticks.push(Tick { unit, label });
            }
        }
        thinned(ticks, length, room)
    }

    fn round_values(&self, length: f64, room: &impl Fn(&str) -> f64, smallest: f64) -> (Vec<f64>, f64) {
        let (from, to) = match self.spread {
            Spread::Linear => (self.lo, self.hi),
            Spread::Log => (self.lo.exp(), self.hi.exp()),
        };
        let wanted = (length / (room("0.00") * 1.5 + 14.0)).clamp(2.0, 9.0);
        let step = round_step((to - from) / wanted).max(smallest);
        let first = (from / step).ceil();
        let mut values: Vec<f64> = (0..64)
            .map(|at| (first + f64::from(at)) * step)
            .take_while(|value| *value <= to + step * 1e-9)
            .collect();
        if self.rule == TickRule::Whole {
            let (first, last) = self.natural.map_or((from, to), |n| (n.lo.max(from), n.hi.min(to)));
            let (first, last) = (first.ceil(), last.floor());
            values.retain(|value| last - value >= step * 0.4 && value - first >= step * 0.4);
            values.insert(0, first);
            if last > first {
                values.push(last);
            }
        }
        (values, step)
    }

    fn decades(&self) -> Vec<f64> {
        let (from, to) = match self.spread {
            Spread::Linear => return Vec::new(),
            Spread::Log => (self.lo / std::f64::consts::LN_10, self.hi / std::f64::consts::LN_10),
        };
        let stride = ((to - from) / 8.0).ceil().max(1.0);
        let factors: &[f64] = if to - from < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = from.floor();
        let exponents =
            (0..16).map(|at| first + f64::from(at) * stride).take_while(|exponent| *exponent <= to + 1e-9);
        exponents
            .flat_map(|exponent| factors.iter().map(move |factor| factor * 10_f64.powf(exponent)))
            .collect()
    }
}

/// The next of 1, 2, 5 × 10ⁿ at or above `rough`.
fn round_step(rough: f64) -> f64 {
    if !rough.is_finite() || rough <= 0.0 {
        return 1.0;
    }
    let decade = 10_f64.powf(rough.log10().floor());
    let share = rough / decade;
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| share <= factor * 1.000_001).unwrap_or(10.0);
    (decade * factor).max(f64::MIN_POSITIVE)
}

fn smallest_gap(values: &[f64]) -> f64 {
    values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(f64::INFINITY, f64::min)
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() >= 1e4 && (value / 1000.0).fract() == 0.0 && value.abs() < 1e6 {
        return format!("{}k", value / 1000.0);
    }
    if value.abs() >= 1e6 { number::tick(value, value, value) } else { number::plain(value, 3) }
}

/// Drops ticks whose labels would touch. The last tick stays, then the earlier ones as far as there is room.
fn thinned(ticks: Vec<Tick>, length: f64, room: impl Fn(&str) -> f64) -> Vec<Tick> {
    let Some(last) = ticks.last().cloned() else { return ticks };
    let half = |tick: &Tick| room(&tick.label) / 2.0 + 3.0;
    let free = |a: &Tick, b: &Tick| (a.unit - b.unit).abs() * length >= half(a) + half(b);
    let mut kept: Vec<Tick> = Vec::new();
    for tick in &ticks[..ticks.len() - 1] {
        if kept.last().is_none_or(|previous| free(previous, tick)) && free(tick, &last) {
            kept.push(tick.clone());
        }
    }
    kept.push(last);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, length: f64) -> Vec<String> {
        axis.ticks(length, |text| 7.0 * f64::from(u32::try_from(text.len()).unwrap()))
            .into_iter()
            .map(|t| t.label)
            .collect()
    }

    #[test]
    fn equal_values_get_an_axis_of_some_width() {
        for value in [0.0, 1.0, -3e-320, 1e300, -1e300, 1e-12] {
            let axis = Axis::linear("x", Extent::of([value, value]).unwrap(), TickRule::Round);
            let unit = axis.unit(value).unwrap();
            assert!((0.0..=1.0).contains(&unit), "{value}: {unit}");
            assert!(axis.ticks(400.0, |_| 20.0).len() <= 64);
        }
    }

    #[test]
    fn infinities_are_left_out_and_the_widest_range_is_finite() {
        assert_eq!(Extent::of([f64::INFINITY, f64::NAN]), None);
        let extent = Extent::of([f64::MAX, f64::MIN]).unwrap();
        assert!(extent.width().is_finite());
        assert!(!Axis::linear("x", extent, TickRule::Round).ticks(400.0, |_| 20.0).is_empty());
    }

    #[test]
    fn the_last_whole_number_always_has_a_tick() {
        let axis = Axis::linear("layer", Extent { lo: 0.0, hi: 29.0 }, TickRule::Whole);
        let labels = labels(&axis, 500.0);
        assert_eq!(labels.last().map(String::as_str), Some("29"));
        assert_eq!(labels.first().map(String::as_str), Some("0"));
    }

    #[test]
    fn no_tick_lies_outside_what_the_quantity_can_be() {
        let axis = Axis::linear("share", Extent { lo: 0.5, hi: 1.05 }, TickRule::Round).naturally(0.0, 1.0);
        assert_eq!(labels(&axis, 300.0).last().map(String::as_str), Some("1.0"));
    }

    #[test]
    fn budgets_on_a_log_axis_stand_at_equal_distances() {
        let budgets = vec![64.0, 128.0, 256.0];
        let axis = Axis::log("budget", Extent { lo: 64.0, hi: 256.0 }, TickRule::At(budgets));
        assert!((axis.unit(128.0).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(labels(&axis, 300.0), ["64", "128", "256"]);
    }

    #[test]
    fn crowded_labels_are_dropped_but_the_last_stays() {
        let values: Vec<f64> = (0..200).map(f64::from).collect();
        let axis = Axis::linear("x", Extent { lo: 0.0, hi: 199.0 }, TickRule::At(values));
        let labels = labels(&axis, 300.0);
        assert!(labels.len() < 15, "{labels:?}");
        assert_eq!(labels.last().map(String::as_str), Some("199"));
    }
}
