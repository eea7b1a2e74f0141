//! The laws of attend and store policies, which decide on no eviction.
//!
//! | law | what it asks |
//! |---|---|
//! | A1 | slots are resident ones, ascending, a list for each query head of the group |
//! | A2 | whoever takes the budget attends to no more tokens than it in whole blocks, or than its least number of blocks |
//! | S1 | a representation for each resident token |
//! | S2 | what is read back is finite, as wide as the vector, and half a step away at most, up to the rounding of half floats |
//!
//! P4 (the same question), P12 (ties and extremes), P13 (declared needs) and P15 (head symmetry) are asked of both.

use super::cases::{Case, first, rope};
use super::{Options, PlainHead, Report, WatchedHead};
use crate::num;
use crate::policy::attend::{Attend, AttendView, Attended};
use crate::policy::store::{Precision, Store, StoreView, Stored};
use crate::policy::{At, HeadData, Law, PolicyError};
use crate::replay::{HeadModel, RecordedHead};
use crate::trace::TraceSource;
use crate::types::{KvHead, LayerIdx, Pos, SeqIdx};

/// Positions that A2 allows beyond the budget: a block or page may be this large, and three of them may be the least.
const SLACK: usize = 3 * 64;

/// Checks an attend policy.
#[must_use]
pub fn check_attend(attend: &dyn Attend, options: Options) -> Report {
    let mut report = Report { subject: attend.spec().id.to_owned(), ..Report::default() };
    each_case(options, &mut report, &mut |head, resident, draws, case, report| {
        let budget = 1 + u32::try_from(draws.bits() % 40).unwrap_or(0);
        let ask = |data: &dyn HeadData, head: u16| {
            let (query, seen) = (resident[resident.len() - 1], resident[resident.len() - 1].get() + 1);
            let at = At { head: KvHead::new(head), ..at(seen) };
            attend.attend(&AttendView { at, data, resident, query, budget })
        };
        let watched = WatchedHead::new(head);
        let found = ask(&watched, 0);
        report.count("A1");
        match &found {
            Ok(Attended::All) => {}
            Ok(Attended::Slots(lists)) => {
                let is_list = |slots: &Vec<usize>| {
                    slots.windows(2).all(|pair| pair[0] < pair[1])
                        && slots.last().is_some_and(|last| *last < resident.len())
                };
                if lists.len() != head.group() || !lists.iter().all(is_list) {
                    report.find("A1", case, format!("{lists:?} of {} resident tokens", resident.len()));
                }
                report.count("A2");
                let most = lists.iter().map(Vec::len).max().unwrap_or(0);
                if attend.takes_budget() && most > budget as usize + SLACK {
                    report.find("A2", case, format!("{most} tokens under a budget of {budget}"));
                }
            }
            Err(error) => report.find("A1", case, error.to_string()),
        }
        common(attend.spec(), &watched, found == ask(head, 0), found == ask(head, 1), case, report);
    });
    report
}

/// Checks a store policy.
#[must_use]
pub fn check_store(store: &dyn Store, options: Options) -> Report {
    let mut report = Report { subject: store.spec().id.to_owned(), ..Report::default() };
    each_case(options, &mut report, &mut |head, resident, _, case, report| {
        let held = vec![Stored::EXACT; resident.len()];
        let ask = |data: &dyn HeadData| store.store(&StoreView { data, resident, held: &held });
        let watched = WatchedHead::new(head);
        let found = ask(&watched);
        report.count("S1");
        match &found {
            Ok(stored) if stored.len() == resident.len() => {
                report.count("S2");
                for (pos, Stored { key, value }) in resident.iter().zip(stored) {
                    for (precision, vector) in [(key, head.key(*pos)), (value, head.value(*pos))] {
                        if let Some(detail) = read_back(*precision, vector) {
                            report.find("S2", case, format!("position {pos}: {detail}"));
                        }
                    }
                }
            }
            Ok(stored) => report.find("S1", case, format!("{} of {} tokens", stored.len(), resident.len())),
            Err(error) => report.find("S1", case, error.to_string()),
        }
        common(store.spec(), &watched, found == ask(head), true, case, report);
    });
    report
}

/// What is wrong with what is read back of `vector`, if anything is. Half floats end at 65504.
fn read_back(precision: Precision, vector: &[f32]) -> Option<String> {
    let read = precision.read_back(vector);
    let is_in_range = vector.iter().all(|x| x.abs() < 6e4);
    if read.len() != vector.len() || (is_in_range && read.iter().any(|x| !x.is_finite())) {
        return Some(format!("{precision:?} reads {read:?} of {vector:?}"));
    }
    let Precision::Int { bits, group } = precision else { return None };
    let channels = vector.chunks(group.into()).zip(read.chunks(group.into()));
    let is_far = |(made, read): (&[f32], &[f32])| {
        let largest = made.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let most = 0.5 * num::range(made) / (f32::from(bits).exp2() - 1.0) + largest / 256.0 + 1e-6;
        made.iter().zip(read).any(|(made, read)| (made - read).abs() > most)
    };
    (is_in_range && channels.into_iter().any(is_far))
        .then(|| format!("{precision:?} reads {read:?} of {vector:?}"))
}

fn at(seen: u32) -> At {
    let (seq, layer, head) = (SeqIdx::new(0), LayerIdx::new(5), KvHead::new(0));
    At { seq, layer, head, eviction: 0, seen, prompt_len: seen.min(3) }
}

fn common(
    spec: &crate::policy::PolicySpec,
    watched: &WatchedHead<'_>,
    is_repeated: bool,
    is_symmetric: bool,
    case: u32,
    report: &mut Report,
) {
    report.count("P4");
    if !is_repeated {
        report.find("P4", case, "the same question got another answer".to_owned());
    }
    report.count("P13");
    if watched.read().and(spec.needs) != spec.needs {
        let (read, declared) = (watched.read().words(), spec.needs.words());
        report.find("P13", case, format!("`{read}` is read, `{declared}` declared"));
    }
    if spec.laws.contains(&Law::HeadSymmetric) {
        report.count("P15");
        if !is_symmetric {
            report.find("P15", case, "another head number gets another answer".to_owned());
        }
    }
}

type Ask<'a> = &'a mut dyn FnMut(&dyn HeadData, &[Pos], &mut Case, u32, &mut Report);

/// Vectors of a generated trace, and rows of ties, zeros and spikes.
fn each_case(options: Options, report: &mut Report, ask: Ask<'_>) {
    for case in 0..options.cases {
        let mut draws = Case::new(options.seed, case, "selection");
        if let Err(error) = on_trace(&mut draws, case, report, ask) {
            report.find("P4", case, error);
        }
        report.count("P12");
        let base = [0.0, 1.0, 1e-40, 3e3][case as usize % 4];
        let len = 1 + draws.bits() % 30;
        let mut rows = vec![vec![base; 4]; usize::try_from(len).unwrap_or(1)];
        let spike = usize::try_from(draws.bits() % len).unwrap_or(0);
        rows[spike] = vec![base, -base, 5e4, 0.0];
        let head = PlainHead {
            queries: vec![rows.clone(), rows.clone()],
            keys: rows.clone(),
            values: rows.clone(),
            rope: rope(4),
            output_weights: Vec::new(),
        };
        let resident: Vec<Pos> = (0..).map(Pos::new).take(rows.len()).collect();
        ask(&head, &resident, &mut draws, case, report);
    }
}

fn on_trace(draws: &mut Case, case: u32, report: &mut Report, ask: Ask<'_>) -> Result<(), String> {
    let trace = draws.trace().map_err(|error| error.to_string())?;
    let (meta, tensors) = first(&trace).map_err(|error| error.to_string())?;
    let (layer, head) = (LayerIdx::new(0), KvHead::new(0));
    let recorded = RecordedHead::new(&tensors, trace.shape(), layer, head, meta.len)
        .map_err(|error: crate::replay::ReplayError| error.to_string())?;
    let rope = rope(trace.shape().head_dim);
    let recorded = recorded.with_model(HeadModel { rope: rope.as_ref(), output_weights: Vec::new() });
    let resident: Vec<Pos> = (0..meta.len).map(Pos::new).collect();
    ask(&recorded, &resident, draws, case, report);
    Ok(())
}

/// Every registered attend and store policy that can be built without more than its defaults.
///
/// # Errors
/// A policy that cannot be built for another reason than a refusal.
pub fn check_selections(options: Options) -> Result<Vec<Report>, PolicyError> {
    let raw = crate::policy::RawParams::default();
    let mut reports = Vec::new();
    for entry in crate::policy::registry::ATTENDS {
        match (entry.build)(&raw) {
            Ok(attend) => reports.push(check_attend(attend.as_ref(), options)),
            Err(PolicyError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for entry in crate::policy::registry::STORES {
        reports.push(check_store((entry.build)(&raw)?.as_ref(), options));
    }
    Ok(reports)
}
