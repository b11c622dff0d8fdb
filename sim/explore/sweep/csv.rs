//! Rows as a table of comma-separated values (RFC 4180). Cells are what the lines of JSON say, letter for letter, so that no number
//! differs between the two.
//!
//! Each key that is varied has a column of its own. Null is an empty cell, a list or a table is its JSON.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The field that holds what was varied, which becomes one column for each key.
const VARIED: &str = "varied";

/// Why writing a record cannot fail.
const IN_MEMORY: &str = "the table is written to memory";

/// The fields of a JSON object, in their order.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Fields, D::Error> {
        from.deserialize_map(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields, M::Error> {
        let mut fields = vec![];
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

/// Lines of rows as one table, with a header.
pub fn csv(lines: &[String]) -> Result<String, serde_json::Error> {
    let end = ::csv::Terminator::Any(b'\n');
    // Nothing is lost of a row that has other fields than the first.
    let mut table = ::csv::WriterBuilder::new().terminator(end).flexible(true).from_writer(vec![]);
    for (at, line) in lines.iter().enumerate() {
        let (names, cells): (Vec<String>, Vec<String>) = columns(line)?.into_iter().unzip();
        if at == 0 {
            table.write_record(&names).expect(IN_MEMORY);
        }
        table.write_record(&cells).expect(IN_MEMORY);
    }
    Ok(String::from_utf8(table.into_inner().expect(IN_MEMORY)).expect("names and cells are text"))
}

/// The columns of a row, with its cells.
fn columns(line: &str) -> Result<Vec<(String, String)>, serde_json::Error> {
    let mut columns = vec![];
    for (name, value) in serde_json::from_str::<Fields>(line)?.0 {
        if name == VARIED {
            for (key, value) in serde_json::from_str::<Fields>(value.get())?.0 {
                columns.push((key, cell(&value)));
            }
        } else {
            columns.push((name, cell(&value)));
        }
    }
    Ok(columns)
}

/// Text without its quotes, and all else as JSON has it.
fn cell(value: &RawValue) -> String {
    match value.get() {
        "null" => String::new(),
        text if text.starts_with('"') => serde_json::from_str(text).unwrap_or_else(|_| text.to_owned()),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_what_the_line_says() {
        let line = r#"{"index":0,"varied":{"b":"x, \"y\"","a":{"every":2},"c":null},"step_time_s":0.30000000000000004,"mfu":null}"#;
        let table = csv(&[line.to_owned()]).expect("a row");
        let header = "index,b,a,c,step_time_s,mfu";
        assert_eq!(table, format!("{header}\n0,\"x, \"\"y\"\"\",\"{{\"\"every\"\":2}}\",,0.30000000000000004,\n"));
    }

    #[test]
    fn only_cells_that_need_quotes_have_them() {
        let line = r#"{"index":1,"error":"two\nlines","plain":"a b; #c","none":""}"#;
        assert_eq!(csv(&[line.to_owned()]).expect("a row"), "index,error,plain,none\n1,\"two\nlines\",a b; #c,\n");
        assert_eq!(csv(&[]).expect("no rows"), "");
    }
}
