//! What reading a file may cost: ten times its bytes and 64 MiB of memory, the program's own among them.
//!
//! A byte of text can become a hundred in memory: `[[a]]` is a table with a map of its own. So what a text can hold is counted before it
//! is parsed, by the characters without which there is no value, and a file that would cost more is refused in words. What a value costs
//! is measured (docs/how/reading.md).

/// Bytes of memory for each byte that is read.
pub const MULTIPLE: u64 = 10;
/// Bytes of memory that a file may take whatever its size, without the program's own.
pub const FREE: u64 = 40 << 20;

/// Most bytes of a configuration that people write: no framework's has a tenth of it.
pub const CONFIGURATION: usize = 2 << 20;

/// What a value takes at most \[B\]: a table in a list of tables, parsed and as a tree with places.
const TOML: u64 = 1_000;
/// A dot in a key makes a table, and one in a number nothing.
const DOT: u64 = 300;
/// A word, before it is known to be none of TOML.
const WORD: u64 = 100;
/// An object of one value.
const JSON: u64 = 200;

/// An event of a trace in binary that is kept, or what names events: read, joined and assigned to its step.
pub const EVENT: u64 = 280;
/// A value of an event or of a kind of event.
pub const STAT: u64 = 64;

/// A row of a table in CSV, and a cell of it.
const ROW: u64 = 200;
const CELL: u64 = 16;
/// A point that was measured, as text and as it is checked.
pub const POINT: u64 = 500;

/// Whether a text of TOML may be parsed.
///
/// # Errors
/// What it would take, in words.
pub fn toml(text: &str) -> Result<(), String> {
    let (dots, words) = (count(text, |byte| byte == b'.'), count(text, |byte| byte.is_ascii_whitespace()));
    let values = count(text, |byte| matches!(byte, b'=' | b',' | b'[' | b'{'));
    within(text.len() as u64, values * TOML + dots * DOT + words * WORD)
}

/// Whether a text of JSON may be parsed.
///
/// # Errors
/// What it would take, in words.
pub fn json(text: &str) -> Result<(), String> {
    within(text.len() as u64, count(text, |byte| matches!(byte, b':' | b',' | b'[' | b'{')) * JSON)
}

/// Whether a table of CSV may be parsed.
///
/// # Errors
/// What it would take, in words.
pub fn csv(text: &[u8]) -> Result<(), String> {
    let (mut rows, mut cells) = (0, 0);
    for byte in text {
        rows += u64::from(matches!(byte, b'\n' | b'\r'));
        cells += u64::from(*byte == b',');
    }
    within(text.len() as u64, rows * ROW + cells * CELL)
}

fn count(text: &str, is_one: impl Fn(u8) -> bool) -> u64 {
    text.bytes().filter(|&byte| is_one(byte)).count() as u64
}

/// Whether what was read may take so much.
///
/// # Errors
/// What it would take, in words.
pub fn within(bytes: u64, takes: u64) -> Result<(), String> {
    if takes <= FREE + MULTIPLE * bytes {
        return Ok(());
    }
    let (takes, bytes) = (takes >> 20, bytes as f64 / f64::from(1 << 20));
    Err(format!(
        "it holds so many values that it would take {takes} MiB to read its {bytes:.1} MiB: split it, or leave out what is not read"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_values_may_be_long_and_a_few_values_may_be_dense() {
        assert_eq!(
            (toml(&"# a_long_comment_without_any_spaces\n".repeat(1 << 20)), json(&" ".repeat(1 << 20))),
            (Ok(()), Ok(()))
        );
        assert_eq!((toml(&"[[a]]\n".repeat(10_000)), json(&"[1,".repeat(50_000))), (Ok(()), Ok(())));
        for refused in [
            toml(&"[[a]]\n".repeat(100_000)),
            toml(&format!("{} = 1", "a.".repeat(1 << 18))),
            json(&"[".repeat(1 << 20)),
        ] {
            let why = refused.expect_err("it is too much");
            assert!(why.contains("MiB to read its "), "{why}");
        }
    }
}
