//! One policy of each branch family.

use super::DecodeExit;
use crate::policy::compose::Part;
use crate::policy::exit::Exit;
use crate::policy::share::Share;
use crate::policy::verify::Verify;
use crate::policy::winner::Winner;
use crate::policy::{Needs, PolicyError, Randomness, registry};

/// The parts of a stack, not yet built. The default is the full pipeline: nothing shared, everything verified to the last layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeParts {
    /// Which branches share.
    pub share: Part,
    /// Whether the verifier is asked.
    pub verify: Part,
    /// Where its pass stops.
    pub exit: Part,
    /// Which branch answers.
    pub winner: Part,
    /// When decoding stops for all branches; absent for never.
    pub decode_exit: Option<DecodeExit>,
}

impl Default for TreeParts {
    fn default() -> Self {
        Self {
            share: Part::plain("off"),
            verify: Part::plain("always"),
            exit: Part::plain("never"),
            winner: Part::plain("score-confidence"),
            decode_exit: None,
        }
    }
}

/// A stack that decides about problems.
#[derive(Debug)]
pub struct TreeStack {
    /// Which branches share.
    pub share: Box<dyn Share>,
    /// Whether the verifier is asked.
    pub verify: Box<dyn Verify>,
    /// Where its pass stops.
    pub exit: Box<dyn Exit>,
    /// Which branch answers.
    pub winner: Box<dyn Winner>,
    /// When decoding stops for all branches; absent for never.
    pub decode_exit: Option<DecodeExit>,
}

impl TreeStack {
    /// Builds the parts.
    ///
    /// # Errors
    /// When an id is unknown or parameters do not fit.
    pub fn build(parts: &TreeParts) -> Result<Self, PolicyError> {
        if let Some(exit) = &parts.decode_exit {
            exit.check()?;
        }
        Ok(Self {
            share: (registry::find(registry::SHARES, "share", &parts.share.kind)?.build)(
                &parts.share.params,
            )?,
            verify: (registry::find(registry::VERIFIES, "verify", &parts.verify.kind)?.build)(
                &parts.verify.params,
            )?,
            exit: (registry::find(registry::EXITS, "exit", &parts.exit.kind)?.build)(&parts.exit.params)?,
            winner: (registry::find(registry::WINNERS, "winner", &parts.winner.kind)?.build)(
                &parts.winner.params,
            )?,
            decode_exit: parts.decode_exit,
        })
    }

    /// Whether a seed matters.
    #[must_use]
    pub fn is_random(&self) -> bool {
        let specs = [self.share.spec(), self.verify.spec(), self.exit.spec(), self.winner.spec()];
        specs.iter().any(|spec| spec.randomness == Randomness::Random)
    }

    /// Whether what is decided about a problem depends on those before it.
    #[must_use]
    pub fn is_stateful(&self) -> bool {
        self.exit.spec().id == "entropy-adaptive"
    }

    /// Trace fields that the parts read.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let specs = [self.share.spec(), self.verify.spec(), self.exit.spec(), self.winner.spec()];
        specs.iter().fold(Needs::NONE, |needs, spec| needs.and(spec.needs))
    }

    /// The effective parameters of all parts.
    #[must_use]
    pub fn params(&self) -> serde_json::Value {
        let part = |id: &str, params: serde_json::Value| serde_json::json!({ "kind": id, "params": params });
        serde_json::json!({
            "share": part(self.share.spec().id, self.share.params()),
            "verify": part(self.verify.spec().id, self.verify.params()),
            "exit": part(self.exit.spec().id, self.exit.params()),
            "winner": part(self.winner.spec().id, self.winner.params()),
            "decode_exit": self.decode_exit,
        })
    }
}
