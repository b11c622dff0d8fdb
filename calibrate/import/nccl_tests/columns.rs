//! What a table's heading names: before the figures what was sent, then one or two bodies of figures.

/// Columns of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Whether rows name a reduction.
    pub redop: bool,
    /// Whether rows name a root.
    pub root: bool,
    /// Whether rows end with the time of day.
    pub timestamp: bool,
    /// Figures of each body: out of place, and in place where that was run.
    pub bodies: Vec<Vec<Column>>,
    /// Microseconds in the unit of time.
    pub unit: Unit,
}

/// Unit of the column `time`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Since the table says so in its second line.
    #[default]
    Micro,
    /// In the first version, whose heading says `bytes` and no units.
    Milli,
}

impl Unit {
    /// Microseconds in it.
    pub fn micros(self) -> f64 {
        match self {
            Unit::Micro => 1.0,
            Unit::Milli => 1e3,
        }
    }
}

/// A figure of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Mean time of a call.
    Time,
    /// Size over time.
    Algbw,
    /// What links carry.
    Busbw,
    /// Wrong elements.
    Wrong,
    /// The largest deviation of an element, in versions before 2.13.
    Deviation,
    /// A percentile or the like of single calls.
    Iteration,
}

/// Why times with `-C` are refused.
pub const CPU_TIME: &str = "the column `cputime` is what the host spent issuing (-C 1), not how long a call took: run \
                            without -C";

impl Columns {
    /// Understands a heading's words, from `size count type` on.
    pub fn of(words: &[&str]) -> Result<Columns, String> {
        let mut columns = Columns::default();
        if words.first() == Some(&"bytes") {
            columns.unit = Unit::Milli;
        }
        for &word in &words[3..] {
            let column = match word {
                "redop" | "op" => {
                    columns.redop = true;
                    continue;
                }
                "root" => {
                    columns.root = true;
                    continue;
                }
                "timestamp" => {
                    columns.timestamp = true;
                    continue;
                }
                "time" => {
                    columns.bodies.push(Vec::new());
                    Column::Time
                }
                "algbw" => Column::Algbw,
                "busbw" => Column::Busbw,
                "#wrong" | "wrong" => Column::Wrong,
                "error" | "res" => Column::Deviation,
                "i_min" | "i_max" | "i_p99" | "i_cv%" => Column::Iteration,
                "cputime" => {
                    return Err(CPU_TIME.to_owned());
                }
                "copybw" => {
                    return Err("the column `copybw` says that copies ran beside the collectives: these times are of \
                                shared links; run without the side work"
                        .to_owned());
                }
                other => {
                    return Err(format!(
                        "the table has a column `{other}` that no known version of nccl-tests prints: expected time, \
                         algbw, busbw, and #wrong, error or res"
                    ));
                }
            };
            let Some(body) = columns.bodies.last_mut() else {
                return Err(format!("the column `{word}` stands before any `time`: is the heading cut?"));
            };
            body.push(column);
        }
        let same = columns.bodies.windows(2).all(|pair| pair[0] == pair[1]);
        let whole = columns.bodies.first().is_some_and(|body| body.len() >= 4);
        if !(same && whole && columns.bodies.len() <= 2) {
            return Err(
                "the heading is cut: expected `time algbw busbw` and `#wrong`, `error` or `res`, once or twice"
                    .to_owned(),
            );
        }
        Ok(columns)
    }
}
