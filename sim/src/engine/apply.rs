//! The only code that changes the ledger and the branch tree.

use super::handle::{Effect, State};
use super::{BranchError, EngineError, EventKey, EventQueue, Observer, Pass, Record, Stamp};
use crate::ledger::{self, BranchKey, Change, Kept, LedgerError};
use crate::types::{BranchId, ReqId, Tokens};

/// Where effects land.
pub(super) struct Sink<'a, 'w> {
    pub(super) state: &'a mut State<'w>,
    pub(super) queue: &'a mut EventQueue,
    pub(super) observer: &'a mut dyn Observer,
    pub(super) key: EventKey,
}

impl Sink<'_, '_> {
    /// Makes one change and reports it.
    pub(super) fn apply(&mut self, effect: Effect) -> Result<(), EngineError> {
        match effect {
            Effect::Schedule { time, event } => self.queue.push(time, event).map(|_| ()),
            Effect::Report(record) => {
                self.note(&record);
                Ok(())
            }
            Effect::Admit(req) => self.admit(req),
            Effect::Wait(req) => {
                self.state.admission.wait(req);
                Ok(())
            }
            Effect::Refuse(req) => {
                self.state.refused.push(req);
                self.state.settled += 1;
                Ok(())
            }
            Effect::Store { branch, pass } => self.store(branch, pass),
            Effect::Evict(branch) => self.evict(branch),
            Effect::Fork { parent, child } => self.fork(parent, child),
            Effect::Release(branch) => self.release(branch),
            Effect::Settle(req) => {
                self.state.admission.give_back(req);
                self.state.settled += 1;
                Ok(())
            }
            Effect::Finish => self.finish(),
        }
    }

    fn note(&mut self, record: &Record<'_>) {
        self.observer.note(Stamp { time: self.key.time, phase: self.key.phase }, record);
    }

    fn note_change(&mut self, BranchKey { req, branch }: BranchKey, change: Change) {
        let Change { allocated, copied, shared, freed } = change;
        for (blocks, record) in [
            (allocated, Record::Allocated { req, branch, blocks: allocated }),
            (copied, Record::Copied { req, branch, blocks: copied }),
            (shared, Record::Shared { req, branch, blocks: shared }),
            (freed, Record::Freed { req, branch, blocks: freed }),
        ] {
            if blocks > 0 {
                self.note(&record);
            }
        }
    }

    fn admit(&mut self, req: ReqId) -> Result<(), EngineError> {
        let root = BranchKey::root(req);
        let Some(&request) = self.state.requests.get(&req) else {
            return self.branch(Err(BranchError::Unknown { branch: root }));
        };
        let planted = self.state.tree.plant(request);
        self.branch(planted)?;
        let opened = self.state.ledger.open(root);
        self.ledger(opened)?;
        let reserved_blocks = self.state.admission.reserve(req);
        self.note(&Record::Admitted { req, reserved_blocks });
        Ok(())
    }

    fn store(&mut self, at: BranchKey, pass: Pass) -> Result<(), EngineError> {
        let change = self.state.ledger.append(at, pass.tokens.get());
        let change = self.ledger(change)?;
        let advanced = self.state.tree.advance(at, pass.tokens.get());
        self.branch(advanced)?;
        self.note_change(at, change);
        let occupancy = self.state.ledger.occupancy(at);
        let occupancy = self.ledger(occupancy)?;
        self.note(&Record::Stored {
            req: at.req,
            branch: at.branch,
            kind: pass.kind,
            seen: Tokens::new(pass.first.get() + pass.tokens.get()),
            live_entries: occupancy.live_entries,
            blocks: occupancy.blocks,
        });
        Ok(())
    }

    fn evict(&mut self, at: BranchKey) -> Result<(), EngineError> {
        let taken = self.state.tree.take_eviction(at);
        let Some(eviction) = self.branch(taken)? else {
            let detail = format!("{at} plans none");
            return Err(self.invariant("an eviction that is due is planned", detail));
        };
        let change = self.state.ledger.keep_only(at, &eviction.kept);
        let change = self.ledger(change)?;
        self.note_change(at, change);
        let occupancy = self.state.ledger.occupancy(at);
        let occupancy = self.ledger(occupancy)?;
        let computed;
        let kept = match &eviction.kept {
            Kept::Sets(sets) => sets.as_slice(),
            lists @ Kept::Positions(_) => {
                computed = lists.sets();
                &computed
            }
        };
        self.note(&Record::Evicted {
            req: at.req,
            branch: at.branch,
            seen: Tokens::new(eviction.seen),
            live_entries: occupancy.live_entries,
            blocks: occupancy.blocks,
            kept,
        });
        Ok(())
    }

    fn fork(&mut self, parent: BranchKey, child: BranchId) -> Result<(), EngineError> {
        let at = BranchKey { req: parent.req, branch: child };
        let forked = self.state.tree.fork(parent, child);
        self.branch(forked)?;
        let change = self.state.ledger.fork(parent, at);
        let change = self.ledger(change)?;
        let seen = self.state.ledger.seen(at);
        let seen = Tokens::new(self.ledger(seen)?);
        self.note(&Record::Forked { req: at.req, branch: child, parent: parent.branch, seen });
        self.note_change(at, change);
        Ok(())
    }

    fn release(&mut self, at: BranchKey) -> Result<(), EngineError> {
        let dropped = self.state.tree.drop_branch(at);
        self.branch(dropped)?;
        let change = self.state.ledger.close(at);
        let change = self.ledger(change)?;
        self.note_change(at, change);
        self.note(&Record::Released { req: at.req, branch: at.branch });
        Ok(())
    }

    /// Final invariants: everything that was allocated is free again, and nobody runs.
    fn finish(&mut self) -> Result<(), EngineError> {
        let checked = ledger::check(&self.state.ledger);
        self.ledger(checked)?;
        let pool = self.state.ledger.pool();
        let (held, allocated_blocks) = (pool.held(), pool.allocated());
        if held != 0 || !self.state.tree.is_empty() {
            let detail = format!("{held} blocks are held");
            return Err(self.invariant("nothing is left at the end", detail));
        }
        let refused = u32::try_from(self.state.refused.len()).unwrap_or(u32::MAX);
        self.note(&Record::Ended { refused, allocated_blocks });
        Ok(())
    }

    fn invariant(&self, rule: &'static str, detail: String) -> EngineError {
        EngineError::Invariant { rule, key: self.key, detail }
    }

    fn ledger<T>(&self, result: Result<T, LedgerError>) -> Result<T, EngineError> {
        result.map_err(|source| EngineError::at(self.key, source))
    }

    fn branch<T>(&self, result: Result<T, BranchError>) -> Result<T, EngineError> {
        result.map_err(|source| EngineError::Branch { key: self.key, source })
    }
}
