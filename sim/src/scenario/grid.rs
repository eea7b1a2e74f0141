//! Values to sweep: a single one, a list, or a range.

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Values to sweep, in the order given.
///
/// In YAML: `0.5`, `[0.1, 0.2]` or `{from: 0.1, to: 10, steps: 5, scale: log}`. A range includes both ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid(Vec<f64>);

/// How the steps of a range are spaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Scale {
    #[default]
    Linear,
    Log,
}

impl Grid {
    /// A grid of these values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        Self(values.to_vec())
    }

    /// The values, in order.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    fn range(from: f64, to: f64, steps: u32, scale: Scale) -> Result<Self, String> {
        if !(from.is_finite() && to.is_finite()) {
            return Err("a range must have finite ends".to_owned());
        }
        if !(1..=100_000).contains(&steps) || (steps == 1 && from.total_cmp(&to).is_ne()) {
            return Err(format!("`steps` is {steps}; accepted: 2 to 100000 (1 if both ends are equal)"));
        }
        if scale == Scale::Log && !(from > 0.0 && to > 0.0) {
            return Err(format!("a logarithmic range needs positive ends, found {from} and {to}"));
        }
        let at = |step: u32| {
            if step == 0 {
                return from;
            }
            if step == steps - 1 {
                return to;
            }
            let (step, last) = (f64::from(step), f64::from(steps - 1));
            match scale {
                // Multiplied first: between whole ends whole steps come out whole.
                Scale::Linear => from + (to - from) * step / last,
                Scale::Log => round_significant(from * (to / from).powf(step / last)),
            }
        };
        Ok(Self((0..steps).map(at).collect()))
    }
}

/// Rounds to nine significant digits, so that a power function's last bits never show.
fn round_significant(x: f64) -> f64 {
    format!("{x:.8e}").parse().unwrap_or(x)
}

impl<'de> Deserialize<'de> for Grid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GridVisitor)
    }
}

/// A number in any notation of YAML: `64`, `0x40`, `6.4e1`.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 2^53")]
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
        const MOST: u64 = 1 << 53;
        if value > MOST {
            return Err(E::custom(format!("{value} is too large; accepted: whole numbers up to {MOST}")));
        }
        Ok(Number(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "negative amounts are refused later")]
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
        Ok(Number(value as f64))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
        Ok(Number(value))
    }
}

struct GridVisitor;

impl<'de> Visitor<'de> for GridVisitor {
    type Value = Grid;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a list of numbers, or {from, to, steps, scale: linear|log}")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Grid, E> {
        NumberVisitor.visit_u64(value).map(|number| Grid(vec![number.0]))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Grid, E> {
        NumberVisitor.visit_i64(value).map(|number| Grid(vec![number.0]))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Grid, E> {
        Ok(Grid(vec![value]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Grid, A::Error> {
        let mut values = Vec::new();
        while let Some(Number(value)) = seq.next_element()? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(de::Error::custom("an empty list sweeps nothing; give at least one number"));
        }
        Ok(Grid(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Grid, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Range {
            from: Number,
            to: Number,
            steps: u32,
            #[serde(default)]
            scale: Scale,
        }
        let range = Range::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Grid::range(range.from.0, range.to.0, range.steps, range.scale).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(Grid::range(0.0, 1.0, 5, Scale::Linear).unwrap().values(), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(Grid::range(0.01, 100.0, 5, Scale::Log).unwrap().values(), [0.01, 0.1, 1.0, 10.0, 100.0]);
        let whole = Grid::range(0.0, 1249.0, 1250, Scale::Linear).unwrap();
        assert!(
            (0..1250).zip(whole.values()).all(|(seed, value)| f64::from(seed).to_bits() == value.to_bits())
        );
        assert!(Grid::range(0.0, 1.0, 3, Scale::Log).is_err());
        assert!(Grid::range(0.0, 1.0, 0, Scale::Linear).is_err());
    }
}
