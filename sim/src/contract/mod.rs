//! The laws that every eviction policy must keep, as seeded checks: for the registered ones and for your own.
//!
//! | law | what it asks |
//! |---|---|
//! | P1 | an eviction keeps exactly the budget (or everything, where less is resident) |
//! | P2 | it keeps resident tokens only, none twice |
//! | P3 | sinks and the recent buffer stay, the latter last and in order |
//! | P4 | the same question gets the same answer |
//! | P8 | whoever claims [`Law::Stack`] keeps a superset under a larger budget, at the first eviction |
//! | P9 | attention-mass recall is between 0 and the clairvoyant bound |
//! | P11 | a budget that is never exceeded is the full cache, and the full cache recalls everything |
//! | P12 | ties, zeros, denormals and huge values change none of P1 to P4 |
//! | P13 | nothing is read that is not declared in [`Needs`] |
//! | P14 | parameters survive serialise → parse, and unknown keys are refused |
//! | P15 | whoever claims [`Law::HeadSymmetric`] decides on vectors, not on head numbers |
//!
//! P5 (threads), P6, P7 and P10 (branches, blocks, identifiers) are laws of the engine.
//!
//! ```
//! use kvlab_sim::contract::{Options, Subject, check};
//! use kvlab_sim::policy::compose::{Part, Stack, StackSpec};
//!
//! let subject = Subject::new("small keys", |knobs| {
//!     Stack::checked(StackSpec::periodic("small keys", *knobs, Part::plain("key-norm"))?)
//! });
//! let report = check(&subject, Options { cases: 4, ..Options::default() });
//! assert!(report.is_clean(), "{report}");
//! ```

mod cases;
mod heads;
mod laws;
mod params;
mod selection;
mod subjects;

pub use heads::{PlainHead, WatchedHead};
pub use params::check_params;
pub use selection::{check_attend, check_selections, check_store};
pub use subjects::subjects;

#[cfg(doc)]
use crate::policy::{Law, Needs};

use crate::policy::PolicyError;
use crate::policy::compose::{Knobs, Stack};
use std::fmt;

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the cases: the same seed gives the same cases.
    pub seed: u64,
    /// Cases of each law.
    pub cases: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, cases: 32 }
    }
}

/// Builds a stack under given amounts.
type Build<'a> = dyn Fn(&Knobs) -> Result<Stack, PolicyError> + 'a;

/// What is checked: a way to build a stack from amounts.
pub struct Subject<'a> {
    name: String,
    build: Box<Build<'a>>,
}

impl<'a> Subject<'a> {
    /// A subject called `name` in reports.
    pub fn new(name: impl Into<String>, build: impl Fn(&Knobs) -> Result<Stack, PolicyError> + 'a) -> Self {
        Self { name: name.into(), build: Box::new(build) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stack under these amounts.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn build(&self, knobs: &Knobs) -> Result<Stack, PolicyError> {
        (self.build)(knobs)
    }
}

impl fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One broken law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The law, e.g. `P3`.
    pub law: &'static str,
    /// The case, from 0: the same seed and case give the same finding.
    pub case: u32,
    /// What was expected and found.
    pub detail: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Name of the subject.
    pub subject: String,
    /// How many cases of each law were looked at, in the order of the table above. A case in which amounts do not fit, or
    /// in which a law is not claimed, is none.
    pub checked: Vec<(&'static str, u32)>,
    /// What is broken.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether no law is broken.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Cases of `law` that were looked at.
    #[must_use]
    pub fn cases(&self, law: &str) -> u32 {
        self.checked.iter().find(|(name, _)| *name == law).map_or(0, |(_, cases)| *cases)
    }

    fn count(&mut self, law: &'static str) {
        match self.checked.iter_mut().find(|(name, _)| *name == law) {
            Some((_, cases)) => *cases += 1,
            None => self.checked.push((law, 1)),
        }
    }

    fn find(&mut self, law: &'static str, case: u32, detail: String) {
        self.findings.push(Finding { law, case, detail });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.subject)?;
        for (law, cases) in &self.checked {
            let broken = self.findings.iter().filter(|finding| finding.law == *law).count();
            write!(f, " {law} {}/{cases}", u64::from(*cases).saturating_sub(broken as u64))?;
        }
        for Finding { law, case, detail } in &self.findings {
            write!(f, "\n  {law} broken in case {case}: {detail}")?;
        }
        Ok(())
    }
}

/// Checks every law but P14 on the stacks that `subject` builds.
#[must_use]
pub fn check(subject: &Subject<'_>, options: Options) -> Report {
    let mut report = Report { subject: subject.name.clone(), ..Report::default() };
    for case in 0..options.cases {
        laws::check_case(subject, options.seed, case, &mut report);
    }
    report
}
