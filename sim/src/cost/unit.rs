//! Fixed costs: time counts work and says nothing about a device.

use super::{BatchCost, CostError, Work, bad_params};
use crate::policy::RawParams;
use crate::types::Nanos;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Unit {
    /// Nanoseconds a pass.
    pass: u64,
    /// Nanoseconds a computed token.
    token: u64,
    /// Layers of the model: a token of a pass that ends earlier takes its share of the time. Absent where time does not depend on layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<u16>,
}

impl Default for Unit {
    fn default() -> Self {
        Self { pass: 0, token: 1000, layers: None }
    }
}

pub(super) fn build(raw: &RawParams) -> Result<Box<dyn BatchCost>, CostError> {
    let unit: Unit = raw.parse("unit").map_err(bad_params("unit"))?;
    if unit.layers == Some(0) {
        let reason = "`layers` is 0; accepted: 1 or more, or null".to_owned();
        return Err(CostError::Params { kind: "unit".to_owned(), reason });
    }
    Ok(Box::new(unit))
}

impl BatchCost for Unit {
    fn duration(&self, work: &Work) -> Nanos {
        let whole = self.token.saturating_mul(work.new_tokens());
        let tokens = match self.layers {
            Some(layers) if work.layers < layers => {
                let share = u128::from(whole) * u128::from(work.layers);
                u64::try_from(share.div_ceil(u128::from(layers))).unwrap_or(u64::MAX)
            }
            _ => whole,
        };
        Nanos::new(self.pass.saturating_add(tokens).max(1))
    }

    fn layers(&self) -> Option<u16> {
        self.layers
    }

    fn of_layers(self: Box<Self>, layers: u16) -> Box<dyn BatchCost> {
        Box::new(Self { layers: self.layers.or(Some(layers)), ..*self })
    }

    fn params(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;

    /// 10 tokens of 1,000 ns are 10,000 ns; 3 of 7 layers of them 4,285.7, rounded up.
    #[test]
    fn a_pass_that_ends_early_takes_its_share_where_layers_are_known() {
        let work = |layers| Work {
            rows: vec![Row { new_tokens: 10, context_tokens: 0 }],
            layers,
            ..Work::default()
        };
        let any = build(&RawParams::default()).unwrap();
        assert_eq!((any.layers(), any.duration(&work(3)).get()), (None, 10_000));
        let seven = any.of_layers(7);
        assert_eq!(seven.layers(), Some(7));
        assert_eq!(
            [7, 3, u16::MAX].map(|layers| seven.duration(&work(layers)).get()),
            [10_000, 4_286, 10_000]
        );
    }
}
