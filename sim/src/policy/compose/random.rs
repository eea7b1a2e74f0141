//! Random eviction under the periodic driver: the control that a scorer has to beat. Sinks are not protected unless
//! asked for, and the recent buffer is. With sinks and the widest values kept it rivals sampling on short tasks (VaSE's
//! early logs), so that form is a control too.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::reserve::value_magnitude;
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "random",
    family: Family::Composition,
    summary: "recent tokens and a random choice of the rest: the lower bound",
    citation: "NVIDIA/kvpress kvpress/presses/random_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// First tokens that are protected.
    sinks: u32 = 0,
    /// Whether all tokens of the prompt are protected.
    keep_prompt: bool = false,
    /// Share of the budget reserved for the widest value states, sinks included; 0 for none.
    value_share: f64 = 0.0,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let has_values = params.value_share.abs() > 0.0;
    if params.keep_prompt && has_values {
        let reason = "`keep_prompt` and `value_share` are two reserves; a stack has one".to_owned();
        return Err(PolicyError::Refused { policy: SPEC.id, reason });
    }
    let spec = StackSpec::periodic(SPEC.id, Knobs { sinks: params.sinks, ..*knobs }, Part::plain("random"))?;
    let reserve = if has_values {
        let share = params.value_share;
        Part::with(
            "value-magnitude",
            &value_magnitude::Params { share, ..value_magnitude::Params::default() },
        )?
    } else {
        Part::plain(if params.keep_prompt { "prompt" } else { "none" })
    };
    Ok(StackSpec { reserve, ..spec })
}
