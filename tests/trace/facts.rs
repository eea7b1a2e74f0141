//! Facts that cannot be true, in traces whose digests are all right.

use super::support::Folder;
use kvlab_sim::table::{Column, Table, read_parquet, write_parquet};
use kvlab_sim::trace::verify;
use std::fs;

/// Edits one column of a facts table, seals the trace, and expects that it is refused with these words.
fn refused_fact(words: &str, inside: &str, column: &str, edit: impl FnOnce(&mut Column)) {
    let folder = Folder::with_trace();
    let table = read_parquet(&folder.path(inside)).unwrap();
    let mut edit = Some(edit);
    let mut edited = Table::new();
    for (name, values) in table.names().iter().zip(table.columns()) {
        let mut values = values.clone();
        if let Some(edit) = edit.take_if(|_| name == column) {
            edit(&mut values);
        }
        edited.push(name, values).unwrap();
    }
    assert!(edit.is_none(), "no column {column}");
    write_parquet(&edited, &folder.path(inside)).unwrap();
    folder.replace(inside, &fs::read(folder.path(inside)).unwrap());
    let error = verify(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
}

fn set_int(row: usize, value: impl Into<Option<i64>>) -> impl FnOnce(&mut Column) {
    let value = value.into();
    move |column| match column {
        Column::Int(values) => values[row] = value,
        other => panic!("{}", other.kind()),
    }
}

fn set_real(row: usize, value: f64) -> impl FnOnce(&mut Column) {
    move |column| match column {
        Column::Real(values) => values[row] = Some(value),
        other => panic!("{}", other.kind()),
    }
}

#[test]
fn facts_agree_with_the_manifest_and_with_each_other() {
    let (tokens, lens, top) = ("facts/tokens.parquet", "facts/lens.parquet", "facts/lens_top.parquet");
    refused_fact("token, row 2", tokens, "token", set_int(2, 40));
    refused_fact("token, row 2", tokens, "token", set_int(2, -1));
    refused_fact("token, row 2 of the sequence: found nothing", tokens, "token", set_int(2, None));
    refused_fact("seq, row 0 of the sequence: found 0, accepted: 1", tokens, "seq", set_int(9, 0));
    refused_fact("pos, row 3 of the sequence: found 2, accepted: 3", tokens, "pos", set_int(3, 2));
    refused_fact("is_prompt, row 3", tokens, "is_prompt", |column| {
        if let Column::Bool(values) = column {
            values[3] = Some(true);
        }
    });
    refused_fact("column `token` holds text values, not int", tokens, "token", |column| {
        *column = Column::Text(vec![None; column.len()]);
    });
    // Facts of sequence 0 start at position 2, with two layers each.
    refused_fact("pos, row 2 of the sequence: found 2, accepted: more than 2", lens, "pos", |column| {
        set_int(2, 2)(column);
        set_int(3, 2)(column);
    });
    refused_fact("pos, row 3 of the sequence: found 4, accepted: 3", lens, "pos", set_int(3, 4));
    refused_fact("pos, row 12", lens, "pos", set_int(12, 9));
    refused_fact("layer, row 1 of the sequence: found 0, accepted: 1", lens, "layer", set_int(1, 0));
    refused_fact("agrees_with_last, row 1", lens, "agrees_with_last", |column| {
        if let Column::Bool(values) = column {
            values[1] = Some(false);
        }
    });
    refused_fact("entropy_nats, sequence 0, position 2, layer 0", lens, "entropy_nats", set_real(0, -0.125));
    // ln 40 = 3.69.
    refused_fact("entropy_nats, sequence 0, position 2, layer 1", lens, "entropy_nats", set_real(1, 3.75));
    refused_fact("raw_entropy_nats", lens, "raw_entropy_nats", set_real(1, 3.75));
    refused_fact("accepted: a binary32 value", lens, "entropy_nats", set_real(0, 0.1));
    refused_fact("top1_prob", lens, "top1_prob", set_real(0, 0.875));
    refused_fact("rank 0", lens, "top1_logit", |column| {
        set_real(0, 100.0)(column);
    });
    refused_fact("rank 0", top, "token", |column| {
        if let Column::Int(values) = column {
            values[0] = values[0].map(|token| (token + 1) % 40);
        }
    });
    refused_fact("accepted: a token that no earlier rank has", top, "token", |column| {
        if let Column::Int(values) = column {
            values[1] = values[0];
        }
    });
    refused_fact("rank, row 1", top, "rank", set_int(1, 0));
    refused_fact("logit, row 1", top, "logit", set_real(1, 1000.0));
}

#[test]
fn an_entropy_that_its_logits_rule_out_is_refused() {
    // Within [0, ln 40], but not with these probabilities.
    refused_fact("entropy_nats", "facts/lens.parquet", "entropy_nats", |column| {
        if let Column::Real(values) = column {
            let last = values.len() - 1;
            values[last] = Some(0.0);
        }
    });
}
