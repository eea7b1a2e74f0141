//! Facts tables turned into checked values. A table that passed has every row it should have, in order.

use super::TraceError;
use super::facts_schema::{Kind, LENS, LENS_TOP, TOKENS, columns};
use super::manifest::SequenceInfo;
use super::source::LensRow;
use crate::table::Table;
use crate::types::{LayerIdx, ModelShape, Pos, TokenId};
use std::path::Path;

/// Lens facts of one sequence: what every replay needs, and the columns beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct LensTable {
    /// The facts, by position, then by layer.
    pub rows: Vec<LensRow>,
    /// Log-sum-exp of the logits with the final norm, `[row]`.
    pub logsumexp: Vec<f32>,
    /// Log-sum-exp of the logits without the final norm, `[row]`; nothing where the lens did not look at them.
    pub raw_logsumexp: Vec<Option<f32>>,
    /// The largest logit, with the final norm, `[row]`.
    pub top1_logit: Vec<f32>,
}

/// Rows of a facts table whose columns are those of the format, absent only where that is allowed.
pub(crate) struct Facts<'a> {
    /// What the rows belong to, for messages.
    part: &'static str,
    table: &'a Table,
    path: &'a Path,
}

impl<'a> Facts<'a> {
    pub(crate) fn check(table: &'a Table, inside: &str, path: &'a Path) -> Result<Self, TraceError> {
        let columns = columns(inside);
        let part = columns.first().map_or("table", |column| match column.name {
            "seq" => "sequence",
            name => name,
        });
        let facts = Self { part, table, path };
        for column in columns {
            fn absent<T>(values: &[Option<T>]) -> Option<usize> {
                values.iter().position(Option::is_none)
            }
            let absent = match column.kind {
                Kind::Int => table.int(column.name).map(absent),
                Kind::Real => table.real(column.name).map(absent),
                Kind::Bool => table.bool(column.name).map(absent),
                Kind::Text => table.text(column.name).map(absent),
            };
            if let Some(row) = absent.map_err(TraceError::table)?.filter(|_| !column.optional) {
                return Err(facts.bad(column.name, row, "nothing", "a value"));
            }
        }
        Ok(facts)
    }

    pub(crate) fn bad(
        &self,
        column: &str,
        row: usize,
        found: impl ToString,
        accepted: impl Into<String>,
    ) -> TraceError {
        TraceError::malformed(self.path, format!("{column}, row {row} of the {}", self.part), found, accepted)
    }

    pub(crate) fn int(&self, column: &str, row: usize) -> i64 {
        self.table.int(column).ok().and_then(|values| values[row]).unwrap_or_default()
    }

    pub(crate) fn bool(&self, column: &str, row: usize) -> bool {
        self.optional_bool(column, row).unwrap_or_default()
    }

    pub(crate) fn optional_bool(&self, column: &str, row: usize) -> Option<bool> {
        self.table.bool(column).ok().and_then(|values| values[row])
    }

    pub(crate) fn text(&self, column: &str, row: usize) -> Option<&'a str> {
        self.table.text(column).ok().and_then(|values| values[row].as_deref())
    }

    /// A number that counts or names something.
    pub(crate) fn count(&self, column: &str, row: usize) -> Result<u32, TraceError> {
        let found = self.int(column, row);
        u32::try_from(found).map_err(|_| self.bad(column, row, found, "0 to 2^32 - 1"))
    }

    /// As [`Facts::count`], or nothing.
    pub(crate) fn optional_count(&self, column: &str, row: usize) -> Result<Option<u32>, TraceError> {
        let is_there = self.table.int(column).is_ok_and(|values| values[row].is_some());
        if is_there { self.count(column, row).map(Some) } else { Ok(None) }
    }

    /// A real between two bounds, with a slack of 10⁻³ for sums made in binary32.
    pub(crate) fn within(&self, column: &str, row: usize, low: f32, high: f32) -> Result<f32, TraceError> {
        let value = self.real(column, row)?;
        if (low - 1e-3..=high + 1e-3).contains(&value) {
            Ok(value)
        } else {
            Err(self.bad(column, row, value, format!("{low} to {high}")))
        }
    }

    /// A real of at least 0, with a slack of 10⁻³.
    pub(crate) fn at_least_zero(&self, column: &str, row: usize) -> Result<f32, TraceError> {
        self.within(column, row, 0.0, f32::MAX)
    }

    /// A real that is stored wider than it was recorded.
    pub(crate) fn real(&self, column: &str, row: usize) -> Result<f32, TraceError> {
        let stored = self.table.real(column).ok().and_then(|values| values[row]).unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "compared with the stored value right away")]
        let value = stored as f32;
        if f64::from(value).to_bits() == stored.to_bits() {
            Ok(value)
        } else {
            Err(self.bad(column, row, stored, "a binary32 value"))
        }
    }

    /// A real that every row has, or none.
    fn real_if(&self, is_there: bool, column: &str, row: usize) -> Result<Option<f32>, TraceError> {
        let found = self.table.real(column).is_ok_and(|values| values[row].is_some());
        match (found, is_there) {
            (true, true) => self.real(column, row).map(Some),
            (false, false) => Ok(None),
            (true, false) => Err(self.bad(column, row, "a value", "nothing: the manifest does not name it")),
            (false, true) => Err(self.bad(column, row, "nothing", "a value")),
        }
    }

    pub(crate) fn expect(
        &self,
        column: &str,
        row: usize,
        expected: impl Into<i64>,
    ) -> Result<(), TraceError> {
        let (found, expected) = (self.int(column, row), expected.into());
        if found == expected { Ok(()) } else { Err(self.bad(column, row, found, expected.to_string())) }
    }

    pub(crate) fn token(&self, column: &str, row: usize, shape: &ModelShape) -> Result<TokenId, TraceError> {
        let found = self.int(column, row);
        u32::try_from(found)
            .ok()
            .filter(|&id| id < shape.vocab)
            .map(TokenId::new)
            .ok_or_else(|| self.bad(column, row, found, format!("an id below {}", shape.vocab)))
    }
}

pub(crate) fn tokens(
    table: &Table,
    info: &SequenceInfo,
    shape: &ModelShape,
    path: &Path,
) -> Result<Vec<TokenId>, TraceError> {
    let facts = Facts::check(table, TOKENS, path)?;
    (0..info.len)
        .zip(0..table.rows())
        .map(|(pos, row)| {
            facts.expect("seq", row, info.seq)?;
            facts.expect("pos", row, pos)?;
            let is_prompt = pos < info.prompt_len;
            if facts.bool("is_prompt", row) != is_prompt {
                return Err(facts.bad("is_prompt", row, !is_prompt, is_prompt.to_string()));
            }
            facts.token("token", row, shape)
        })
        .collect()
}

pub(crate) fn lens(
    table: &Table,
    info: &SequenceInfo,
    shape: &ModelShape,
    has_raw: bool,
    path: &Path,
) -> Result<LensTable, TraceError> {
    let facts = Facts::check(table, LENS, path)?;
    let layers = usize::from(shape.layers);
    let mut lens = LensTable {
        rows: Vec::with_capacity(table.rows()),
        logsumexp: Vec::with_capacity(table.rows()),
        raw_logsumexp: Vec::with_capacity(table.rows()),
        top1_logit: Vec::with_capacity(table.rows()),
    };
    let mut previous = -1;
    for first in (0..table.rows()).step_by(layers) {
        let pos = facts.int("pos", first);
        let Some(known) = u32::try_from(pos).ok().filter(|&known| pos > previous && known < info.len) else {
            return Err(facts.bad(
                "pos",
                first,
                pos,
                format!("more than {previous}, less than {}", info.len),
            ));
        };
        previous = pos;
        let last = facts.token("top1_token", (first + layers - 1).min(table.rows() - 1), shape)?;
        for (layer, row) in (0..shape.layers).zip(first..table.rows()) {
            facts.expect("seq", row, info.seq)?;
            facts.expect("pos", row, pos)?;
            facts.expect("layer", row, layer)?;
            let top1 = facts.token("top1_token", row, shape)?;
            let agrees_with_last = facts.bool("agrees_with_last", row);
            if agrees_with_last != (top1 == last) {
                return Err(facts.bad("agrees_with_last", row, agrees_with_last, (top1 == last).to_string()));
            }
            lens.rows.push(LensRow {
                pos: Pos::new(known),
                layer: LayerIdx::new(layer),
                entropy_nats: facts.real("entropy_nats", row)?,
                raw_entropy_nats: facts.real_if(has_raw, "raw_entropy_nats", row)?,
                top1,
                top1_prob: facts.real("top1_prob", row)?,
                agrees_with_last,
            });
            lens.logsumexp.push(facts.real("logsumexp", row)?);
            lens.raw_logsumexp.push(facts.real_if(has_raw, "raw_logsumexp", row)?);
            lens.top1_logit.push(facts.real("top1_logit", row)?);
        }
    }
    Ok(lens)
}

pub(crate) fn lens_top(
    table: &Table,
    info: &SequenceInfo,
    lens: &LensTable,
    ranks: u16,
    shape: &ModelShape,
    path: &Path,
) -> Result<Vec<Vec<(TokenId, f32)>>, TraceError> {
    let facts = Facts::check(table, LENS_TOP, path)?;
    let mut row = 0..table.rows();
    lens.rows
        .iter()
        .zip(&lens.top1_logit)
        .map(|(fact, &top1_logit)| {
            let mut top = Vec::with_capacity(usize::from(ranks));
            for (rank, row) in (0..ranks).zip(row.by_ref()) {
                facts.expect("seq", row, info.seq)?;
                facts.expect("pos", row, fact.pos.get())?;
                facts.expect("layer", row, fact.layer.get())?;
                facts.expect("rank", row, rank)?;
                let entry = (facts.token("token", row, shape)?, facts.real("logit", row)?);
                let above = top.last().map_or(top1_logit, |&(_, logit): &(TokenId, f32)| logit);
                if entry.1 > above {
                    return Err(facts.bad("logit", row, entry.1, format!("at most {above}")));
                }
                top.push(entry);
            }
            match top.first() {
                Some(&first) if first == (fact.top1, top1_logit) => Ok(top),
                other => {
                    let found = format!("{other:?} at position {}, layer {}", fact.pos, fact.layer);
                    let accepted = format!("({}, {top1_logit}) first, as in {LENS}", fact.top1);
                    Err(TraceError::malformed(path, "rank 0", found, accepted))
                }
            }
        })
        .collect()
}
