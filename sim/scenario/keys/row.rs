//! What a row of the table of keys says.

/// A table of a scenario file; the keys at the top of the file are in one without a name.
#[derive(Clone, Copy, Debug)]
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
    /// In full, `batch.micro`; of a table in a table, with both names: `zero.aio.block_size`.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// The frameworks that read it, as scenarios name them.
    pub read_by: &'static [&'static str],
    /// What it says, in a line.
    pub help: &'static str,
    /// A value to write, in TOML, where its kind does not have one.
    pub(super) example: Option<&'static str>,
    /// What frameworks take where the file leaves it out.
    pub defaults: &'static [Preset],
    /// What to write instead, where the key says more than its table.
    pub(in crate::scenario) instead: &'static [Instead],
}

/// A default that some frameworks share, for the same reason.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Who has it, as scenarios name them.
    pub frameworks: &'static [&'static str],
    /// The value in TOML; `by size` where it follows from the job's size, and several joined by `or` where it follows from the machine
    /// or from other keys.
    pub value: &'static str,
    /// The release that has it, or `none`.
    pub release: &'static str,
    /// The line or function that says so.
    pub place: &'static str,
}

impl Preset {
    /// The release and the place in it; of what follows from the job, the reason alone.
    pub fn source(&self) -> String {
        if self.release == "none" { self.place.to_owned() } else { format!("{}: {}", self.release, self.place) }
    }
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

impl Kind {
    /// The least and the most of a count; of all else any number.
    pub(in crate::scenario) fn bounds(self) -> (i64, i64) {
        match self {
            Kind::Count(Some(bounds)) => bounds,
            _ => (i64::MIN, i64::MAX),
        }
    }
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

/// A whole number from one to another.
pub(super) const fn between(least: i64, most: i64) -> Kind {
    Kind::Count(Some((least, most)))
}

/// A word, with what stands beside it if anything does.
pub(in crate::scenario) const fn choice(word: &'static str, beside: &[&'static str]) -> Choice {
    match beside {
        [] => Choice::Word(word),
        [what, ..] => Choice::With(word, what),
    }
}

/// Keys of several structs, one after the other.
pub(super) const fn joined<const N: usize>(parts: &[&[Key]]) -> [Key; N] {
    let mut all = [parts[0][0]; N];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut of = 0;
        while of < parts[part].len() {
            all[at] = parts[part][of];
            (of, at) = (of + 1, at + 1);
        }
        part += 1;
    }
    all
}

impl Key {
    /// A key of a path, which begins with a dot where the key is at the top.
    pub(in crate::scenario) const fn new(
        path: &'static str,
        kind: Kind,
        read_by: &'static [&'static str],
        help: &'static str,
    ) -> Key {
        let path = match path.as_bytes() {
            [b'.', ..] => path.split_at(1).1,
            _ => path,
        };
        Key { path, kind, read_by, help: help.trim_ascii(), example: None, defaults: &[], instead: &[] }
    }

    /// A key that a field cannot be called by.
    pub(super) const fn at(self, path: &'static str) -> Key {
        Key { path, ..self }
    }

    pub(in crate::scenario) const fn such_as(self, example: &'static str) -> Key {
        Key { example: Some(example), ..self }
    }

    pub(in crate::scenario) const fn defaults(self, defaults: &'static [Preset]) -> Key {
        Key { defaults, ..self }
    }

    pub(super) const fn instead(self, instead: &'static [Instead]) -> Key {
        Key { instead, ..self }
    }

    /// Without its table: `micro`, `aio.block_size`.
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// What a framework takes where the file leaves it out; none where that is not said, or not one value.
    pub fn taken(&self, framework: &str) -> Option<&'static str> {
        let mut of = self.defaults.iter().filter(|preset| preset.frameworks.contains(&framework));
        of.next().map(|preset| preset.value).filter(|value| *value != "by size" && !value.contains(" or "))
    }

    /// Whether a framework reads it.
    pub fn is_read_by(&self, framework: &str) -> bool {
        self.read_by.contains(&framework)
    }
}

impl Table {
    pub(in crate::scenario) const fn new(
        name: &'static str,
        help: &'static str,
        group: Group,
        keys: &'static [Key],
    ) -> Table {
        Table { name, help: help.trim_ascii(), group, owner: None, instead: &[], keys }
    }

    pub(super) const fn owner(self, owner: &'static str) -> Table {
        Table { owner: Some(owner), ..self }
    }

    pub(super) const fn instead(self, instead: &'static [Instead]) -> Table {
        Table { instead, ..self }
    }

    pub(super) const fn keys(self, keys: &'static [Key]) -> Table {
        Table { keys, ..self }
    }

    /// Whether a framework reads any key of it.
    pub fn is_read_by(&self, framework: &str) -> bool {
        self.keys.iter().any(|key| key.is_read_by(framework))
    }
}

/// What to write instead under a framework, where a list says it.
pub(in crate::scenario) fn instead(list: &'static [Instead], framework: &str) -> Option<&'static str> {
    list.iter().find(|(frameworks, _)| frameworks.contains(&framework)).map(|&(_, words)| words)
}
