//! A scenario built in Rust, key by key, without a file.

use toml::{Table, Value};

use super::draft::Draft;
use super::error::ScenarioError;
use super::keys;
use super::understood::Scenario;
use crate::files::one_line;
use crate::hardware::Place;

/// What errors call a scenario without a description.
const NAMELESS: &str = "scenario";

/// A scenario in the making: made by [`Scenario::builder`], or by [`Scenario::to_builder`] to change one that there is.
///
/// The main axes of a plan have a method each. [`Builder::set`] sets every other key of a scenario file: `docs/keys.md` lists them, and
/// so does [`keys`](crate::keys). A key that does not exist is an error that names the nearest. [`Builder::build`] reads the whole as
/// if it stood in a file, with the same checks and the same errors.
///
/// ```
/// use windtunnel::Scenario;
///
/// let scenario = Scenario::builder("four layers of Llama-3.1-8B on a node")
///     .runtime("fsdp2")
///     .topology("h100-sxm-80gb")
///     .nodes(1)
///     .model("llama-3.1-8b")
///     .mesh([("dp_shard", 8)])
///     .sequence(4096)
///     .micro_batch(2)
///     .set("model.layers", 4)
///     .set("activation_checkpointing.policy", "full")
///     .build()?;
/// assert_eq!(scenario.topology.chips(), 8);
///
/// let error = Scenario::builder("").set("batch.sequense", 4096).build().unwrap_err();
/// assert!(error.to_string().contains("did you mean \"batch.sequence\"?"));
/// # Ok::<(), windtunnel::ScenarioError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder makes a scenario when `build` is called"]
pub struct Builder {
    draft: Draft,
    /// What was wrong with the first key that could not be set.
    wrong: Option<ScenarioError>,
}

impl Scenario {
    /// Begins a scenario that no file describes. Paths in it are relative to the working directory.
    pub fn builder(description: &str) -> Builder {
        let name = match one_line(description).replace(['/', '\\'], "_") {
            name if name.trim().is_empty() => NAMELESS.to_owned(),
            name => name,
        };
        // The mesh is a table even where all of its axes are left out.
        let mesh = Table::from_iter([("mesh".to_owned(), Value::Table(Table::new()))]);
        let mut draft = Draft::new(&name, mesh);
        draft.set("description", description);
        Builder { draft, wrong: None }
    }

    /// This scenario, to be changed. What the run has measured is left behind: nobody has measured the changed one.
    pub fn to_builder(&self) -> Builder {
        Builder { draft: self.draft.clone(), wrong: None }
    }
}

impl Builder {
    /// The framework, as scenarios name it: `fsdp2`, `megatron`, `deepspeed-zero`, `xla`, ….
    pub fn runtime(self, name: &str) -> Builder {
        self.set("runtime", name)
    }

    /// The machine: a shipped name such as `h100-sxm-80gb`, or the path of a topology file.
    pub fn topology(self, name: &str) -> Builder {
        self.set("topology.name", name)
    }

    /// How many nodes of the machine.
    pub fn nodes(self, nodes: u32) -> Builder {
        self.set("topology.nodes", nodes)
    }

    /// The slice of a TPU pod, such as `4x4`, in place of nodes.
    pub fn slice(self, name: &str) -> Builder {
        self.set("topology.slice", name)
    }

    /// The model: a shipped name such as `llama-3.1-8b`, or the path of a Hugging Face `config.json`.
    pub fn model(self, name: &str) -> Builder {
        let file = name.to_lowercase().ends_with(".json");
        let (key, other) = if file { ("huggingface", "name") } else { ("name", "huggingface") };
        self.unset(&format!("model.{other}")).set(&format!("model.{key}"), name)
    }

    /// Axes of the mesh with their sizes, such as `[("dp_shard", 8), ("tp", 2)]`.
    pub fn mesh<'a>(self, axes: impl IntoIterator<Item = (&'a str, u32)>) -> Builder {
        axes.into_iter().fold(self, |builder, (axis, size)| builder.set(&format!("mesh.{axis}"), size))
    }

    /// Tokens of a sequence.
    pub fn sequence(self, tokens: u64) -> Builder {
        self.set("batch.sequence", integer(tokens))
    }

    /// Sequences of a micro-batch, on one rank.
    pub fn micro_batch(self, sequences: u64) -> Builder {
        self.set("batch.micro", integer(sequences))
    }

    /// Sequences of a step, of the whole job.
    pub fn global_batch(self, sequences: u64) -> Builder {
        self.set("batch.global", integer(sequences))
    }

    /// Sets any key, with its tables before it: `optimizer.name`, `zero.offload_optimizer.device`. A value that is a table itself, such
    /// as `{ every = 2 }`, is a `BTreeMap::from([("every", 2)])`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Builder {
        let value = value.into();
        match allowed(self.draft.file(), key, &value) {
            Ok(()) => put(&mut self.draft, key, value),
            Err(wrong) => self.wrong = self.wrong.or(Some(wrong)),
        }
        self
    }

    /// Leaves a key to its default.
    pub fn unset(mut self, key: &str) -> Builder {
        match nested(key) {
            None => self.draft.remove(key),
            Some((parent, name)) => {
                if let Some(Value::Table(mut table)) = self.draft.get(parent).cloned() {
                    table.remove(name);
                    self.draft.set(parent, table);
                }
            }
        }
        self
    }

    /// The scenario as the text of a file.
    pub fn text(&self) -> String {
        self.draft.text()
    }

    /// The scenario, checked as if it had been read from a file.
    pub fn build(self) -> Result<Scenario, ScenarioError> {
        self.wrong.map_or_else(|| self.draft.scenario(), Err)
    }
}

/// A count as TOML writes it. The reader's own bound on every count is far below the largest.
fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Of a key in a table that lies in another, the inner table and the key.
fn nested(key: &str) -> Option<(&str, &str)> {
    key.rsplit_once('.').filter(|(parent, _)| parent.contains('.'))
}

fn put(draft: &mut Draft, key: &str, value: Value) {
    let Some((parent, name)) = nested(key) else { return draft.set(key, value) };
    let mut table = match draft.get(parent) {
        Some(Value::Table(table)) => table.clone(),
        _ => Table::new(),
    };
    table.insert(name.to_owned(), value);
    draft.set(parent, table);
}

/// Whether a key can be set in Rust; the place of an error is the line that a file would have.
fn allowed(file: &str, key: &str, value: &Value) -> Result<(), ScenarioError> {
    let place = || {
        let line = format!("{key} = {value}");
        Box::new(Place::of(file, &line, 0..line.len()))
    };
    if let Some(problem) = keys::misnamed(key) {
        return Err(ScenarioError::Written { problem, place: place() });
    }
    if key.starts_with("measured.") {
        let problem = format!("{key} is what a run has measured, and a scenario built in Rust has not been run");
        let remedy = "write it into the [measured] table of a scenario file, and load that".to_owned();
        return Err(ScenarioError::Plan { code: None, problem, place: place(), remedy });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Builder {
        let node = Scenario::builder("a node").runtime("fsdp2").topology("h100-sxm-80gb").nodes(1);
        node.model("llama-3.1-8b").set("model.layers", 2).sequence(2048).micro_batch(1)
    }

    #[test]
    fn a_built_scenario_is_the_one_that_its_text_describes() {
        let builder = node().mesh([("dp_shard", 8)]).set("optimizer.name", "adamw");
        let text = builder.text();
        let built = builder.build().expect("it is a plan");
        let read = Scenario::parse("a node", &text).expect("it is a plan");
        assert_eq!(built.description, read.description);
        assert_eq!(built.assumption_lines(), read.assumption_lines());
        assert_eq!(built.draft.text(), read.draft.text());
    }

    #[test]
    fn an_unknown_key_names_the_nearest_and_a_file_s_checks_hold() {
        let said = |builder: Builder| builder.build().expect_err("it is wrong").to_string();
        assert!(said(node().mesh([("dp_shart", 8)])).contains("did you mean \"mesh.dp_shard\"?"));
        assert!(said(node().set("megatron.fp8", "delayed")).contains("megatron"));
        assert!(said(node().mesh([("dp_shard", 3)])).contains('3'));
        assert!(said(node().set("batch.micro", "one")).contains("whole number"));
        assert!(said(node().set("measured.step_time", "1 s")).contains("has not been run"));
        // The first mistake is told, not the last.
        assert!(said(node().set("first", 1).set("second", 2)).contains("\"first\""));
    }

    #[test]
    fn a_key_of_a_table_in_a_table_is_set_and_unset() {
        let aio = |builder: &Builder| builder.draft.get("zero.aio").map(Value::to_string);
        let builder = Scenario::builder("").set("zero.aio.block_size", 1 << 20).set("zero.aio.queue_depth", 8);
        assert_eq!(aio(&builder).as_deref(), Some("{ block_size = 1048576, queue_depth = 8 }"));
        let builder = builder.unset("zero.aio.block_size");
        assert_eq!(aio(&builder).as_deref(), Some("{ queue_depth = 8 }"));
    }

    #[test]
    fn a_scenario_s_own_builder_changes_one_key_of_it() {
        let scenario = node().build().expect("it is a plan");
        let longer = scenario.to_builder().sequence(4096).build().expect("it is a plan");
        assert_eq!((scenario.job.seq(), longer.job.seq()), (2048, 4096));
    }
}
