//! What can be wrong with a `config.json`.

/// A configuration that could not be read into a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The file cannot be opened or is not text.
    #[error("cannot read {file}: {reason}; expected the config.json of a Hugging Face model")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says.
        reason: String,
    },
    /// No shipped model has this name.
    #[error("no model named {name:?} ships with the program: say a file with model.huggingface, or one of {known}")]
    NotShipped {
        /// The name as written.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The text is not JSON.
    #[error("{file}:{line}:{column}: not JSON: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 where the line has ended.
        column: usize,
        /// What the parser says.
        reason: String,
    },
    /// JSON, but not a `{…}`.
    #[error("{file}: expected an object {{…}} with the keys of a config.json, found {found}")]
    NotAnObject {
        /// The file.
        file: String,
        /// What was found.
        found: &'static str,
    },
    /// A key that must be there is not.
    #[error("{file}: {key:?} is missing: expected {expected}; {remedy}")]
    Missing {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What it would hold.
        expected: String,
        /// What to try.
        remedy: String,
    },
    /// A key holds something else than it should.
    #[error("{place}: {key:?} is {found}: expected {expected}")]
    WrongValue {
        /// File, and line where it is certain.
        place: String,
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// Two sizes that do not fit each other.
    #[error("{file}: {left} and {right} do not fit: {rule}; {remedy}")]
    Misfit {
        /// The file.
        file: String,
        /// The first, with its value.
        left: String,
        /// The second, with its value.
        right: String,
        /// What would fit.
        rule: &'static str,
        /// What to try.
        remedy: &'static str,
    },
    /// A mixture of experts of an architecture that is read without.
    #[error(
        "{place}: {what}: no reader describes this mixture of experts; the model types with experts that can be read \
         are mixtral, llama4_text, qwen3_moe, qwen3_next, deepseek_v2, deepseek_v3, gpt_oss, nemotron_h, granitemoehybrid"
    )]
    MixtureOfExperts {
        /// File, and line where it is certain.
        place: String,
        /// The key and value that say so.
        what: String,
    },
    /// A model of a kind that cannot be described.
    #[error("{place}: {what}: {why}; {remedy}")]
    Unsupported {
        /// File, and line where it is certain.
        place: String,
        /// The key and value that say so.
        what: String,
        /// What is not modelled.
        why: String,
        /// What to try.
        remedy: String,
    },
}

impl ModelError {
    /// A syntax error; `serde_json` repeats the place in its message, so that is cut.
    pub(super) fn syntax(file: &str, error: &serde_json::Error) -> ModelError {
        let message = error.to_string();
        let reason = message.rsplit_once(" at line ").map_or(message.as_str(), |(reason, _)| reason).to_string();
        ModelError::Syntax { file: file.into(), line: error.line(), column: error.column(), reason }
    }
}
