//! Many settings at once.
//!
//! Within a problem every threshold matters only by its rank among few observed values. For each composition of branches a table
//! over (rank of θ, rank of ε) holds what verification gives; a setting is then a look-up. Settings are worked in blocks, whose
//! thresholds are sorted once, so that ranks come from merging sorted lists. All sums are of integers: neither blocks nor
//! threads change a result.

use super::problem::{Composition, ProblemFacts, Rules};
use super::{Counts, Setting, StepTable};
use crate::policy::verify::cgee::{self, Rule};
use rayon::prelude::*;

/// Settings a block: their accumulators fit the second-level cache.
const BLOCK: usize = 8192;
/// Problems that 16-bit lanes can count.
pub(super) const LANE: usize = 65_535;

impl StepTable<'_> {
    /// What each setting gives, in their order: the same as [`Self::at`] for each.
    ///
    /// Cost: O(problems) a setting, a few nanoseconds each, after O(problems · compositions · observed θ · observed ε) once.
    #[must_use]
    pub fn joint(&self, settings: &[Setting]) -> Vec<Counts> {
        let problems: Vec<Ranked<'_>> =
            self.problems.par_iter().map(|problem| Ranked::new(problem, self.rules())).collect();
        let mut counts = vec![Counts::default(); settings.len()];
        counts
            .par_chunks_mut(BLOCK)
            .zip(settings.par_chunks(BLOCK))
            .for_each(|(counts, settings)| self.block(&problems, settings, counts));
        counts
    }

    fn block(&self, problems: &[Ranked<'_>], settings: &[Setting], counts: &mut [Counts]) {
        let block = Block::new(settings, self.rule.as_ref());
        let mut ranks = Ranks::default();
        for problems in problems.chunks(LANE) {
            let mut sums = vec![Sums::default(); settings.len()];
            for problem in problems {
                ranks.fill(problem, &block);
                problem.add(&block, &ranks, &mut sums);
            }
            counts.iter_mut().zip(&sums).for_each(|(counts, sums)| sums.add_to(counts));
        }
    }
}

/// Distinct values of a threshold in a block, ascending, and where each setting's is.
#[derive(Debug, Default)]
struct Sorted {
    values: Vec<f64>,
    /// `[setting]`.
    place: Vec<u16>,
}

impl Sorted {
    fn new(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut sorted: Vec<f64> = values.clone().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.dedup_by(|a, b| a.total_cmp(b).is_eq());
        let place = |value: f64| sorted.partition_point(|known| known.total_cmp(&value).is_lt());
        let place = values.map(|value| u16::try_from(place(value)).unwrap_or(u16::MAX)).collect();
        Self { values: sorted, place }
    }

    /// For each distinct value, how many of `cuts` (ascending) are below it.
    fn ranks(&self, cuts: &[f64], ranks: &mut Vec<u16>) {
        ranks.clear();
        let mut rank = 0_u16;
        for &value in &self.values {
            while cuts.get(usize::from(rank)).is_some_and(|&cut| cut < value) {
                rank += 1;
            }
            ranks.push(rank);
        }
    }
}

/// The thresholds of a block of settings.
struct Block {
    tau: Sorted,
    theta: Sorted,
    epsilon: Sorted,
    /// τ_conf, margin and rule B's floor, `[setting]`.
    skip: Vec<(f64, f64, f64)>,
    rule: Option<Rule>,
    relative_margin: f64,
}

impl Block {
    fn new(settings: &[Setting], rule: Option<&cgee::Params>) -> Self {
        let scale = rule.map_or(1.0, |rule| rule.floor_scale);
        Self {
            tau: Sorted::new(settings.iter().map(|s| s.tau)),
            theta: Sorted::new(settings.iter().map(|s| s.theta)),
            epsilon: Sorted::new(settings.iter().map(|s| s.epsilon)),
            skip: settings.iter().map(|s| (s.tau_conf, s.margin, scale * s.tau_conf)).collect(),
            rule: rule.map(|rule| rule.rule),
            relative_margin: rule.map_or(0.0, |rule| rule.relative_margin),
        }
    }
}

/// Ranks of a block's distinct thresholds within one problem.
#[derive(Debug, Default)]
struct Ranks {
    tau: Vec<u16>,
    theta: Vec<u16>,
    epsilon: Vec<u16>,
}

impl Ranks {
    fn fill(&mut self, problem: &Ranked<'_>, block: &Block) {
        block.tau.ranks(&problem.facts.cuts, &mut self.tau);
        block.theta.ranks(&problem.thetas, &mut self.theta);
        block.epsilon.ranks(&problem.epsilons, &mut self.epsilon);
    }
}

/// Sums of one setting, several to a word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// Right, agreeing, harmed, helped: 16 bits each.
    verdicts: u64,
    /// Branches shared (32 bits) and problems skipped (32 bits).
    shared: u64,
    /// Branches that exit (32 bits) and branches verified (32 bits).
    exited: u64,
    layers_run: u64,
}

impl Sums {
    /// What one problem gives.
    pub(super) fn of(counts: &Counts) -> Self {
        let verdicts = [counts.correct, counts.agreeing, counts.harmed, counts.helped];
        Self {
            verdicts: verdicts.iter().rev().fold(0, |word, count| word << 16 | count),
            shared: counts.shared | counts.skipped << 32,
            exited: counts.exited | counts.verified << 32,
            layers_run: counts.layers_run,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.verdicts += other.verdicts;
        self.shared += other.shared;
        self.exited += other.exited;
        self.layers_run += other.layers_run;
    }

    pub(super) fn add_to(&self, counts: &mut Counts) {
        let lane = |at: u32| (self.verdicts >> at) & 0xFFFF;
        counts.correct += lane(0);
        counts.agreeing += lane(16);
        counts.harmed += lane(32);
        counts.helped += lane(48);
        counts.shared += self.shared & 0xFFFF_FFFF;
        counts.skipped += self.shared >> 32;
        counts.exited += self.exited & 0xFFFF_FFFF;
        counts.verified += self.exited >> 32;
        counts.layers_run += self.layers_run;
    }
}

/// What verification gives at one pair of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    layers_run: u32,
    exited: u16,
    pub(super) verdict: u16,
}

/// A composition with its table.
pub(super) struct Table {
    shared: u64,
    /// Top, gap and relative gap; a single branch has infinite ones.
    lead: (f64, f64, f64),
    fixed_skip: Option<bool>,
    if_skipped: u64,
    branches: u64,
    /// Start of the row of each rank of θ in the problem, `[rank]`.
    rows: Vec<u32>,
    /// Column of each rank of ε in the problem, `[rank]`.
    columns: Vec<u32>,
    /// Cells a row: one for each rank of ε among the composition's own values.
    pub(super) width: usize,
    /// `[own rank of θ][own rank of ε]`, flat.
    pub(super) cells: Vec<Cell>,
}

/// A problem ready for look-ups.
struct Ranked<'a> {
    facts: &'a ProblemFacts,
    /// Values that θ is compared with, ascending.
    thetas: Vec<f64>,
    /// Values that ε is compared with, ascending.
    epsilons: Vec<f64>,
    tables: Vec<Table>,
    /// The lanes of each set of verdict bits.
    spread: [u64; 16],
}

impl<'a> Ranked<'a> {
    fn new(facts: &'a ProblemFacts, rules: Rules<'_>) -> Self {
        let all = || facts.exits.iter().flat_map(|exits| &exits.early);
        let thetas = distinct(all().map(|point| point.entropy));
        let epsilons = distinct(all().map(|point| point.change));
        let tables = facts.compositions.iter().map(|c| table(facts, c, rules, &thetas, &epsilons)).collect();
        let spread = std::array::from_fn(|bits| {
            super::problem::Verdict(u8::try_from(bits).unwrap_or_default()).spread()
        });
        Self { facts, thetas, epsilons, tables, spread }
    }

    fn add(&self, block: &Block, ranks: &Ranks, sums: &mut [Sums]) {
        for (at, sums) in sums.iter_mut().enumerate() {
            let table = &self.tables[usize::from(ranks.tau[usize::from(block.tau.place[at])])];
            let (tau_conf, margin, floor) = block.skip[at];
            let is_skipped = table.fixed_skip.unwrap_or_else(|| {
                let (top, gap, relative_gap) = table.lead;
                let a = (top >= tau_conf) & (gap >= margin);
                let b = (top >= floor) & (relative_gap >= block.relative_margin);
                match block.rule {
                    Some(Rule::A) => a,
                    Some(Rule::B) => b,
                    Some(Rule::Either) => a | b,
                    None => false,
                }
            });
            sums.shared += table.shared | (u64::from(is_skipped) << 32);
            if is_skipped {
                sums.verdicts += table.if_skipped;
            } else {
                let row = table.rows[usize::from(ranks.theta[usize::from(block.theta.place[at])])];
                let column = table.columns[usize::from(ranks.epsilon[usize::from(block.epsilon.place[at])])];
                let cell = table.cells[(row + column) as usize];
                sums.verdicts += self.spread[usize::from(cell.verdict & 15)];
                sums.exited += u64::from(cell.exited) | (table.branches << 32);
                sums.layers_run += u64::from(cell.layers_run);
            }
        }
    }
}

/// Finite values, ascending, without repetition.
pub(super) fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.dedup_by(|a, b| a.total_cmp(b).is_eq());
    values
}

pub(super) fn table(
    facts: &ProblemFacts,
    composition: &Composition,
    rules: Rules<'_>,
    thetas: &[f64],
    epsilons: &[f64],
) -> Table {
    let points = || composition.exits.iter().flat_map(|&at| &facts.exits[at].early);
    let (own_thetas, own_epsilons) =
        (distinct(points().map(|point| point.entropy)), distinct(points().map(|point| point.change)));
    let width = own_epsilons.len() + 1;
    // A threshold of rank r lies above r of the values: the own rank is how many of its own values are among those.
    let own_rank = |own: &[f64], all: &[f64], rank: usize| match rank.checked_sub(1) {
        None => 0,
        Some(last) => own.partition_point(|value| *value <= all[last]),
    };
    let index = |at: usize| crate::num::count(at);
    let rows = (0..=thetas.len()).map(|r| index(own_rank(&own_thetas, thetas, r) * width)).collect();
    let columns = (0..=epsilons.len()).map(|r| index(own_rank(&own_epsilons, epsilons, r))).collect();
    let mut cells = Vec::with_capacity((own_thetas.len() + 1) * width);
    let mut candidates = facts.candidates(composition);
    // A threshold of rank r is anything above the r-th value and up to the next.
    let representative = |own: &[f64], rank: usize| match rank.checked_sub(1) {
        None => f64::NEG_INFINITY,
        Some(last) => own[last].next_up(),
    };
    for theta_rank in 0..=own_thetas.len() {
        let theta = representative(&own_thetas, theta_rank);
        for epsilon_rank in 0..width {
            let epsilon = representative(&own_epsilons, epsilon_rank);
            let mut cell = Cell { layers_run: 0, exited: 0, verdict: 0 };
            for (candidate, &at) in candidates.iter_mut().zip(&composition.exits) {
                let (layers_run, score) = facts.exits[at].stop(theta, epsilon);
                candidate.score = Some(score);
                cell.layers_run += u32::from(layers_run);
                cell.exited = cell.exited.saturating_add(u16::from(layers_run < facts.exits[at].layers));
            }
            cell.verdict = u16::from(facts.judge(composition, rules.winner.choose(&candidates)).0);
            cells.push(cell);
        }
    }
    let lead = composition.lead.map_or((f64::INFINITY, f64::INFINITY, f64::INFINITY), |lead| {
        (lead.top, lead.gap, lead.relative_gap)
    });
    Table {
        shared: u64::from(composition.shared),
        lead,
        fixed_skip: composition.fixed_skip,
        if_skipped: composition.if_skipped.spread(),
        branches: composition.exits.len() as u64,
        rows,
        columns,
        width,
        cells,
    }
}
