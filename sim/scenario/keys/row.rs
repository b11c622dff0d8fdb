//! What a row of the table of keys says.

/// A table of a scenario file; the keys at the top of the file are in one without a name.
#[derive(Debug)]
pub struct Table {
    /// As in its header, without brackets.
    pub name: &'static str,
    /// What it is about.
    pub help: &'static str,
    /// Which of a comparison's groups its keys are in.
    pub group: Group,
    /// The framework that it is named after, where others refuse it whole for being of another.
    pub(in crate::scenario) owner: Option<&'static str>,
    /// What to write instead, by the frameworks that refuse it or keys of it.
    pub(in crate::scenario) instead: &'static [Instead],
    /// Its keys, in the order that people write them.
    pub keys: &'static [Key],
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Without its table; of a table in a table, both names: `aio.block_size`.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// The frameworks that read it, as scenarios name them.
    pub read_by: &'static [&'static str],
    /// What it says, in a line.
    pub help: &'static str,
    /// What to write instead, where the key says more than its table.
    pub(in crate::scenario) instead: &'static [Instead],
}

/// Frameworks, and what to write under them instead of what they do not read.
pub(in crate::scenario) type Instead = (&'static [&'static str], &'static str);

/// What a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number, and the least and the most that is read where that does not follow from the rest of the file.
    Count(Option<(i64, i64)>),
    /// True or false.
    Flag,
    /// A number.
    Number,
    /// A name or a path.
    Text,
    /// A size with its unit, such as this one.
    Quantity(&'static str),
    /// One of some words, or of tables with one key.
    Choice(&'static [Choice]),
    /// A list; of these words, if there are any.
    List(&'static [&'static str]),
    /// Something else, in words.
    Other(&'static str),
}

/// One of the choices of a key.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// A word.
    Word(&'static str),
    /// A word with a value, `{ every = N }`, and what the value is.
    With(&'static str, &'static str),
}

impl Choice {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Choice::Word(word) | Choice::With(word, _) => word,
        }
    }
}

/// The groups of a comparison, in the order that differences are applied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The machine.
    Hardware,
    /// The model.
    Model,
    /// How it is split.
    Mesh,
    /// What a step trains on.
    Batch,
    /// Types.
    Precision,
    /// The framework, and how states are sharded.
    Sharding,
    /// Megatron-Core's switches.
    Megatron,
    /// What is recomputed in backward.
    Recompute,
    /// What is compiled.
    Compile,
    /// All else.
    Rest,
}

impl Group {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Group::Hardware => "hardware",
            Group::Model => "model",
            Group::Mesh => "mesh",
            Group::Batch => "batch",
            Group::Precision => "precision",
            Group::Sharding => "fsdp",
            Group::Megatron => "megatron",
            Group::Recompute => "recompute",
            Group::Compile => "compile",
            Group::Rest => "rest",
        }
    }
}

impl Key {
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        read_by: &'static [&'static str],
        help: &'static str,
    ) -> Key {
        Key { name, kind, read_by, help, instead: &[] }
    }

    pub(super) const fn instead(self, instead: &'static [Instead]) -> Key {
        Key { instead, ..self }
    }

    /// Whether a framework reads it.
    pub fn is_read_by(&self, framework: &str) -> bool {
        self.read_by.contains(&framework)
    }
}

impl Table {
    /// Whether a framework reads any key of it.
    pub fn is_read_by(&self, framework: &str) -> bool {
        self.keys.iter().any(|key| key.is_read_by(framework))
    }

    /// A key in full, `batch.micro`.
    pub fn path(&self, key: &Key) -> String {
        if self.name.is_empty() { key.name.to_owned() } else { format!("{}.{}", self.name, key.name) }
    }
}

/// What to write instead under a framework, where a list says it.
pub(in crate::scenario) fn instead(list: &'static [Instead], framework: &str) -> Option<&'static str> {
    list.iter().find(|(frameworks, _)| frameworks.contains(&framework)).map(|&(_, words)| words)
}
