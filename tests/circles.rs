//! Files of `sim/` that import each other in circles, held against a list of those that are left (`circles.tsv`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A path as its segments: of a module, `["engine", "run"]`; of an item, the module's and the item's name.
type Segments = Vec<String>;

/// A module's source without comments, strings and tests, and what it makes known under names of its own.
struct Source {
    text: String,
    imports: BTreeMap<String, Segments>,
    exports: BTreeMap<String, Segments>,
}

/// All modules of the library but its tests, by path.
struct Modules(BTreeMap<Segments, Source>);

fn segments(path: &str) -> Segments {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The text without comments, visibilities and the tests at its end.
fn bare(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let code = text[..end].lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut bare = code.collect::<Vec<_>>().join("\n");
    while let Some(at) = bare.find("pub(") {
        let end = at + bare[at..].find(')').expect("a visibility ends");
        bare.replace_range(at..=end, "pub");
    }
    bare
}

/// The paths of a tree such as `a::{b, c::{d as e}}`, each with the name it is known by.
fn leaves(tree: &str, prefix: &[String], found: &mut Vec<(Segments, String)>) {
    let (mut depth, mut from) = (0, 0);
    for (at, letter) in tree.char_indices().chain([(tree.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = tree[from..at].trim();
                from = (at + 1).min(tree.len());
                if let Some((before, inside)) = part.split_once('{') {
                    let inner = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
                    leaves(inner, &[prefix, &segments(before)].concat(), found);
                } else if !part.is_empty() {
                    let (path, name) = part.split_once(" as ").unwrap_or((part, ""));
                    let mut path = [prefix, &segments(path)].concat();
                    if path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    let own = path.last().cloned().unwrap_or_default();
                    found.push((path, if name.is_empty() { own } else { name.trim().to_owned() }));
                }
            }
            _ => {}
        }
    }
}

impl Modules {
    /// Reads them from `sim/`.
    fn read() -> Modules {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sim");
        let (mut modules, mut open) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs")
                    && name != "main"
                    && !name.split('/').any(|part| part == "cli" || part.ends_with("tests"))
                {
                    let text = bare(&fs::read_to_string(&path).unwrap());
                    let own = if name == "lib" { vec![] } else { name.split('/').map(str::to_owned).collect() };
                    modules.insert(own, Source { text, imports: BTreeMap::new(), exports: BTreeMap::new() });
                }
            }
        }
        let mut all = Modules(modules);
        for own in all.0.keys().cloned().collect::<Vec<_>>() {
            let (mut rest, mut imports, mut exports) = (String::new(), BTreeMap::new(), BTreeMap::new());
            let mut lines = all.0[&own].text.lines();
            while let Some(line) = lines.next() {
                let (public, tree) = match line.trim().strip_prefix("pub use ") {
                    Some(tree) => (true, Some(tree)),
                    None => (false, line.trim().strip_prefix("use ")),
                };
                let Some(tree) = tree else {
                    // A declaration of a module names it and uses nothing of it.
                    let declares = line.trim().trim_start_matches("pub ").starts_with("mod ");
                    rest.extend([if declares { "" } else { line }, "\n"]);
                    continue;
                };
                let mut tree = tree.to_owned();
                while !tree.ends_with(';') {
                    tree.push_str(lines.next().expect("a use ends").trim());
                }
                let mut found = vec![];
                leaves(tree.trim_end_matches(';'), &[], &mut found);
                for (path, name) in found {
                    let Some(path) = all.absolute(&own, &path) else { continue };
                    (if public { &mut exports } else { &mut imports }).insert(name, path);
                }
            }
            let source = all.0.get_mut(&own).unwrap();
            (source.text, source.imports, source.exports) = (rest, imports, exports);
        }
        all
    }

    /// A path seen from a module, from the library's root on; none if it leads out of the library.
    fn absolute(&self, own: &[String], path: &[String]) -> Option<Segments> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([own, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                Some([&own[..own.len().checked_sub(ups)?], &path[ups..]].concat())
            }
            _ => {
                let child = [own, &path[..1]].concat();
                self.0.contains_key(&child).then(|| [own, path].concat())
            }
        }
    }

    /// The module in which what a path names is written, re-exports followed.
    fn home(&self, path: &[String], depth: u32) -> Option<&Segments> {
        let length = (1..=path.len()).rev().find(|&length| self.0.contains_key(&path[..length]))?;
        let (module, source) = self.0.get_key_value(&path[..length])?;
        let exported = path.get(length).and_then(|name| source.exports.get(name)).filter(|_| depth < 8);
        match exported {
            Some(to) => self.home(&[to, &path[length + 1..]].concat(), depth + 1),
            None => Some(module),
        }
    }

    /// The modules that a module names: by imports of their items, by re-exports that it uses itself, and by paths.
    fn named(&self, own: &Segments) -> BTreeSet<&Segments> {
        let source = &self.0[own];
        let word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let mut paths: Vec<Segments> = source.imports.values().cloned().collect();
        let mut known: BTreeMap<&str, &Segments> =
            source.imports.iter().map(|(name, to)| (name.as_str(), to)).collect();
        for token in source.text.split(|letter: char| !word(letter) && letter != ':') {
            let path = segments(token.trim_matches(':'));
            let Some(first) = path.first() else { continue };
            if let Some((name, to)) = source.exports.get_key_value(first) {
                known.insert(name, to);
                paths.push(to.clone());
            }
            match (self.absolute(own, &path).filter(|_| path.len() > 1), known.get(first.as_str())) {
                (Some(path), _) => paths.push(path),
                (None, Some(to)) if path.len() > 1 => paths.push([to, &path[1..]].concat()),
                _ => {}
            }
        }
        // A module that is imported as a whole is named where something in it is.
        let item = |path: &&Segments| !self.0.contains_key(*path);
        paths.iter().filter(item).filter_map(|path| self.home(path, 0)).filter(|home| *home != own).collect()
    }

    /// The circles: modules each of which leads to all others.
    fn circles(&self) -> Vec<Vec<String>> {
        let named: BTreeMap<&Segments, BTreeSet<&Segments>> = self.0.keys().map(|own| (own, self.named(own))).collect();
        let mut reach = BTreeMap::new();
        for own in self.0.keys() {
            let (mut seen, mut open) = (BTreeSet::new(), vec![own]);
            while let Some(module) = open.pop() {
                open.extend(named[module].iter().copied().filter(|next| seen.insert(*next)));
            }
            reach.insert(own, seen);
        }
        let (mut circles, mut done) = (vec![], BTreeSet::new());
        for own in self.0.keys().filter(|own| reach[own].contains(own)) {
            let circle: Vec<&Segments> =
                reach[own].iter().copied().filter(|other| reach[other].contains(own)).collect();
            if done.insert(circle[0]) {
                circles.push(circle.into_iter().map(|module| module.join("::")).collect());
            }
        }
        circles
    }
}

#[test]
fn no_new_circles_of_files() {
    let list = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/circles.tsv")).unwrap();
    let rows = list.lines().filter(|line| !line.starts_with('#')).skip(1);
    let listed: BTreeMap<&str, &str> =
        rows.map(|row| row.rsplit_once('\t').unwrap_or_else(|| panic!("{row:?} gives no reason"))).collect();
    let circles = Modules::read().circles();
    let found: Vec<String> = circles.iter().map(|circle| format!("{}\t{}", circle.len(), circle.join(" "))).collect();
    let new: Vec<&String> = found.iter().filter(|row| !listed.contains_key(row.as_str())).collect();
    let gone: Vec<&&str> = listed.keys().filter(|row| !found.iter().any(|found| found == *row)).collect();
    let reason = |row: &String| *listed.get(row.as_str()).unwrap_or(&"(a reason)");
    let rows: Vec<String> = found.iter().map(|row| format!("{row}\t{}", reason(row))).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "files of sim/ import each other in circles that tests/circles.tsv does not list so.\n\
         not listed: {new:#?}\nlisted and gone: {gone:#?}\n\
         The list may only shrink. If a circle is new or has more files, move what both sides need to a file of its own that \
         imports neither. If one is gone or has fewer files, the list's rows are from now on\n{}",
        rows.join("\n"),
    );
}
