//! A run as a Chrome trace: the JSON that Perfetto and `chrome://tracing` open.
//!
//! A request is a process, a branch a thread. A branch is a duration from its arrival (or fork) to its release, its passes
//! lie within it, evictions are instants, and counters tell the entries and blocks that branches hold, and how many physical blocks that is. Where there is one
//! device, its passes have a row of their own. Times are virtual, in microseconds.

use crate::engine::{Observer, PassKind, Record, Stamp};
use crate::types::{BranchId, ReqId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Writes records as trace events. Equal runs write equal bytes.
#[derive(Debug)]
pub struct ChromeTrace<W> {
    out: W,
    failure: Option<io::Error>,
    is_first: bool,
    /// When the device began its latest pass, where there is one device.
    batch: u64,
    /// What its next pass is for, when it is no batch of prompts and decode steps.
    pass: Option<&'static str>,
    /// Physical blocks held.
    held: u64,
    /// Time of the latest record.
    latest: u64,
    /// For each open branch: when its last pass ended, in nanoseconds, and what it holds.
    open: BTreeMap<(ReqId, BranchId), Open>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Open {
    last: u64,
    entries: u64,
    blocks: u64,
}

impl<W: Write> ChromeTrace<W> {
    /// A trace that is written to `out`; give it a buffered writer. `title` names the run.
    pub fn new(out: W, title: &str) -> Self {
        let mut trace = Self {
            out,
            failure: None,
            is_first: true,
            batch: 0,
            pass: None,
            held: 0,
            latest: 0,
            open: BTreeMap::new(),
        };
        let head = json!({ "title": title, "time": "virtual" });
        trace.put(&format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{head},\"traceEvents\":[\n"));
        trace
    }

    /// Ends the document, flushes, and gives the writer back.
    ///
    /// # Errors
    /// The first failure of any write; nothing was written after it.
    pub fn finish(mut self) -> io::Result<W> {
        // A root that no branch needed is never released.
        let left: Vec<(ReqId, BranchId)> = self.open.keys().copied().collect();
        let latest = self.latest;
        left.into_iter().for_each(|key| self.end(latest, key));
        self.put("\n]}\n");
        match self.failure {
            Some(failure) => Err(failure),
            None => {
                self.out.flush()?;
                Ok(self.out)
            }
        }
    }

    fn put(&mut self, text: &str) {
        if self.failure.is_none()
            && let Err(failure) = self.out.write_all(text.as_bytes())
        {
            self.failure = Some(failure);
        }
    }

    fn event(&mut self, event: &Value) {
        let comma = if self.is_first { "" } else { ",\n" };
        self.is_first = false;
        self.put(&format!("{comma}{event}"));
    }

    fn begin(&mut self, at: u64, (req, branch): (ReqId, BranchId), args: Value) {
        self.open.insert((req, branch), Open { last: at, ..Open::default() });
        if branch.get() == 0 {
            let name = json!({ "name": format!("request {req}") });
            self.event(
                &json!({ "ph": "M", "name": "process_name", "pid": req.get(), "tid": 0, "args": name }),
            );
        }
        let name = if branch.get() == 0 { "root".to_owned() } else { format!("branch {branch}") };
        self.event(&json!({ "ph": "B", "name": name, "cat": "branch", "pid": req.get(), "tid": branch.get(),
            "ts": micros(at), "args": args }));
    }

    fn hold(&mut self, at: u64, held: u64) {
        self.held = held;
        let args = json!({ "blocks": held });
        self.event(
            &json!({ "ph": "C", "name": "physical blocks", "pid": 0, "tid": 0, "ts": micros(at), "args": args }),
        );
    }

    /// A branch that was not forked from another begins with the first that is heard of it.
    fn opened(&mut self, at: u64, key: (ReqId, BranchId)) -> &mut Open {
        if !self.open.contains_key(&key) {
            self.begin(at, key, json!({}));
        }
        self.open.entry(key).or_default()
    }

    /// Notes what a branch holds, and writes the totals.
    fn counters(&mut self, at: u64, key: (ReqId, BranchId), entries: u64, blocks: u64) {
        let open = self.opened(at, key);
        (open.entries, open.blocks) = (entries, blocks);
        let entries: u64 = self.open.values().map(|open| open.entries).sum();
        let blocks: u64 = self.open.values().map(|open| open.blocks).sum();
        let args = json!({ "live entries": entries, "blocks": blocks });
        self.event(
            &json!({ "ph": "C", "name": "KV memory", "pid": 0, "tid": 0, "ts": micros(at), "args": args }),
        );
    }
}

impl<W: Write> Observer for ChromeTrace<W> {
    fn note(&mut self, stamp: Stamp, record: &Record<'_>) {
        let at = stamp.time.get();
        self.latest = at;
        match *record {
            Record::Arrived { req, prompt_len, len } => {
                let args = json!({ "prompt tokens": prompt_len, "tokens": len });
                self.begin(at, (req, BranchId::new(0)), args);
            }
            Record::Forked { req, branch, parent, seen } => {
                self.begin(at, (req, branch), json!({ "parent": parent.get(), "tokens seen": seen.get() }));
            }
            Record::PassDone { req, branch, kind, first, tokens } => {
                let batch = self.batch;
                let open = self.opened(batch.min(at), (req, branch));
                let start = std::mem::replace(&mut open.last, at).max(batch).min(at);
                let name = if kind == PassKind::Prefill { "prefill" } else { "decode" };
                let args = json!({ "first position": first.get(), "tokens": tokens.get() });
                self.event(
                    &json!({ "ph": "X", "name": name, "cat": "pass", "pid": req.get(), "tid": branch.get(),
                    "ts": micros(start), "dur": micros(at - start), "args": args }),
                );
            }
            Record::Stored { req, branch, live_entries, blocks, .. } => {
                self.counters(at, (req, branch), live_entries, blocks);
            }
            Record::Evicted { req, branch, seen, live_entries, blocks, .. } => {
                let args = json!({ "tokens seen": seen.get(), "live entries": live_entries });
                self.event(
                    &json!({ "ph": "i", "s": "t", "name": "eviction", "cat": "eviction", "pid": req.get(),
                    "tid": branch.get(), "ts": micros(at), "args": args }),
                );
                self.counters(at, (req, branch), live_entries, blocks);
            }
            Record::Batched { rows, tokens, until } => {
                self.batch = at;
                let args = json!({ "rows": rows, "tokens": tokens });
                let name = self.pass.take().unwrap_or("pass");
                self.event(&json!({ "ph": "X", "name": name, "cat": "device", "pid": "device", "tid": 0,
                    "ts": micros(at), "dur": micros(until.get().saturating_sub(at)), "args": args }));
            }
            Record::Preempted { req, branch, tokens } => {
                self.instant(at, "preemption", (req, branch), json!({ "tokens": tokens.get() }));
                self.counters(at, (req, branch), 0, 0);
            }
            Record::Verifying { req, branches, layers } => {
                let args = json!({ "branches": branches, "layers": layers });
                self.pass = Some("verification");
                self.instant(at, "verification", (req, BranchId::new(0)), args);
            }
            Record::VerifySkipped { req } => {
                self.instant(at, "verification skipped", (req, BranchId::new(0)), json!({}));
            }
            Record::Selected { req, branch } => {
                self.instant(at, "answer", (req, BranchId::new(0)), json!({ "branch": branch.get() }));
            }
            Record::Allocated { blocks, .. } | Record::Copied { blocks, .. } => {
                self.hold(at, self.held.saturating_add(blocks));
            }
            Record::Freed { blocks, .. } => self.hold(at, self.held.saturating_sub(blocks)),
            Record::Refused { req, .. } => self.end(at, (req, BranchId::new(0))),
            Record::Released { req, branch } => self.end(at, (req, branch)),
            _ => {}
        }
    }
}

impl<W: Write> ChromeTrace<W> {
    fn instant(&mut self, at: u64, name: &str, (req, branch): (ReqId, BranchId), args: Value) {
        self.event(&json!({ "ph": "i", "s": "t", "name": name, "cat": name, "pid": req.get(),
            "tid": branch.get(), "ts": micros(at), "args": args }));
    }

    fn end(&mut self, at: u64, key: (ReqId, BranchId)) {
        if self.open.remove(&key).is_none() {
            return;
        }
        let (req, branch) = (key.0.get(), key.1.get());
        self.event(&json!({ "ph": "E", "cat": "branch", "pid": req, "tid": branch, "ts": micros(at) }));
        let entries: u64 = self.open.values().map(|open| open.entries).sum();
        let blocks: u64 = self.open.values().map(|open| open.blocks).sum();
        let args = json!({ "live entries": entries, "blocks": blocks });
        self.event(
            &json!({ "ph": "C", "name": "KV memory", "pid": 0, "tid": 0, "ts": micros(at), "args": args }),
        );
    }
}

/// Nanoseconds as the microseconds that the format wants.
#[expect(clippy::cast_precision_loss, reason = "virtual times stay far below 2^53")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}
