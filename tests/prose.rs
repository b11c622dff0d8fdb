//! How prose reads, as far as that can be counted: sentences are short, and the pages that newcomers open are easy.
//!
//! It is a floor. A text that passes may still be bad; one that fails is too long to be read once. `tests/prose.tsv` lists files
//! with sentences that are too long, and how many: the list may only shrink (`UPDATE=1` writes it anew where it shrinks).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Words a sentence may have, on average and at most.
const AVERAGE: f64 = 18.0;
const LONGEST: usize = 35;
/// Flesch's reading ease of the pages for newcomers, at least (Flesch 1948, "A new readability yardstick").
const EASE: f64 = 50.0;

/// Pages that are generated: a table of facts is no prose.
const GENERATED: [&str; 4] = ["keys.md", "json.md", "commands.md", "errors.md"];

/// A page that keeps the words of its day.
const PAST: &str = "history.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn below(folder: &str, ending: &str) -> Vec<PathBuf> {
    let (mut open, mut found) = (vec![root().join(folder)], vec![]);
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text of a page, paragraph by paragraph: without code, tables, headings and addresses.
fn paragraphs(markdown: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut code = false;
    for line in markdown.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            code = !code;
        }
        let begins = ["- ", "* ", "> "].iter().any(|mark| line.starts_with(mark))
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let skipped = code || line.is_empty() || ["```", "|", "#", "<", "!["].iter().any(|mark| line.starts_with(mark));
        if skipped || begins {
            all.push(String::new());
        }
        if !skipped {
            let words = line.trim_start_matches(['-', '*', '>', ' ']);
            let last = all.last_mut().unwrap();
            *last += " ";
            *last += words;
        }
    }
    all.into_iter().map(|text| plain(&text)).filter(|text| !text.is_empty()).collect()
}

/// Without marks: of a link its words, of code one word.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.trim();
    while let Some(at) = rest.find(['`', ']', '[', '*']) {
        out += &rest[..at];
        let after = &rest[at + 1..];
        rest = match &rest[at..=at] {
            "`" => match after.split_once('`') {
                Some((_, after)) => {
                    out += "code";
                    after
                }
                None => after,
            },
            "]" if after.starts_with('(') => after.split_once(')').map_or("", |(_, after)| after),
            _ => after,
        };
    }
    (out + rest).trim().to_owned()
}

/// Sentences, each as its words.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let mut all = vec![vec![]];
    for word in text.split_whitespace() {
        let letters: String = word.chars().filter(|letter| letter.is_alphanumeric()).collect();
        if !letters.is_empty() {
            all.last_mut().unwrap().push(letters);
        }
        let bare = word.trim_end_matches(['"', ')', '*', '”']);
        let short = ["e.g.", "i.e.", "et", "al.", "vs.", "cf.", "fig."].contains(&bare);
        // A colon or a semicolon ends a thought as well.
        if !short && bare.ends_with(['.', '!', '?', ':', ';']) {
            all.push(vec![]);
        }
    }
    all.retain(|sentence| sentence.len() > 1);
    all
}

/// Groups of vowels, which is what syllables are for this purpose.
fn syllables(word: &str) -> usize {
    let word = word.to_lowercase();
    let mut count = 0;
    let mut before = false;
    for letter in word.chars() {
        let vowel = "aeiouy".contains(letter);
        count += usize::from(vowel && !before);
        before = vowel;
    }
    let silent = word.ends_with('e') && !word.ends_with("le") && count > 1;
    (count - usize::from(silent)).max(1)
}

struct Read {
    sentences: Vec<Vec<String>>,
}

impl Read {
    fn of(paragraphs: &[String]) -> Read {
        Read { sentences: paragraphs.iter().flat_map(|text| sentences(text)).collect() }
    }

    fn words(&self) -> usize {
        self.sentences.iter().map(Vec::len).sum()
    }

    fn average(&self) -> f64 {
        self.words() as f64 / self.sentences.len().max(1) as f64
    }

    fn long(&self) -> Vec<String> {
        let long = self.sentences.iter().filter(|sentence| sentence.len() > LONGEST);
        long.map(|sentence| format!("{} words: {}", sentence.len(), sentence.join(" "))).collect()
    }

    fn ease(&self) -> f64 {
        let syllables: usize = self.sentences.iter().flatten().map(|word| syllables(word)).sum();
        206.835 - 1.015 * self.average() - 84.6 * syllables as f64 / self.words().max(1) as f64
    }
}

/// Doc comments of a source file, as paragraphs.
fn comments(source: &str) -> Vec<String> {
    let mut text = String::new();
    for line in source.lines().map(str::trim_start) {
        match line.strip_prefix("//!").or_else(|| line.strip_prefix("///")) {
            Some(words) => text += words.strip_prefix(' ').unwrap_or(words),
            // What stands between two comments ends a paragraph.
            None => text += "\n",
        }
        text += "\n";
    }
    paragraphs(&text)
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()
}

fn pages() -> Vec<PathBuf> {
    let mut pages = below("docs", "md");
    pages.retain(|page| !GENERATED.iter().chain([&PAST]).any(|name| page.ends_with(name)));
    pages.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    pages
}

#[test]
fn sentences_of_pages_are_short() {
    for page in pages() {
        let read = Read::of(&paragraphs(&std::fs::read_to_string(&page).unwrap()));
        assert!(read.average() <= AVERAGE, "{}: {:.1} words a sentence", name(&page), read.average());
        let long = read.long();
        assert!(long.is_empty(), "{}:\n{}", name(&page), long.join("\n"));
    }
}

#[test]
fn what_newcomers_read_is_easy() {
    let mut easy: Vec<PathBuf> = below("docs", "md");
    easy.retain(|page| name(page).contains("start"));
    easy.push(root().join("README.md"));
    for page in easy {
        let read = Read::of(&paragraphs(&std::fs::read_to_string(&page).unwrap()));
        assert!(read.ease() >= EASE, "{}: reading ease {:.0}", name(&page), read.ease());
    }
}

#[test]
fn comments_have_no_more_long_sentences_than_are_listed() {
    let path = root().join("tests/prose.tsv");
    let listed = std::fs::read_to_string(&path).unwrap();
    let known: BTreeMap<&str, usize> = listed
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').unwrap())
        .map(|(file, count)| (file, count.parse().unwrap()))
        .collect();
    let mut now: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut all = vec![];
    for file in below("sim", "rs").into_iter().chain(below("calibrate", "rs")) {
        let comments = comments(&std::fs::read_to_string(&file).unwrap());
        let long = Read::of(&comments).long();
        all.extend(comments);
        if !long.is_empty() {
            now.insert(name(&file), long);
        }
    }
    let average = Read::of(&all).average();
    assert!(average <= AVERAGE, "{average:.1} words a sentence of doc comments");
    // A list that is yet to be made.
    let begun = std::env::var_os("UPDATE").is_some() && known.is_empty();
    for (file, long) in now.iter().filter(|_| !begun) {
        let allowed = known.get(file.as_str()).copied().unwrap_or(0);
        assert!(long.len() <= allowed, "{file}, of which {allowed} may be:\n{}", long.join("\n"));
    }
    let lines: String = now.iter().map(|(file, long)| format!("{file}\t{}\n", long.len())).collect();
    let head: String = listed.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, head + &lines).unwrap();
    } else {
        assert!(listed == head + &lines, "the list shrinks: UPDATE=1 cargo test prose");
    }
}

#[test]
fn a_sentence_ends_where_a_reader_takes_breath() {
    let text = "We keep `a + b` (see [the paper](https://a.b/c), fig. 3). It is 0.5 % off: that is little; nobody minds.\n\n- One more.";
    let read = Read::of(&paragraphs(text));
    let lengths: Vec<usize> = read.sentences.iter().map(Vec::len).collect();
    assert_eq!(lengths, [8, 4, 3, 2, 2], "{:?}", read.sentences);
    assert_eq!(["simulate", "step", "table", "memory", "rate"].map(syllables), [3, 1, 2, 3, 1]);
}
