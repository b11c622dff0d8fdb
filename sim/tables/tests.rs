//! What is read, and what is said of what is not, against the parser itself.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::value::Datetime;

use super::*;

/// A type of every shape that a file of ours has.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shapes {
    flag: Option<bool>,
    count: Option<Spanned<i64>>,
    small: Option<u8>,
    number: Option<Spanned<f64>>,
    text: Option<Spanned<String>>,
    date: Option<Datetime>,
    pair: Option<(u32, f32)>,
    choice: Option<Spanned<Choices>>,
    #[serde(default)]
    inner: Inner,
    list: Option<Spanned<Vec<Spanned<Inner>>>>,
    any: Option<BTreeMap<String, Spanned<Value>>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Inner {
    one_more: Option<Spanned<Even>>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Choices {
    Full,
    Every(u32),
    Both { left: u32, right: u32 },
}

/// What a conversion refuses once the value itself has been read.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "i64")]
struct Even(i64);

impl TryFrom<i64> for Even {
    type Error = String;

    fn try_from(count: i64) -> Result<Even, String> {
        if count % 2 == 0 { Ok(Even(count)) } else { Err(format!("{count} is odd")) }
    }
}

const READ: [&str; 14] = [
    "",
    "flag = true\ncount = 0x10\nsmall = 3\nnumber = -1.5e3\ntext = '''\nlong'''\n",
    "number = 4",
    "number = inf",
    "date = 1979-05-27T07:32:00Z",
    "pair = [1, 2.5]",
    "pair = [1, 2]",
    "choice = \"full\"",
    "choice = { every = 2 }",
    "choice = { both = { left = 1, right = 2 } }",
    "choice = { full = {} }",
    "[inner]\none-more = 2",
    "[[list]]\none-more = 2\n[[list]]\n",
    "[any]\na = 1\nb.c = [1979-05-27, 'text', 1e3]\n\"ü b\" = { d = false }",
];

const REFUSED: [&str; 27] = [
    "flag = 1",
    "flag = tru",
    "flag = true\nflag = true",
    "other = 1",
    "count = 'text'",
    "count = 1.5",
    "small = 256",
    "small = -1",
    "text = 1979-05-27",
    "date = 'text'",
    "pair = [1]",
    "pair = [1, 'text']",
    "choice = 'half'",
    "choice = 'every'",
    "choice = { every = 'text' }",
    "choice = { half = 1 }",
    "choice = { every = 1, full = {} }",
    "choice = {}",
    "choice = { full = 1 }",
    "choice = { full = 1.5 }",
    "choice = { full = 'text' }",
    "choice = { full = [1] }",
    "choice = { full = { more = 1 } }",
    "choice = { both = { left = 1 } }",
    "[inner]\none-more = 'text'",
    "[[list]]\nother = 2",
    "list = 1",
];

#[test]
fn what_is_read_is_what_the_parser_of_toml_reads_itself() {
    for text in READ {
        let own: Shapes = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let theirs: Shapes = toml::from_str(text).expect("it is what it should be");
        assert_eq!(own, theirs, "{text}");
        let places = |read: &Shapes| {
            let list = read.list.iter().flat_map(|list| list.get_ref().iter().map(Spanned::span));
            let of = [
                read.count.as_ref().map(Spanned::span),
                read.number.as_ref().map(Spanned::span),
                read.text.as_ref().map(Spanned::span),
                read.choice.as_ref().map(Spanned::span),
                read.list.as_ref().map(Spanned::span),
            ];
            of.into_iter().flatten().chain(list).collect::<Vec<_>>()
        };
        assert_eq!(places(&own), places(&theirs), "{text}");
    }
}

#[test]
fn what_is_refused_is_refused_with_the_parsers_words_and_place() {
    for text in REFUSED {
        let own = read::<Shapes>(text).expect_err(text);
        let theirs = toml::from_str::<Shapes>(text).expect_err(text);
        assert_eq!((own.message(), own.span()), (theirs.message().trim_end(), theirs.span()), "{text}");
    }
}

#[test]
fn a_conversion_that_fails_is_at_the_value_that_it_is_of() {
    let text = "list = [{ one-more = 2 }, { one-more = 33 }]";
    let error = read::<Shapes>(text).expect_err("33 is odd");
    assert_eq!((error.message(), error.span().map(|at| &text[at])), ("33 is odd", Some("33")));
}

#[test]
fn numbers_of_more_than_64_bits_are_refused_at_their_place() {
    for digits in ["9223372036854775808", "-1e999"] {
        let text = format!("number = {digits}");
        let error = read::<Shapes>(&text).expect_err(digits);
        assert_eq!(error.span().map(|at| &text[at]), Some(digits), "{error}");
    }
}

#[test]
fn a_table_of_a_program_is_read_as_its_text_is() {
    for text in READ {
        let table: Table = toml::from_str(text).expect("it is TOML");
        assert_eq!(Node::from(&table).table().as_ref(), Some(&table), "{text}");
        assert_eq!(Node::parse(text).expect("it is TOML").table().as_ref(), Some(&table), "{text}");
        let own = Shapes::deserialize(&Node::from(&table)).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(own, read(text).expect("it is read"), "{text}");
    }
}
