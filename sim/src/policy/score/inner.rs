//! A scorer inside another scorer's parameters.

use super::Score;
use crate::policy::registry::{SCORES, find};
use crate::policy::{PolicyError, RawParams};
use serde::{Deserialize, Serialize};

/// The id and parameters of a scorer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inner {
    /// Id of a score policy.
    pub kind: String,
    /// Its parameters; absent ones take their defaults.
    #[serde(default = "nothing")]
    pub params: serde_json::Value,
}

fn nothing() -> serde_json::Value {
    serde_json::json!({})
}

impl Inner {
    /// A scorer with its default parameters.
    #[must_use]
    pub fn plain(kind: &str) -> Self {
        Self { kind: kind.to_owned(), params: nothing() }
    }

    /// A scorer with parameters given in code.
    #[must_use]
    pub fn with<P: Serialize>(kind: &str, params: &P) -> Self {
        Self { kind: kind.to_owned(), params: crate::policy::doc::as_json(params) }
    }

    /// The scorer.
    ///
    /// # Errors
    /// When the id is unknown or the parameters do not fit.
    pub fn build(&self) -> Result<Box<dyn Score>, PolicyError> {
        (find(SCORES, "score", &self.kind)?.build)(&RawParams::from_params(&self.params)?)
    }
}

/// The parts of [`Score`] that a wrapper hands on to the scorer inside it.
macro_rules! handed_on {
    ($inner:ident) => {
        fn window(&self) -> u32 {
            self.$inner.window()
        }

        fn mean_attention(&self) -> Option<(u32, $crate::policy::score::window_mass::Normaliser)> {
            self.$inner.mean_attention()
        }

        fn accumulates(&self) -> bool {
            self.$inner.accumulates()
        }

        fn is_layer_wide(&self) -> bool {
            self.$inner.is_layer_wide()
        }

        fn can_be_negative(&self) -> bool {
            self.$inner.can_be_negative()
        }

        fn looks_at_choice(&self) -> bool {
            LOOKS_AT_CHOICE || self.$inner.looks_at_choice()
        }

        fn needs(&self) -> $crate::policy::Needs {
            SPEC.needs.and(self.$inner.needs())
        }

        fn randomness(&self) -> $crate::policy::Randomness {
            self.$inner.randomness()
        }

        fn claims(&self, law: $crate::policy::Law) -> bool {
            SPEC.laws.contains(&law) && self.$inner.claims(law)
        }
    };
}
pub(super) use handed_on;
