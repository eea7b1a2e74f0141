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
}

impl Default for Unit {
    fn default() -> Self {
        Self { pass: 0, token: 1000 }
    }
}

pub(super) fn build(raw: &RawParams) -> Result<Box<dyn BatchCost>, CostError> {
    Ok(Box::new(raw.parse::<Unit>("unit").map_err(bad_params("unit"))?))
}

impl BatchCost for Unit {
    fn duration(&self, work: &Work) -> Nanos {
        Nanos::new(self.pass.saturating_add(self.token.saturating_mul(work.new_tokens())).max(1))
    }

    fn layers(&self) -> Option<u16> {
        None
    }

    fn params(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
