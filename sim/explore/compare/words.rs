//! Differences in words: long lists of keys are folded, so that a row of another framework stays readable.

use toml::Value;

use super::difference::Difference;
use super::unit::FRAMEWORK;

/// Keys of a row that are shown before the rest is counted.
const SHOWN: usize = 3;

/// Letters of a value that are shown.
const LETTERS: usize = 40;

/// Whether everything is written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The first keys of a long list, and how many more there are.
    Long,
    /// Nothing is left out.
    Nothing,
}

impl Fold {
    /// How many of so many keys are shown. Two lines say more than a count of them.
    fn shown(self, keys: usize) -> usize {
        if self == Fold::Nothing || keys <= SHOWN + 1 { keys } else { SHOWN }
    }

    /// A difference on a line.
    pub(super) fn words(self, difference: &Difference) -> String {
        format!("{}: {} → {}", difference.key, self.value(&difference.from), self.value(&difference.to))
    }

    fn value(self, value: &Option<Value>) -> String {
        let Some(value) = value else { return "not set".to_owned() };
        let text = value.to_string();
        match text.chars().count() > LETTERS && self == Fold::Long {
            true => text.chars().take(LETTERS).chain(['…']).collect(),
            false => text,
        }
    }

    /// The name of the framework first; of a row that is folded, keys that both sides have next.
    fn ordered(self, differences: &[Difference]) -> Vec<&Difference> {
        let folded = self.shown(differences.len()) < differences.len();
        let mut list: Vec<&Difference> = differences.iter().collect();
        list.sort_by_key(|one| (one.key != FRAMEWORK, folded && !is_of_both(one)));
        list
    }

    /// The differences of a row, a line each.
    pub(super) fn lines(self, differences: &[Difference]) -> Vec<String> {
        let shown = self.shown(differences.len());
        let more = (shown < differences.len()).then(|| format!("and {} more", differences.len() - shown));
        self.ordered(differences).into_iter().take(shown).map(|one| self.words(one)).chain(more).collect()
    }

    /// The keys of a row in a sentence.
    pub(super) fn keys(self, differences: &[Difference]) -> String {
        let shown = self.shown(differences.len());
        let more = (shown < differences.len()).then(|| format!("{} more", differences.len() - shown));
        let mut keys: Vec<String> =
            self.ordered(differences).into_iter().take(shown).map(|one| one.key.clone()).chain(more).collect();
        match keys.pop() {
            Some(last) if !keys.is_empty() => format!("{} and {last}", keys.join(", ")),
            last => last.unwrap_or_default(),
        }
    }

    /// The defaults that change, and how many are left out: of two frameworks, those that only one has.
    pub(super) fn follows(self, differences: &[Difference], frameworks: bool) -> (Vec<&Difference>, usize) {
        let shown = |one: &&Difference| self == Fold::Nothing || !frameworks || is_of_both(one);
        let list: Vec<&Difference> = differences.iter().filter(shown).collect();
        let left = differences.len() - list.len();
        (list, left)
    }

    /// Whether a row is shown in part.
    pub(super) fn shortens(self, differences: &[Difference]) -> bool {
        self.shown(differences.len()) < differences.len()
            || differences.iter().any(|one| self.words(one) != Fold::Nothing.words(one))
    }
}

fn is_of_both(one: &Difference) -> bool {
    one.from.is_some() && one.to.is_some()
}
