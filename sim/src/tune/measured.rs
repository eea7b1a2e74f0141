//! Candidate settings measured on problems, and how what was measured may be tested.

use super::tail;
use crate::scenario::Bound;
use serde::Serialize;

/// What one problem gives to a metric: a metric is Σ numerator / Σ denominator over problems.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Term {
    /// Numerator.
    pub num: f64,
    /// Denominator; 0 where the problem says nothing.
    pub den: f64,
}

impl Term {
    /// The term of two numbers.
    #[must_use]
    pub fn new(num: f64, den: f64) -> Self {
        Self { num, den }
    }
}

/// What is known of a metric's terms before any is seen: it decides which test is valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// 0 or 1 of 1: a problem has it or not. Exact binomial tail.
    Share,
    /// −1, 0 or 1 of 1: worse, the same or better than the full pipeline. Betting.
    Difference,
    /// A part of at most `most`: Σ numerator / Σ denominator, 0 ≤ numerator ≤ denominator ≤ `most`. Hoeffding–Bentkus.
    Ratio {
        /// The largest denominator that a problem can have, known from the design and not from outcomes.
        most: f64,
    },
    /// A value in \[0, 1\] of 1. Hoeffding–Bentkus.
    Unit,
    /// No bound is known, so no test: an objective only.
    Unbounded,
}

/// Candidate settings of one study, measured on its problems. Reading twice gives the same terms.
pub trait Measured: Sync {
    /// How many settings there are.
    fn candidates(&self) -> usize;

    /// How many problems.
    fn items(&self) -> usize;

    /// The kinds of what is measured, `[metric]`: the objective, then each constraint, then whatever else is to be reported.
    fn kinds(&self) -> &[Kind];

    /// What a problem gives under a setting, into `[metric]`.
    fn measure(&self, candidate: usize, item: usize, into: &mut [Term]);

    /// The setting that changes nothing: it has no loss by construction, and is what others are compared with.
    fn anchor(&self) -> usize;

    /// Which of two settings is the more careful by its thresholds alone: less is more careful. Only breaks ties.
    fn boldness(&self, candidate: usize) -> f64;

    /// A metric in which less agreement hints at risk where no loss has been seen yet: breaks ties of the search.
    fn hint(&self) -> Option<usize>;
}

/// Terms of one metric summed over problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sums {
    /// Problems with a denominator.
    pub n: u64,
    /// Problems asked.
    pub problems: u64,
    /// Σ numerator.
    pub num: f64,
    /// Σ denominator.
    pub den: f64,
    /// Σ of each problem's own quotient.
    #[serde(skip)]
    pub shares: f64,
    /// Problems with a positive numerator.
    #[serde(skip)]
    pub positive: u64,
    /// Problems with a negative numerator.
    #[serde(skip)]
    pub negative: u64,
    /// Problems whose term is not a whole numerator of one.
    #[serde(skip)]
    pub broken: u64,
}

impl Sums {
    /// Adds a problem.
    pub fn add(&mut self, term: Term) {
        self.problems += 1;
        if !(term.den > 0.0) {
            return;
        }
        let is_whole = |x: f64| x.fract().to_bits() << 1 == 0;
        self.n += 1;
        self.num += term.num;
        self.den += term.den;
        self.shares += term.num / term.den;
        self.positive += u64::from(term.num > 0.0);
        self.negative += u64::from(term.num < 0.0);
        self.broken += u64::from(!(is_whole(term.num) && term.den.to_bits() == 1.0_f64.to_bits()));
    }

    /// The metric; nothing without a denominator.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (self.den > 0.0).then(|| self.num / self.den)
    }

    /// These problems and those.
    #[must_use]
    pub fn and(mut self, more: &Self) -> Self {
        self.n += more.n;
        self.problems += more.problems;
        self.num += more.num;
        self.den += more.den;
        self.shares += more.shares;
        self.positive += more.positive;
        self.negative += more.negative;
        self.broken += more.broken;
        self
    }

    /// The losses that a bound is about; nothing for a metric without a test.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
    pub fn loss(&self, kind: Kind, bound: Bound) -> Option<Loss> {
        let n = self.n as f64;
        Some(match (kind, bound) {
            (Kind::Unbounded, _) => return None,
            // Several recordings of a problem give shares of it, which are no coins.
            (Kind::Share | Kind::Unit, Bound::AtMost(limit)) if kind == Kind::Unit || self.broken > 0 => {
                Loss { test: Test::Bounded { sum: self.shares, n: self.n }, limit }
            }
            (Kind::Share | Kind::Unit, Bound::AtLeast(least)) if kind == Kind::Unit || self.broken > 0 => {
                Loss { test: Test::Bounded { sum: n - self.shares, n: self.n }, limit: 1.0 - least }
            }
            (Kind::Share | Kind::Unit, Bound::AtMost(limit)) => {
                Loss { test: Test::Binomial { losses: self.positive, n: self.n }, limit }
            }
            (Kind::Share | Kind::Unit, Bound::AtLeast(least)) => Loss {
                test: Test::Binomial { losses: self.n - self.positive, n: self.n },
                limit: 1.0 - least,
            },
            (Kind::Difference, bound) => {
                let (limit, worse, better, sum) = match bound {
                    Bound::AtMost(most) => (most, self.positive, self.negative, self.shares),
                    Bound::AtLeast(least) => (-least, self.negative, self.positive, -self.shares),
                };
                if self.broken > 0 {
                    let sum = (sum + n) / 2.0;
                    Loss { test: Test::Bounded { sum, n: self.n }, limit: (1.0 + limit) / 2.0 }
                } else {
                    let same = self.n - worse - better;
                    Loss { test: Test::Betting { worse, better, same }, limit }
                }
            }
            (Kind::Ratio { most }, bound) => {
                // num / den > r on average just when num + r (most − den) is above r · most.
                let (num, limit) = match bound {
                    Bound::AtMost(limit) => (self.num, limit),
                    Bound::AtLeast(least) => (self.den - self.num, 1.0 - least),
                };
                let all = self.problems as f64;
                Loss {
                    test: Test::Bounded {
                        sum: num / most + limit * (all - self.den / most),
                        n: self.problems,
                    },
                    limit,
                }
            }
        })
    }
}

/// Losses with the limit that they are held to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// The losses and their test.
    pub test: Test,
    /// The null hypothesis is "the mean loss is above this".
    pub limit: f64,
}

/// A valid test of a mean loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "test", rename_all = "kebab-case")]
pub enum Test {
    /// Exact binomial tail of 0/1 losses.
    Binomial {
        /// Problems with a loss.
        losses: u64,
        /// Problems.
        n: u64,
    },
    /// Hoeffding–Bentkus of losses in \[0, 1\].
    Bounded {
        /// Sum of the losses.
        sum: f64,
        /// Problems.
        n: u64,
    },
    /// Betting on differences in {-1, 0, 1}.
    Betting {
        /// Problems that got worse.
        worse: u64,
        /// Problems that got better.
        better: u64,
        /// The others.
        same: u64,
    },
}

impl Loss {
    /// The p-value of "the mean loss is above the limit": small when that is hard to believe.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        self.test.p_value(self.limit)
    }

    /// How far the mean loss of these problems is above the limit; below it when negative, at the most above it without problems.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
    pub fn excess(&self) -> f64 {
        let (sum, n) = match self.test {
            Test::Binomial { losses, n } => (losses as f64, n),
            Test::Bounded { sum, n } => (sum, n),
            Test::Betting { worse, better, same } => (worse as f64 - better as f64, worse + better + same),
        };
        if n == 0 { 1.0 } else { sum / n as f64 - self.limit }
    }

    /// Whether the mean loss of these problems is within the limit, without any allowance for chance (but one for rounding).
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.excess() <= 1e-12
    }

    /// How many problems reject at level `delta` with no loss at all, and with losses at the rate seen so far. Nothing where no
    /// number does.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
    pub fn needed(&self, delta: f64) -> (Option<u64>, Option<u64>) {
        match self.test {
            Test::Binomial { losses, n } => {
                let seen = if n == 0 { 0.0 } else { losses as f64 / n as f64 };
                let at_rate = tail::needed_at_rate(seen, self.limit, delta);
                (tail::needed(0, self.limit, delta), at_rate.map(|(n, _)| n))
            }
            Test::Bounded { sum, n } => {
                let mean = if n == 0 { 0.0 } else { sum / n as f64 };
                // A tail costs as much as there are losses, so nothing is looked for beyond four million problems.
                let rejects = |mean: f64, n: u64| {
                    n < 1 << 22 && tail::hoeffding_bentkus(mean * n as f64, n, self.limit) <= delta
                };
                let at_rate = || tail::smallest(|n| rejects(mean, n));
                (tail::smallest(|n| rejects(0.0, n)), (mean < self.limit).then(at_rate).flatten())
            }
            Test::Betting { worse, better, same } => {
                let all = (worse + better + same).max(1);
                let part = |count: u64, n: u64| (u128::from(count) * u128::from(n)).div_ceil(u128::from(all));
                let part = |count, n| u64::try_from(part(count, n)).unwrap_or(u64::MAX);
                let at_rate = tail::smallest(|n| {
                    let worse = part(worse, n).min(n);
                    let better = (part(better, n)).saturating_sub(1).min(n - worse);
                    tail::betting(worse, better, n - worse - better, self.limit) <= delta
                });
                (tail::smallest(|n| tail::betting(0, 0, n, self.limit) <= delta), at_rate)
            }
        }
    }

    /// The smallest limit that these losses would pass at level `delta`: a one-sided upper confidence bound of the mean loss.
    #[must_use]
    pub fn upper_bound(&self, delta: f64) -> f64 {
        match self.test {
            Test::Binomial { losses, n } => tail::upper_bound(losses, n, delta),
            Test::Bounded { .. } => tail::bisect(0.0, 1.0, |limit| self.test.p_value(limit) <= delta),
            Test::Betting { .. } => tail::bisect(-1.0, 1.0, |limit| self.test.p_value(limit) <= delta),
        }
    }
}

impl Test {
    fn p_value(&self, limit: f64) -> f64 {
        match *self {
            Self::Binomial { losses, n } => tail::binomial_at_most(losses, n, limit),
            Self::Bounded { sum, n } => tail::hoeffding_bentkus(sum, n, limit),
            Self::Betting { worse, better, same } => tail::betting(worse, better, same, limit),
        }
    }
}
