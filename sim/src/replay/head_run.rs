//! All cells on one KV head: cells whose residents are the same tokens in the same slots are worked out once.

use super::RecordedHead;
use super::attention::{self, Masses};
use super::known::{Mean, Sums};
use super::layer::{EvictionCell, Settings};
use super::projection;
use super::recording::wide_count;
use crate::ledger::KeptSet;
use crate::num;
use crate::policy::compose::{Eviction, Stack};
use crate::policy::{At, HeadData, PolicyError, TILE, lists};
use crate::types::Pos;
use std::rc::Rc;

/// Cells that hold the same tokens in the same slots, for the same history of evictions.
#[derive(Debug)]
struct Class {
    /// Resident tokens in slot order; the last ones in time order.
    slots: Vec<Pos>,
    /// Tokens stored: those from here on are not in `slots` yet.
    stored: u32,
    /// Queries measured: those from here on are not.
    measured: u32,
    /// The cells, ascending.
    members: Vec<usize>,
    /// What its queries gave its tokens; absent where no scorer will ask.
    sums: Option<Sums>,
}

impl Class {
    fn store_to(&mut self, end: u32) {
        self.slots.extend((self.stored..end).map(Pos::new));
        self.stored = self.stored.max(end);
    }
}

/// What an eviction of one cell on one head came to.
pub(super) struct Decision {
    pub(super) cell: usize,
    /// What stayed, whether a tie decided, and how many tokens only fill up.
    pub(super) result: Result<(KeptSet, bool, u32), PolicyError>,
}

/// Cells that are due at the same time, and what they need to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) cell: usize,
    /// Equal for cells whose scorers are the same under the same seed.
    pub(super) scorer: usize,
    pub(super) eviction: u32,
    pub(super) capacity: u32,
}

/// What a class changes in the residual stream at one sampled query, until the other heads of the layer have theirs.
pub(super) struct Pending {
    pub(super) query: u32,
    /// `[hidden]`; empty for nothing.
    pub(super) delta: Vec<f32>,
    pub(super) members: Vec<usize>,
}

/// What the full cache gives at one sampled query.
struct Full {
    query: u32,
    /// `[member, head_dim]`.
    outputs: Vec<f64>,
    /// What the group writes, `[hidden]`; empty where the output matrix is not known.
    written: Vec<f32>,
}

/// One KV head and all cells on it.
pub(super) struct HeadRun<'a> {
    pub(super) head: RecordedHead<'a>,
    at: At,
    first_query: u32,
    /// Positions of the sequence.
    len: u32,
    steps: usize,
    settings: Settings,
    classes: Vec<Class>,
    /// The class of each cell, `[cell]`.
    class_of: Vec<usize>,
    /// Recall summed over the query heads of the group, `[cell, step]`.
    recall: Vec<f64>,
    /// Relative output errors summed over query heads and sampled steps, `[cell]`.
    errors: Vec<f64>,
    /// Outputs of the full cache at sampled queries of the tile at hand.
    full: Vec<Full>,
    /// Room for the outputs of one class.
    outputs: Vec<f64>,
    pending: Vec<Pending>,
    /// Tokens among the widest sixteenth that are resident at the end, `[class]`.
    wide: Vec<u64>,
}

impl<'a> HeadRun<'a> {
    /// `at` names the head and has the length of the prompt as `seen`; the sequence has `len` positions.
    pub(super) fn new(head: RecordedHead<'a>, at: At, len: u32, cells: usize, settings: Settings) -> Self {
        let steps = (len - at.seen) as usize;
        let members = (0..cells).collect();
        let root = Class { slots: Vec::new(), stored: 0, measured: at.seen, members, sums: None };
        Self {
            head,
            at,
            first_query: at.seen,
            len,
            steps,
            settings,
            classes: vec![root],
            class_of: vec![0; cells],
            recall: vec![0.0; steps * cells],
            errors: vec![0.0; cells],
            full: Vec::new(),
            outputs: Vec::new(),
            pending: Vec::new(),
            wide: Vec::new(),
        }
    }

    /// Measures all cells up to the query before `end`.
    pub(super) fn measure_to(&mut self, end: u32) {
        for class in 0..self.classes.len() {
            self.measure(class, end);
        }
    }

    /// Forgets what is known of measured queries, and the weights of queries before `keep_from`.
    pub(super) fn forget(&mut self, keep_from: u32) {
        self.full.clear();
        self.head.forget_before(keep_from);
    }

    /// What classes changed at sampled queries since the last call; nothing where the output matrix is not known.
    pub(super) fn take_pending(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }

    /// What the full cache writes at a query measured since the last [`HeadRun::forget`], `[hidden]`.
    pub(super) fn written_by_full(&self, query: u32) -> &[f32] {
        self.full.iter().find(|full| full.query == query).map_or(&[], |full| &full.written)
    }

    fn measure(&mut self, class: usize, end: u32) {
        let class = &mut self.classes[class];
        class.store_to(end);
        while class.measured < end && !class.members.is_empty() {
            let queries = class.measured..end.min((class.measured / TILE + 1) * TILE);
            class.measured = queries.end;
            let step = (queries.start - self.first_query) as usize;
            let masses = match &mut class.sums {
                Some(sums) => Masses::remembered(&self.head, queries.clone(), &class.slots, sums),
                None => Masses::of(&self.head, queries.clone(), &class.slots),
            };
            for (at, share) in masses.recall(&self.head).enumerate() {
                for cell in &class.members {
                    self.recall[cell * self.steps + step + at] = share;
                }
            }
            for query in queries.filter(|query| self.settings.is_sampled(query - self.first_query)) {
                // Tokens after the query have no weight.
                masses.output(&self.head, query, &class.slots, &mut self.outputs);
                let kept = &self.outputs;
                let at = match self.full.iter().position(|full| full.query == query) {
                    Some(at) => at,
                    None => {
                        let outputs = attention::full_output(&self.head, query);
                        let written = projection::written(&self.head, &outputs).unwrap_or_default();
                        self.full.push(Full { query, outputs, written });
                        self.full.len() - 1
                    }
                };
                let full = &self.full[at].outputs;
                let error = attention::relative_distance(kept, full, self.head.head_dim());
                if let Some(delta) = projection::difference(&self.head, kept, full) {
                    self.pending.push(Pending { query, delta, members: class.members.clone() });
                }
                for cell in &class.members {
                    self.errors[*cell] += error;
                }
            }
        }
        class.measured = class.measured.max(end);
    }

    /// Evicts the cells `due` (sorted by cell) with `seen` tokens seen.
    pub(super) fn evict(&mut self, seen: u32, due: &[Due], cells: &[EvictionCell<'_>]) -> Vec<Decision> {
        let mut order: Vec<&Due> = due.iter().collect();
        order.sort_by_key(|due| (self.class_of[due.cell], due.scorer, due.eviction, due.cell));
        let mut decisions = Vec::with_capacity(due.len());
        // Classes that this eviction makes: (parent, fingerprint, class).
        let mut made: Vec<(usize, KeptSet, usize)> = Vec::new();
        let mut left = Vec::new();
        // Scores of the last cell, which the next one may share: they are sorted so.
        let mut shared_key = None;
        let mut scores: Option<Rc<Vec<f32>>> = None;
        for due in order {
            let parent = self.class_of[due.cell];
            self.measure(parent, seen);
            let key = (parent, due.scorer, due.eviction);
            if shared_key != Some(key)
                && let Some(Ok(left)) = scores.take().map(Rc::try_unwrap)
            {
                lists::give_back(&self.head, left);
            }
            let at = At { seen, eviction: due.eviction, ..self.at };
            let EvictionCell { stack, seed } = cells[due.cell];
            self.lend(parent);
            let resident = &self.head.known.slots;
            let result = stack.evict_sharing(&self.head, at, resident, due.capacity, seed, &mut scores);
            self.lend(parent);
            shared_key = Some(key);
            let result = result.map(|Eviction { kept, tied, reasons, filled }| {
                lists::give_back(&self.head, reasons);
                let set = KeptSet::of(&kept);
                let class = match made.iter().find(|(from, of, _)| *from == parent && *of == set) {
                    Some((_, _, class)) => *class,
                    None => {
                        let sums = expected_sums(&self.head, stack, kept.len(), seen, self.len);
                        let class = self.add(Class {
                            slots: kept,
                            stored: seen,
                            measured: seen,
                            members: Vec::new(),
                            sums,
                        });
                        made.push((parent, set, class));
                        class
                    }
                };
                self.class_of[due.cell] = class;
                self.classes[class].members.push(due.cell);
                (set, tied, filled)
            });
            left.push(parent);
            decisions.push(Decision { cell: due.cell, result });
        }
        left.dedup();
        for class in left {
            let of = &self.class_of;
            self.classes[class].members.retain(|cell| of[*cell] == class);
        }
        decisions.sort_by_key(|decision| decision.cell);
        decisions
    }

    /// Lends tokens and sums of a class to the head that policies look at, or takes them back.
    fn lend(&mut self, class: usize) {
        let (class, known) = (&mut self.classes[class], &mut self.head.known);
        std::mem::swap(&mut class.slots, &mut known.slots);
        std::mem::swap(&mut class.sums, &mut known.sums);
    }

    /// Stops working on `cell`.
    pub(super) fn drop_cell(&mut self, cell: usize) {
        self.classes[self.class_of[cell]].members.retain(|member| *member != cell);
    }

    /// A place for `class`: that of one without members, if there is one.
    fn add(&mut self, class: Class) -> usize {
        match self.classes.iter().position(|old| old.members.is_empty()) {
            Some(place) => {
                let left = std::mem::replace(&mut self.classes[place], class);
                lists::give_back(&self.head, left.slots);
                if let Some(mean) = left.sums.and_then(|sums| sums.mean) {
                    lists::give_back(&self.head, mean.into_room());
                }
                place
            }
            None => {
                self.classes.push(class);
                self.classes.len() - 1
            }
        }
    }

    /// Recall at each step, summed over the query heads of the group.
    pub(super) fn recall(&self, cell: usize) -> &[f64] {
        &self.recall[cell * self.steps..(cell + 1) * self.steps]
    }

    /// Relative output errors summed over query heads and sampled steps.
    pub(super) fn error(&self, cell: usize) -> f64 {
        self.errors[cell]
    }

    /// Tokens resident at the end, in slot order.
    pub(super) fn resident(&self, cell: usize) -> &[Pos] {
        &self.classes[self.class_of[cell]].slots
    }

    /// Takes stock of what is resident at the end.
    pub(super) fn close(&mut self) {
        let (ranges, len) =
            (self.head.ranges(), self.classes.iter().map(|class| class.stored).max().unwrap_or(0));
        let candidates: Vec<(f32, u32)> = ranges.iter().copied().zip(0..len).collect();
        let mut is_wide = vec![false; ranges.len()];
        num::top(candidates, wide_count(len)).iter().for_each(|(_, pos)| is_wide[*pos as usize] = true);
        let wide = |class: &Class| class.slots.iter().filter(|pos| is_wide[pos.idx()]).count() as u64;
        self.wide = self.classes.iter().map(wide).collect();
    }

    /// Tokens among the widest sixteenth that are resident at the end; after [`HeadRun::close`].
    pub(super) fn wide_kept(&self, cell: usize) -> u64 {
        self.wide[self.class_of[cell]]
    }
}

/// The place of the sums that the next eviction of `stack` will look at, which has just kept `kept` tokens of the `seen` ones of a sequence of
/// `len`; nothing where its scorer looks at no queries or no period says when that will be: then they could be as many as the answer is long.
fn expected_sums(head: &RecordedHead<'_>, stack: &Stack, kept: usize, seen: u32, len: u32) -> Option<Sums> {
    let period = stack.period().filter(|_| stack.window() > 0)?;
    let next = seen.checked_add(period).filter(|next| *next <= len)?;
    let still_recent = stack.knobs().recent.saturating_sub(period) as usize;
    let mut sums = Sums::from(seen, kept.saturating_sub(still_recent), period as usize * head.group());
    // The rows of a short window are still at hand at the eviction.
    sums.mean = stack
        .mean_attention()
        .filter(|(window, _)| (TILE + 1..=period).contains(window) && sums.cut <= Mean::MOST_SLOTS)
        .map(|(window, normaliser)| Mean::of(next - window..next, normaliser, lists::take(head)));
    Some(sums)
}
