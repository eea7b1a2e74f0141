//! The ledger against a naive model: after any sequence of changes both hold the same.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvlab_sim::ledger::{BranchKey, Kept, KeptSet, Ledger, LedgerError, Tracking, check};
use kvlab_sim::types::{BranchId, KvHead, LayerIdx, ModelShape, Pos, ReqId};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use std::collections::{BTreeMap, BTreeSet};

const SHAPE: ModelShape =
    ModelShape { layers: 2, q_heads: 2, kv_heads: 2, head_dim: 4, hidden: 8, vocab: 16 };
const STREAMS: usize = 4;
const BLOCK: usize = 4;
const CAPACITY: u32 = 48;

fn key(branch: u32) -> BranchKey {
    BranchKey { req: ReqId::new(1), branch: BranchId::new(branch) }
}

fn place(stream: usize) -> (LayerIdx, KvHead) {
    let index = |value: usize| u16::try_from(value).unwrap();
    (LayerIdx::new(index(stream / 2)), KvHead::new(index(stream % 2)))
}

fn positions(list: &[u32]) -> Vec<Pos> {
    list.iter().copied().map(Pos::new).collect()
}

#[derive(Clone, Debug)]
enum Change {
    Open(u32),
    Append { branch: u32, tokens: u32 },
    Keep { branch: u32, salt: u32, share: u32 },
    Fork { parent: u32, child: u32 },
    Close(u32),
}

/// One (layer, KV head) of a branch. A block is a name; who has the same name shares the block.
#[derive(Clone, Debug, Default, PartialEq)]
struct ModelStream {
    entries: Vec<u32>,
    blocks: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelBranch {
    seen: u32,
    streams: Vec<ModelStream>,
}

/// All branches, and the next unused block name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    branches: BTreeMap<u32, ModelBranch>,
    next_block: u64,
}

impl Model {
    fn holders(&self, block: u64) -> usize {
        let all =
            self.branches.values().flat_map(|branch| branch.streams.iter().flat_map(|stream| &stream.blocks));
        all.filter(|&&held| held == block).count()
    }

    fn held(&self) -> BTreeSet<u64> {
        self.branches.values().flat_map(|b| b.streams.iter().flat_map(|s| s.blocks.iter().copied())).collect()
    }

    fn fits(&self) -> bool {
        self.held().len() <= CAPACITY as usize
    }

    fn fresh(&mut self) -> u64 {
        self.next_block += 1;
        self.next_block
    }

    /// Replaces the block at `index` of a stream by a new one, when others hold it too.
    fn write(&mut self, branch: u32, stream: usize, index: usize) {
        let block = self.branches[&branch].streams[stream].blocks[index];
        if self.holders(block) > 1 {
            let copy = self.fresh();
            self.branches.get_mut(&branch).unwrap().streams[stream].blocks[index] = copy;
        }
    }

    fn append(&mut self, branch: u32, tokens: u32) {
        for stream in 0..STREAMS {
            for _ in 0..tokens {
                let at = self.branches[&branch].streams[stream].entries.len();
                if at.is_multiple_of(BLOCK) {
                    let fresh = self.fresh();
                    self.branches.get_mut(&branch).unwrap().streams[stream].blocks.push(fresh);
                } else {
                    self.write(branch, stream, at / BLOCK);
                }
                let state = self.branches.get_mut(&branch).unwrap();
                let pos = state.seen + u32::try_from(state.streams[stream].entries.len() - at).unwrap();
                state.streams[stream].entries.push(pos);
                state.seen += 1;
            }
            self.branches.get_mut(&branch).unwrap().seen -= tokens;
        }
        self.branches.get_mut(&branch).unwrap().seen += tokens;
    }

    fn keep(&mut self, branch: u32, kept: &[Vec<u32>]) {
        for (stream, list) in kept.iter().enumerate() {
            let old = self.branches[&branch].streams[stream].entries.clone();
            let blocks = list.len().div_ceil(BLOCK);
            let state = &mut self.branches.get_mut(&branch).unwrap().streams[stream];
            state.entries.clone_from(list);
            state.blocks.truncate(blocks);
            for index in 0..blocks {
                let slots = index * BLOCK..((index + 1) * BLOCK).min(list.len());
                // Entries of one block are written together: from the first slot that changed, everything moves.
                if old[..slots.end] != list[..slots.end] {
                    self.write(branch, stream, index);
                }
            }
        }
    }

    /// A pseudo-random choice of what stays, in position order for even salts and shuffled for odd ones.
    fn choice(&self, branch: u32, salt: u32, share: u32) -> Vec<Vec<u32>> {
        let rank = |stream: usize, pos: u32| {
            let mixed = (u64::from(salt) << 32 | u64::from(pos) << 4 | stream as u64)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
        };
        let streams = self.branches[&branch].streams.iter().enumerate();
        let choose = |(stream, state): (usize, &ModelStream)| {
            let mut list = state.entries.clone();
            list.retain(|&pos| rank(stream, pos) % 100 < u64::from(share));
            if salt % 2 == 1 {
                list.sort_by_key(|&pos| rank(stream, pos));
            }
            list
        };
        streams.map(choose).collect()
    }
}

struct Reference;

impl ReferenceStateMachine for Reference {
    type State = Model;
    type Transition = Change;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::default()).boxed()
    }

    fn transitions(_state: &Model) -> BoxedStrategy<Change> {
        let branch = || 0..4u32;
        prop_oneof![
            2 => branch().prop_map(Change::Open),
            6 => (branch(), 0..11u32).prop_map(|(branch, tokens)| Change::Append { branch, tokens }),
            4 => (branch(), 0..100u32, 0..=100u32).prop_map(|(branch, salt, share)| Change::Keep { branch, salt, share }),
            3 => (branch(), branch()).prop_map(|(parent, child)| Change::Fork { parent, child }),
            1 => branch().prop_map(Change::Close),
        ]
        .boxed()
    }

    fn preconditions(state: &Model, change: &Change) -> bool {
        let there = |branch: &u32| state.branches.contains_key(branch);
        match change {
            Change::Open(branch) => !there(branch),
            Change::Append { branch, .. } | Change::Keep { branch, .. } | Change::Close(branch) => {
                there(branch)
            }
            Change::Fork { parent, child } => there(parent) && !there(child),
        }
    }

    fn apply(state: Model, change: &Change) -> Model {
        let mut next = state.clone();
        match *change {
            Change::Open(branch) => {
                let streams = vec![ModelStream::default(); STREAMS];
                next.branches.insert(branch, ModelBranch { seen: 0, streams });
            }
            Change::Append { branch, tokens } => next.append(branch, tokens),
            Change::Keep { branch, salt, share } => next.keep(branch, &state.choice(branch, salt, share)),
            Change::Fork { parent, child } => {
                let copy = next.branches[&parent].clone();
                next.branches.insert(child, copy);
            }
            Change::Close(branch) => {
                next.branches.remove(&branch);
            }
        }
        // What does not fit is refused as a whole.
        if next.fits() { next } else { state }
    }
}

/// A ledger that knows positions, with limited blocks, and one that only counts, without a limit.
struct Both {
    listed: Ledger,
    counted: Ledger,
    /// The model before the change that comes next.
    before: Model,
}

struct AgainstModel;

impl StateMachineTest for AgainstModel {
    type SystemUnderTest = Both;
    type Reference = Reference;

    fn init_test(model: &Model) -> Both {
        let block = u32::try_from(BLOCK).unwrap();
        Both {
            listed: Ledger::new(&SHAPE, block, Some(CAPACITY), Tracking::Positions),
            counted: Ledger::new(&SHAPE, block, None, Tracking::Counts),
            before: model.clone(),
        }
    }

    fn apply(mut both: Both, model: &Model, change: Change) -> Both {
        let result = match change {
            Change::Open(branch) => both.listed.open(key(branch)).map(|()| 0),
            Change::Append { branch, tokens } => {
                both.listed.append(key(branch), tokens).map(|change| change.copied)
            }
            Change::Keep { branch, salt, share } => {
                let lists =
                    both.before.choice(branch, salt, share).iter().map(|list| positions(list)).collect();
                both.listed.keep_only(key(branch), &Kept::Positions(lists)).map(|change| change.copied)
            }
            Change::Fork { parent, child } => {
                both.listed.fork(key(parent), key(child)).map(|change| change.copied)
            }
            Change::Close(branch) => both.listed.close(key(branch)).map(|change| change.copied),
        };
        match result {
            Ok(_) => both.count(&change),
            Err(LedgerError::OutOfBlocks { asked, free, capacity }) => {
                assert_eq!(model, &both.before, "the ledger refused what the model does");
                assert!(asked > free && capacity == CAPACITY);
            }
            Err(error) => panic!("{error}"),
        }
        both.before = model.clone();
        both
    }

    fn check_invariants(both: &Both, model: &Model) {
        check(&both.listed).unwrap();
        check(&both.counted).unwrap();
        assert_eq!(
            both.listed.branches().collect::<Vec<_>>(),
            model.branches.keys().map(|&b| key(b)).collect::<Vec<_>>()
        );
        assert_eq!(both.listed.pool().held(), model.held().len() as u64);
        let mut names = BTreeMap::new();
        for (&branch, expected) in &model.branches {
            assert_eq!(both.listed.seen(key(branch)).unwrap(), expected.seen);
            for (at, stream) in expected.streams.iter().enumerate() {
                let (layer, head) = place(at);
                assert_eq!(both.listed.positions(key(branch), layer, head), positions(&stream.entries));
                assert_eq!(both.counted.live(key(branch), layer, head) as usize, stream.entries.len());
                // Blocks are shared in the ledger exactly where they have one name in the model.
                let blocks = both.listed.blocks(key(branch), layer, head);
                assert_eq!(blocks.len(), stream.blocks.len());
                for (&block, &name) in blocks.iter().zip(&stream.blocks) {
                    assert_eq!(*names.entry(name).or_insert(block), block);
                }
            }
        }
        assert_eq!(names.values().collect::<BTreeSet<_>>().len(), names.len());
    }
}

impl Both {
    /// Makes the same change to the ledger that only counts.
    fn count(&mut self, change: &Change) {
        match *change {
            Change::Open(branch) => self.counted.open(key(branch)).unwrap(),
            Change::Append { branch, tokens } => drop(self.counted.append(key(branch), tokens).unwrap()),
            Change::Keep { branch, salt, share } => {
                let lists = self.before.choice(branch, salt, share);
                let sets = lists.iter().map(|list| KeptSet::of(&positions(list))).collect();
                self.counted.keep_only(key(branch), &Kept::Sets(sets)).unwrap();
            }
            Change::Fork { parent, child } => drop(self.counted.fork(key(parent), key(child)).unwrap()),
            Change::Close(branch) => drop(self.counted.close(key(branch)).unwrap()),
        }
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]
    #[test]
    fn any_changes_leave_what_the_naive_model_says(sequential 1..40 => AgainstModel);
}

fn filled(tokens: u32, capacity: Option<u32>) -> Ledger {
    let mut ledger = Ledger::new(&SHAPE, 4, capacity, Tracking::Positions);
    ledger.open(key(0)).unwrap();
    ledger.append(key(0), tokens).unwrap();
    ledger
}

fn keep_everywhere(list: &[u32]) -> Kept {
    Kept::Positions(vec![positions(list); STREAMS])
}

#[test]
fn an_entry_keeps_its_position_and_changes_its_slot() {
    let mut ledger = filled(10, None);
    let (layer, head) = place(3);
    ledger.keep_only(key(0), &keep_everywhere(&[0, 1, 7, 8, 9])).unwrap();
    // Five entries fill slots 0 to 4: position 8 moved from slot 8 to slot 3, position 9 to the second block.
    assert_eq!(ledger.locate(key(0), layer, head, Pos::new(8)).unwrap().1.get(), 3);
    assert_eq!(ledger.locate(key(0), layer, head, Pos::new(9)).unwrap().1.get(), 0);
    assert_eq!(ledger.locate(key(0), layer, head, Pos::new(2)), None);
    ledger.append(key(0), 1).unwrap();
    assert_eq!(ledger.positions(key(0), layer, head).last(), Some(&Pos::new(10)));
}

#[test]
fn an_eviction_in_a_child_leaves_its_parent_untouched() {
    let mut ledger = filled(10, None);
    ledger.fork(key(0), key(1)).unwrap();
    let (layer, head) = place(0);
    let before =
        (ledger.positions(key(0), layer, head).to_vec(), ledger.blocks(key(0), layer, head).to_vec());
    // Blocks of 4: the first one is unchanged and stays shared, slots 4 and 5 are rewritten in a copy.
    let change = ledger.keep_only(key(1), &keep_everywhere(&[0, 1, 2, 3, 8, 9])).unwrap();
    assert_eq!((change.copied, change.freed), (STREAMS as u64, 0));
    assert_eq!(before.0, ledger.positions(key(0), layer, head));
    assert_eq!(before.1, ledger.blocks(key(0), layer, head));
    assert_eq!(ledger.blocks(key(0), layer, head)[0], ledger.blocks(key(1), layer, head)[0]);
}

#[test]
fn an_eviction_in_a_parent_leaves_its_child_untouched() {
    let mut ledger = filled(10, None);
    ledger.fork(key(0), key(1)).unwrap();
    let (layer, head) = place(2);
    let before = ledger.positions(key(1), layer, head).to_vec();
    ledger.keep_only(key(0), &keep_everywhere(&[9])).unwrap();
    ledger.append(key(0), 3).unwrap();
    ledger.close(key(0)).unwrap();
    assert_eq!(before, ledger.positions(key(1), layer, head));
    assert_eq!(ledger.occupancy(key(1)).unwrap().live_entries, 10 * STREAMS as u64);
    check(&ledger).unwrap();
}

#[test]
fn a_fork_takes_no_block_until_the_first_write() {
    let mut ledger = filled(10, None);
    let held = ledger.pool().held();
    ledger.fork(key(0), key(1)).unwrap();
    assert_eq!(ledger.pool().held(), held);
    // Slot 10 lies in the third block, which both hold: whoever writes first copies it, the other one owns it then.
    assert_eq!(ledger.append(key(1), 1).unwrap().copied, STREAMS as u64);
    assert_eq!(ledger.append(key(0), 1).unwrap().copied, 0);
}

#[test]
fn an_append_that_does_not_fit_changes_nothing() {
    // 10 tokens take 3 blocks in each of 4 streams; 3 more would need a fourth block in each.
    let mut ledger = filled(10, Some(15));
    let refused = ledger.append(key(0), 3);
    assert_eq!(refused, Err(LedgerError::OutOfBlocks { asked: 4, free: 3, capacity: 15 }));
    assert_eq!((ledger.seen(key(0)).unwrap(), ledger.pool().held()), (10, 12));
    check(&ledger).unwrap();
}

#[test]
fn a_copy_may_take_the_block_that_a_later_stream_gives_back() {
    // 8 shared blocks and 4 of the child's own fill the pool. The first stream swaps two shared entries, which copies
    // a block; only the last stream gives one back.
    let mut ledger = filled(8, Some(12));
    ledger.fork(key(0), key(1)).unwrap();
    ledger.append(key(1), 4).unwrap();
    assert_eq!(ledger.pool().free_blocks(), 0);
    let all: Vec<u32> = (0..12).collect();
    let swapped: Vec<u32> = (0..4).chain([5, 4]).chain(6..12).collect();
    let lists = [&swapped, &all, &all, &all[..8].to_vec()].map(|list| positions(list)).to_vec();
    let change = ledger.keep_only(key(1), &Kept::Positions(lists)).unwrap();
    assert_eq!((change.copied, change.freed), (1, 1));
    check(&ledger).unwrap();
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let mut ledger = filled(3, None);
    let twice = ledger.keep_only(key(0), &keep_everywhere(&[1, 1]));
    assert!(matches!(twice, Err(LedgerError::KeptPosition { pos, .. }) if pos == Pos::new(1)), "{twice:?}");
    let unseen = ledger.keep_only(key(0), &keep_everywhere(&[3]));
    assert!(matches!(unseen, Err(LedgerError::KeptPosition { pos, .. }) if pos == Pos::new(3)), "{unseen:?}");
    let more = ledger.keep_only(key(0), &keep_everywhere(&[0, 1, 2, 3]));
    assert!(matches!(more, Err(LedgerError::KeptTooMany { kept: 4, live: 3, .. })), "{more:?}");
    let few = ledger.keep_only(key(0), &Kept::Positions(vec![positions(&[0])]));
    assert_eq!(few, Err(LedgerError::KeptSets { branch: key(0), expected: 4, found: 1 }));
    let counts = ledger.keep_only(key(0), &Kept::Sets(vec![KeptSet::of(&[]); 4]));
    assert_eq!(counts, Err(LedgerError::PositionsNeeded { branch: key(0) }));
    assert_eq!(ledger.occupancy(key(0)).unwrap().live_entries, 12);
}
