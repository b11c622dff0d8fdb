//! Links between pages: each leads to a file and a heading that are there, and those of the book stay in the book.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::readme::book;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// All pages whose links are followed.
fn pages() -> Vec<PathBuf> {
    let mut pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page)).to_vec();
    let mut open = ["sim", "calibrate", "tests", "benches", "python"].map(|folder| root().join(folder)).to_vec();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.extend(book());
    pages.sort();
    pages
}

/// Lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Targets of a line's links, `[…](target)`.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    inline.map(|(target, _)| target.trim().to_owned()).collect()
}

/// The anchor of a heading, as GitHub and mdBook make it: small letters, digits, hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a page; headings of one name are numbered.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = vec![];
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let name = anchor(heading);
        let times = seen.entry(name.clone()).or_default();
        found.push(if *times == 0 { name } else { format!("{name}-{times}") });
        *times += 1;
    }
    found
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// What is wrong with a link of a page, if anything.
fn fault(page: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let file = if file.is_empty() { page.to_owned() } else { plain(&page.parent().unwrap().join(file)) };
    if !file.exists() {
        return Some(format!("{target}: there is no {}", file.strip_prefix(root()).unwrap_or(&file).display()));
    }
    let docs = root().join("docs");
    if page.starts_with(&docs) && !file.starts_with(&docs) {
        return Some(format!("{target} leads out of the book: name the file in backticks"));
    }
    let heading = heading?;
    let there = if file == page { text.to_owned() } else { fs::read_to_string(&file).unwrap_or_default() };
    (!anchors(&there).contains(&heading.to_owned())).then(|| format!("{target}: {} has no such heading", name(&file)))
}

#[test]
fn every_link_leads_somewhere() {
    let (mut broken, mut followed) = (vec![], 0);
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (at, line) in prose(&text) {
            for target in targets(line) {
                followed += 1;
                if let Some(fault) = fault(&page, &text, &target) {
                    broken.push(format!("{}:{at}: {fault}", name(&page)));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere\n{}", broken.join("\n"));
    assert!(followed > 100, "only {followed} links were found");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<PathBuf> = summary.lines().flat_map(targets).map(|target| docs.join(target)).collect();
    let missing: Vec<String> = book()
        .into_iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .map(|page| name(&page))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks\n{}", missing.join("\n"));
}

#[test]
fn anchors_are_those_of_the_renderers() {
    assert_eq!(anchor(" What is compared, and what differs"), "what-is-compared-and-what-differs");
    assert_eq!(anchor(" `memory.live_at_peak[]`"), "memorylive_at_peak");
    assert_eq!(anchors("# A\n## B\n```\n# no\n```\n## B\n"), ["a", "b", "b-1"]);
}
