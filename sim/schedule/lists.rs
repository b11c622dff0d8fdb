//! The lists of all ranks, end to end in one array.

use std::fmt::Write;

use super::Action;

/// One list of actions for each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Lists {
    actions: Vec<Action>,
    /// Where each rank's list ends.
    ends: Vec<u32>,
}

impl Lists {
    /// No ranks yet, and room for `actions`.
    pub fn with_capacity(ranks: usize, actions: usize) -> Lists {
        Lists { actions: Vec::with_capacity(actions), ends: Vec::with_capacity(ranks) }
    }

    /// The lists written one by one.
    pub fn from_ranks(ranks: &[Vec<Action>]) -> Lists {
        let mut lists = Lists::with_capacity(ranks.len(), ranks.iter().map(Vec::len).sum());
        for rank in ranks {
            lists.actions.extend_from_slice(rank);
            lists.close();
        }
        lists
    }

    /// The end of the list being written.
    pub fn open(&mut self) -> &mut Vec<Action> {
        &mut self.actions
    }

    /// Ends the current rank's list; what is added from here on is the next rank's.
    pub fn close(&mut self) {
        self.ends.push(u32::try_from(self.actions.len()).expect("a schedule of fewer than 2^32 actions"));
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ends.len()
    }

    /// Where a rank's list lies within [`Lists::all`].
    pub fn range(&self, rank: usize) -> std::ops::Range<usize> {
        let start = if rank == 0 { 0 } else { self.ends[rank - 1] as usize };
        start..self.ends[rank] as usize
    }

    /// A rank's list.
    pub fn rank(&self, rank: usize) -> &[Action] {
        &self.actions[self.range(rank)]
    }

    /// A rank's list in the portions in which it is issued: most of one action, some of several joined ones.
    pub fn portions(&self, rank: usize) -> impl Iterator<Item = &[Action]> {
        self.rank(rank).chunk_by(|action, _| action.joined)
    }

    /// All actions, rank after rank.
    pub fn all(&self) -> &[Action] {
        &self.actions
    }

    /// PyTorch's CSV: a line for each rank.
    pub fn csv(&self) -> String {
        let mut out = String::new();
        for rank in 0..self.ranks() {
            for (at, portion) in self.portions(rank).enumerate() {
                let _ = write!(out, "{}{}", if at == 0 { "" } else { "," }, notation(portion));
            }
            out.push('\n');
        }
        out
    }
}

/// A portion as text: `0F1`, `(0F4;7B1)OVERLAP_F_B`, or `0SEND_F1+0RECV_B0` for one batch of sends and receives.
pub fn notation(portion: &[Action]) -> String {
    let words: Vec<String> = portion.iter().map(Action::to_string).collect();
    match portion {
        [] | [_] => words.concat(),
        [first, ..] if first.kind.computes() => format!("({})OVERLAP_F_B", words.join(";")),
        _ => words.join("+"),
    }
}
