//! Where runs begin and end in a log, and what each holds.
//!
//! A run is what one start of a program printed: versions, parameters, devices, one table, a footer. Any of these may be
//! missing from a log that was cut or pasted, so a run ends where something comes that cannot come again.

use std::collections::BTreeMap;

use super::Mistake;
use super::columns::Columns;
use super::kind::Kind;
use super::line::{Line, Parameters, Rank};
use super::row::{self, Next, Pending, Row};

/// One start of a program.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its first line.
    pub line: usize,
    /// The collective, as the program says it.
    pub named: Option<Kind>,
    /// The collective, as a command or the file's name mentions it.
    pub hinted: Option<Kind>,
    /// How it was asked for.
    pub parameters: Option<Parameters>,
    /// Its ranks, in the log's order.
    pub ranks: Vec<Rank>,
    /// Versions by component.
    pub versions: BTreeMap<String, String>,
    /// Its table.
    pub rows: Vec<Row>,
    /// Where the table breaks off inside a row.
    pub cut: Option<usize>,
    /// The heading of the table that is being read.
    pub columns: Option<Columns>,
    /// Whether its footer was read.
    pub over: bool,
}

/// All runs of a log.
pub fn runs(text: &str, file: Option<Kind>) -> Result<Vec<Run>, Mistake> {
    let mut reader = Reader { hint: file, ..Reader::default() };
    for (at, raw) in text.lines().enumerate() {
        let plain = without_codes(raw);
        reader.line(at + 1, &plain)?;
    }
    reader.end();
    if reader.runs.is_empty() {
        return Err((
            1,
            "no run of nccl-tests in it: expected its printed output, with a heading `# size count type …`".to_owned(),
        ));
    }
    Ok(reader.runs)
}

/// A line without a terminal's colour codes.
fn without_codes(raw: &str) -> String {
    let mut plain = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((before, code)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = code.find(|c: char| c.is_ascii_alphabetic()).map_or("", |end| &code[end + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[derive(Default)]
struct Reader {
    runs: Vec<Run>,
    now: Run,
    pending: Option<Pending>,
    hint: Option<Kind>,
}

impl Reader {
    /// Ends the run and begins another if what comes cannot come twice.
    fn begin(&mut self, line: usize, again: bool) {
        if again || self.now.over || self.now.columns.is_some() {
            self.end();
        }
        if self.now.line == 0 {
            self.now.line = line;
        }
    }

    fn end(&mut self) {
        self.break_off();
        let run = std::mem::take(&mut self.now);
        if run.line > 0 {
            self.runs.push(run);
        }
    }

    /// A row that never became whole.
    fn break_off(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.now.cut = Some(pending.line());
            if let Some(row) = self.now.columns.as_ref().and_then(|columns| pending.cut(columns)) {
                self.now.rows.push(row);
            }
        }
    }

    fn line(&mut self, at: usize, text: &str) -> Result<(), Mistake> {
        let bad = |why: String| (at, why);
        if row::begins(text) {
            return self.row(at, text);
        }
        match Line::of(text).map_err(bad)? {
            Line::Version(nccl) => {
                self.begin(at, !self.now.versions.is_empty() || self.now.parameters.is_some());
                if let Some(nccl) = nccl {
                    self.now.versions.insert("nccl".to_owned(), nccl);
                }
            }
            Line::Starting(kind) => {
                self.begin(at, self.now.named.is_some() || self.now.parameters.is_some());
                self.now.named = Some(kind);
            }
            Line::Parameters(parameters) => {
                self.begin(at, self.now.parameters.is_some());
                self.now.parameters = Some(parameters);
            }
            Line::Devices => self.begin(at, !self.now.ranks.is_empty()),
            Line::Rank(rank) => {
                self.begin(at, false);
                if self.now.ranks.iter().any(|known| known.rank == rank.rank && known.group == rank.group) {
                    return Err(bad(format!(
                        "rank {} is listed twice: programs built without MPI and started several times measure nothing \
                         together; build nccl-tests with MPI=1",
                        rank.rank
                    )));
                }
                self.now.ranks.push(rank);
            }
            Line::Heading(columns) => {
                self.begin(at, false);
                self.now.columns = Some(columns);
                self.now.hinted = self.hint;
            }
            Line::Units(unit) => {
                if unit != "(us)" {
                    return Err(bad(format!("the table's times are in {unit}: expected (us)")));
                }
            }
            Line::Blocking => {
                return Err(bad(BLOCKING.to_owned()));
            }
            Line::OutOfBounds(count) => {
                in_bounds(count).map_err(bad)?;
                self.break_off();
                self.now.over = self.now.line > 0;
                self.now.columns = None;
            }
            Line::Nccl(nccl, cuda) => {
                self.now.versions.insert("nccl".to_owned(), nccl);
                if let Some(cuda) = cuda {
                    self.now.versions.insert("cuda".to_owned(), cuda);
                }
            }
            Line::Other => {
                if let Some(kind) = Kind::program(text) {
                    self.hint = Some(kind);
                }
                match (self.pending.take(), &self.now.columns) {
                    (Some(pending), Some(columns)) => {
                        let next = pending.go_on(text, columns).map_err(bad)?;
                        self.take(next)?;
                    }
                    (None, Some(_)) => row::garbled(text).map_or(Ok(()), |why| Err(bad(why)))?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, at: usize, text: &str) -> Result<(), Mistake> {
        // A row in a remark (`# 1048576 262144 float …`) was written by a person.
        if text.trim_start().starts_with('#') {
            return Ok(());
        }
        if let Some(pending) = &self.pending {
            return Err((
                pending.line(),
                "the row breaks off and another follows: is the log damaged here?".to_owned(),
            ));
        }
        let Some(columns) = &self.now.columns else {
            return Err((
                at,
                "a row without a heading above it: which columns are these? Keep the line `# size count type …`"
                    .to_owned(),
            ));
        };
        let next = row::begin(at, text, columns).map_err(|why| (at, why))?;
        self.take(next)
    }

    fn take(&mut self, next: Next) -> Result<(), Mistake> {
        match next {
            Next::Pending(pending) => self.pending = Some(pending),
            Next::Whole(row) => {
                right(&row)?;
                self.now.rows.push(row);
            }
        }
        Ok(())
    }
}

/// Why times with `-z` are refused.
pub const BLOCKING: &str = "times include the host's wait after each call (-z): they are not what a stream of calls takes; \
                            run without -z";

/// Refuses a run whose results failed checks.
pub fn in_bounds(count: u64) -> Result<(), String> {
    let why = || {
        format!(
            "{count} checks of the results failed: times of a collective that computes wrong sums are refused; run again \
             after the fabric or the driver is repaired"
        )
    };
    if count > 0 { Err(why()) } else { Ok(()) }
}

/// Refuses a row whose results were wrong.
pub fn right(row: &Row) -> Result<(), Mistake> {
    match row.bodies.iter().flatten().filter_map(|body| body.wrong).find(|wrong| *wrong > 0.0) {
        None => Ok(()),
        Some(wrong) => Err((
            row.line,
            format!(
                "#wrong is {wrong} for {} bytes: times of a collective that computes wrong results are refused; run again \
                 after the fabric or the driver is repaired",
                row.bytes
            ),
        )),
    }
}
