//! What of a job is not simulated: a name that stays, the words, the key it hangs on, and what to write instead.

use std::borrow::Cow;

/// Something of a job that no rules here are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A short name that stays when the words change, such as `experts-fp8-width`.
    pub code: &'static str,
    /// What it is, in words.
    pub problem: Cow<'static, str>,
    /// The key of a scenario that it hangs on, where there is one.
    pub key: Option<&'static str>,
    /// What to write instead, where that is known without a look at the file.
    pub remedy: Option<Cow<'static, str>>,
}

impl Refusal {
    /// A refusal that hangs on no key and proposes nothing.
    pub fn new(code: &'static str, problem: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { code, problem: problem.into(), key: None, remedy: None }
    }

    /// The same, which hangs on a key.
    pub fn on(self, key: &'static str) -> Refusal {
        Refusal { key: Some(key), ..self }
    }

    /// The same, with what to write instead.
    pub fn instead(self, remedy: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { remedy: Some(remedy.into()), ..self }
    }

    /// The first that applies.
    pub fn first(cases: impl IntoIterator<Item = (bool, Refusal)>) -> Option<Refusal> {
        cases.into_iter().find(|(applies, _)| *applies).map(|(_, refusal)| refusal)
    }
}
