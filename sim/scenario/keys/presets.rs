//! What each framework takes for a key that the file leaves out, and where its source says so: the rows of `defaults.tsv`.
//!
//! A row names the framework, the key, the value, the release, and the line or function. Values that follow from the job's size are
//! `by size`. Where the value follows from the machine or from other keys, the possible ones are joined by `or`. To add a default: a
//! row in `defaults.tsv`; `tests/defaults.rs` fails where a default has no row, or a row no default.

/// The default that a framework has for a key.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The framework, as scenarios name it.
    pub framework: &'static str,
    /// The key in full, `batch.micro`.
    pub key: &'static str,
    /// The value in TOML, `by size`, or several values joined by `or`.
    pub value: &'static str,
    /// The release that has it, or `none`.
    release: &'static str,
    /// The line or function that says so.
    place: &'static str,
}

/// A default that some frameworks share, for the same reason.
#[derive(Debug)]
pub struct Shared {
    /// As [`Preset::value`] has it.
    pub value: &'static str,
    /// Who has it.
    pub frameworks: Vec<&'static str>,
    /// Where it stands.
    pub source: String,
}

impl Preset {
    /// The release and the place in it; of what follows from the job, the reason alone.
    fn source(&self) -> String {
        if self.release == "none" { self.place.to_owned() } else { format!("{}: {}", self.release, self.place) }
    }
}

/// All of them. A line with other than five fields is none, which a test would notice.
pub fn presets() -> impl Iterator<Item = Preset> {
    include_str!("defaults.tsv").lines().skip(1).filter_map(|line| {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        Some(Preset { framework: next()?, key: next()?, value: next()?, release: next()?, place: next()? })
    })
}

/// Those of one key, told together where frameworks take the same for the same reason.
pub fn shared(key: &str) -> Vec<Shared> {
    let mut all: Vec<Shared> = vec![];
    for preset in presets().filter(|preset| preset.key == key) {
        let source = preset.source();
        match all.iter_mut().find(|shared| shared.value == preset.value && shared.source == source) {
            Some(shared) => shared.frameworks.push(preset.framework),
            None => all.push(Shared { value: preset.value, frameworks: vec![preset.framework], source }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::presets;

    #[test]
    fn every_line_of_the_file_is_a_default_with_a_source() {
        let lines = include_str!("defaults.tsv").lines().count();
        assert_eq!(presets().count() + 1, lines);
        assert!(presets().all(|preset| !preset.release.is_empty() && preset.place.len() > 8));
    }
}
