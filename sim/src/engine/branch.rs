//! The branch tree: which branches run, how far each is, and where it came from.

use super::{Eviction, Request};
use crate::ledger::BranchKey;
use crate::types::{BranchId, ReqId};
use std::collections::BTreeMap;

/// A change that the tree does not make.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BranchError {
    /// There is no such branch, or it is over.
    #[error("{branch} does not run")]
    Unknown {
        /// The branch.
        branch: BranchKey,
    },
    /// The branch runs already.
    #[error("{branch} runs already")]
    Exists {
        /// The branch.
        branch: BranchKey,
    },
}

/// A branch that runs.
#[derive(Clone, Copy, Debug)]
pub struct Node<'w> {
    /// The request that it belongs to.
    pub request: &'w Request,
    /// The branch that it was forked from; `None` for a root.
    pub parent: Option<BranchId>,
    /// Tokens seen so far.
    pub seen: u32,
    /// Tokens seen at its end.
    pub len: u32,
    /// Evictions still to come.
    pub evictions: &'w [Eviction],
}

impl Node<'_> {
    /// Whether all its tokens are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.seen >= self.len
    }
}

/// All branches that run.
#[derive(Clone, Debug, Default)]
pub struct BranchTree<'w> {
    nodes: BTreeMap<BranchKey, Node<'w>>,
}

impl<'w> BranchTree<'w> {
    /// Starts the root of a request.
    ///
    /// # Errors
    /// When it runs already.
    pub fn plant(&mut self, request: &'w Request) -> Result<(), BranchError> {
        let node = Node { request, parent: None, seen: 0, len: request.len, evictions: &request.evictions };
        self.insert(BranchKey::root(request.req), node)
    }

    /// Starts `child` where `parent` is.
    ///
    /// # Errors
    /// When `parent` does not run, its request plans no such child, or `child` runs already.
    pub fn fork(&mut self, parent: BranchKey, child: BranchId) -> Result<(), BranchError> {
        let key = BranchKey { req: parent.req, branch: child };
        let &Node { request, seen, .. } = self.node(parent)?;
        let Some(plan) = request.forks.iter().find(|fork| fork.child == child) else {
            return Err(BranchError::Unknown { branch: key });
        };
        let node =
            Node { request, parent: Some(parent.branch), seen, len: plan.len, evictions: &plan.evictions };
        self.insert(key, node)
    }

    /// Moves a branch on by `tokens`.
    ///
    /// # Errors
    /// When it does not run.
    pub fn advance(&mut self, branch: BranchKey, tokens: u32) -> Result<(), BranchError> {
        self.node_mut(branch)?.seen += tokens;
        Ok(())
    }

    /// Takes the next eviction of a branch from its plan; `None` when none is left.
    ///
    /// # Errors
    /// When it does not run.
    pub fn take_eviction(&mut self, branch: BranchKey) -> Result<Option<&'w Eviction>, BranchError> {
        let node = self.node_mut(branch)?;
        let Some((first, rest)) = node.evictions.split_first() else {
            return Ok(None);
        };
        node.evictions = rest;
        Ok(Some(first))
    }

    /// Ends a branch.
    ///
    /// # Errors
    /// When it does not run.
    pub fn drop_branch(&mut self, branch: BranchKey) -> Result<(), BranchError> {
        match self.nodes.remove(&branch) {
            Some(_) => Ok(()),
            None => Err(BranchError::Unknown { branch }),
        }
    }

    /// A branch that runs.
    ///
    /// # Errors
    /// When it does not.
    pub fn node(&self, branch: BranchKey) -> Result<&Node<'w>, BranchError> {
        self.nodes.get(&branch).ok_or(BranchError::Unknown { branch })
    }

    /// Branches of a request that run, in order.
    pub fn of_request(&self, req: ReqId) -> impl Iterator<Item = BranchKey> {
        let last = BranchKey { req, branch: BranchId::new(u32::MAX) };
        self.nodes.range(BranchKey::root(req)..=last).map(|(&key, _)| key)
    }

    /// Whether no branch runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn node_mut(&mut self, branch: BranchKey) -> Result<&mut Node<'w>, BranchError> {
        self.nodes.get_mut(&branch).ok_or(BranchError::Unknown { branch })
    }

    fn insert(&mut self, key: BranchKey, node: Node<'w>) -> Result<(), BranchError> {
        match self.nodes.entry(key) {
            std::collections::btree_map::Entry::Occupied(_) => Err(BranchError::Exists { branch: key }),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(node);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fork;
    use super::*;
    use crate::types::Nanos;

    fn request() -> Request {
        let (parent, child) = (BranchId::new(0), BranchId::new(1));
        let fork = Fork { parent, child, at_seen: 3, len: 9, evictions: Vec::new() };
        let (req, arrival) = (ReqId::new(7), Nanos::ZERO);
        Request { req, prompt_len: 2, len: 5, arrival, evictions: Vec::new(), forks: vec![fork] }
    }

    #[test]
    fn a_child_starts_where_its_parent_is_and_goes_on_alone() {
        let (request, root) = (request(), BranchKey::root(ReqId::new(7)));
        let child = BranchKey { branch: BranchId::new(1), ..root };
        let mut tree = BranchTree::default();
        tree.plant(&request).unwrap();
        tree.advance(root, 3).unwrap();
        tree.fork(root, child.branch).unwrap();
        tree.advance(child, 1).unwrap();
        assert_eq!((tree.node(root).unwrap().seen, tree.node(child).unwrap().seen), (3, 4));
        tree.drop_branch(root).unwrap();
        assert_eq!(tree.of_request(ReqId::new(7)).collect::<Vec<_>>(), [child]);
        assert_eq!(tree.drop_branch(root), Err(BranchError::Unknown { branch: root }));
    }

    #[test]
    fn a_branch_that_is_not_planned_cannot_be_forked() {
        let (request, root) = (request(), BranchKey::root(ReqId::new(7)));
        let mut tree = BranchTree::default();
        tree.plant(&request).unwrap();
        assert!(tree.fork(root, BranchId::new(2)).is_err());
        assert_eq!(tree.plant(&request), Err(BranchError::Exists { branch: root }));
    }
}
