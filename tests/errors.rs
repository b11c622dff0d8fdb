//! `docs/errors.md` has every refusal that has a code: what is not simulated, under which frameworks, and what to write instead.
//!
//! The page is read off the source of `sim/runtime`, where each refusal is built from literals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Lit, Token};
use windtunnel::runtime::megatron::FP8;
use windtunnel::scenario::Runtime;

use crate::keys::rows;
use crate::pages::fresh;

/// What a source file's refusals are of: the frameworks whose jobs it is asked about.
const FRAMEWORKS: [(&str, &[&str]); 19] = [
    (
        "framework.rs",
        &[
            "ddp",
            "deepspeed",
            "deepspeed-zero",
            "fsdp1",
            "fsdp2",
            "internevo",
            "megatron",
            "nanotron",
            "single_device",
            "torch_xla",
            "xla",
        ],
    ),
    ("ddp.rs", &["ddp"]),
    ("eager/megatron/", MEGATRON),
    ("internevo.rs", &["internevo"]),
    ("megatron.rs", MEGATRON),
    ("megatron/adapter.rs", MEGATRON),
    ("megatron/chunk/", SPLIT),
    ("megatron/documents.rs", MEGATRON),
    ("megatron/experts.rs", SPLIT),
    ("megatron/fsdp/", MEGATRON),
    ("megatron/latent.rs", SPLIT),
    ("megatron/mamba.rs", MEGATRON),
    ("megatron/mtp.rs", MEGATRON),
    ("megatron/vocabulary.rs", MEGATRON),
    ("nanotron.rs", &["nanotron"]),
    ("spmd", &["torch_xla", "xla"]),
    ("train/reference.rs", &["fsdp2", "single_device"]),
    ("train/", &["fsdp2", "fsdp1", "ddp", "single_device", "deepspeed-zero"]),
    ("zero.rs", &["deepspeed-zero"]),
];

const MEGATRON: &[&str] = &["megatron", "deepspeed"];

/// Refusals whose words come from the operator that has no rules.
const TOLD_BY_OPERATORS: [(&str, &str); 2] = [
    ("autocast-operator", "an operator of the model under autocast"),
    ("compiled-operator", "an operator of the model in compiled layers"),
];

/// Those whose modules are Megatron's, whole or in part.
const SPLIT: &[&str] = &["megatron", "deepspeed", "internevo", "nanotron"];

/// A refusal, as far as its source says.
#[derive(Default)]
struct Found {
    problem: String,
    key: Option<String>,
    instead: Option<String>,
    file: String,
}

/// Values of names: constants of the crate, then variables of a function.
type Values = BTreeMap<String, Expr>;

struct Reader<'c> {
    file: String,
    constants: &'c Values,
    locals: Values,
    /// Variables that hold a refusal, by their names.
    held: BTreeMap<String, String>,
    found: BTreeMap<String, Found>,
}

fn name_of(expr: &Expr) -> Option<String> {
    let Expr::Path(path) = expr else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

fn literal(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// A text of `format!`, with words for what is put in: the schedule's name, else the model's.
fn filled(text: &str, known: Option<(&str, &str)>) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or(("", part));
        let other = if name == "name" { "the schedule" } else { "the model" };
        out += known.filter(|(of, _)| *of == name).map_or(other, |(_, value)| value);
        out += rest;
    }
    out
}

impl Reader<'_> {
    /// What an expression says, if it is a text.
    fn words(&self, expr: &Expr) -> Option<String> {
        if let Some(text) = literal(expr) {
            return Some(text);
        }
        match expr {
            Expr::Path(_) => {
                let name = name_of(expr)?;
                self.words(self.locals.get(&name).or_else(|| self.constants.get(&name))?)
            }
            Expr::Macro(of) if of.mac.path.is_ident("format") => self.formatted(&of.mac, None),
            Expr::Match(of) => self.words(&of.arms.first()?.body),
            Expr::Block(of) => match of.block.stmts.last()? {
                syn::Stmt::Expr(last, None) => self.words(last),
                syn::Stmt::Macro(last) => self.formatted(&last.mac, None),
                _ => None,
            },
            Expr::Reference(of) => self.words(&of.expr),
            Expr::MethodCall(of) => self.words(&of.receiver),
            // A closure that puts its argument into a text.
            Expr::Call(of) => match self.locals.get(&name_of(&of.func)?)? {
                Expr::Closure(closure) => {
                    let Expr::Macro(body) = &*closure.body else { return None };
                    let argument = self.words(of.args.first()?)?;
                    let syn::Pat::Type(parameter) = closure.inputs.first()? else { return None };
                    let syn::Pat::Ident(parameter) = &*parameter.pat else { return None };
                    self.formatted(&body.mac, Some((&parameter.ident.to_string(), &argument)))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn formatted(&self, mac: &syn::Macro, known: Option<(&str, &str)>) -> Option<String> {
        let arguments = mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated).ok()?;
        Some(filled(&literal(arguments.first()?)?, known))
    }

    /// The code of the refusal that an expression builds, which is then among those found.
    fn built(&mut self, expr: &Expr) -> Option<String> {
        match expr {
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else { return None };
                let names: Vec<String> = path.path.segments.iter().map(|one| one.ident.to_string()).collect();
                if names != ["Refusal", "new"] {
                    return None;
                }
                let code = literal(&call.args[0]).unwrap_or_else(|| panic!("{}: a code is a literal", self.file));
                let named = TOLD_BY_OPERATORS.iter().find(|(of, _)| *of == code).map(|(_, words)| (*words).to_owned());
                let problem = named.or_else(|| self.words(&call.args[1]));
                let problem = problem.unwrap_or_else(|| panic!("{code}: its problem is no text that can be read"));
                self.found.insert(code.clone(), Found { problem, file: self.file.clone(), ..Found::default() });
                Some(code)
            }
            Expr::Path(_) => self.held.get(&name_of(expr)?).cloned(),
            Expr::MethodCall(call) if call.method == "on" || call.method == "instead" => {
                let code = self.built(&call.receiver)?;
                let words = self.words(&call.args[0]);
                let words = words.unwrap_or_else(|| panic!("{code}: .{} is no text that can be read", call.method));
                let found = self.found.get_mut(&code)?;
                let slot = if call.method == "on" { &mut found.key } else { &mut found.instead };
                *slot = Some(words);
                Some(code)
            }
            _ => None,
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.locals.clear();
        visit::visit_item_fn(self, item);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            let name = name.ident.to_string();
            if let Some(code) = self.built(&init.expr) {
                self.held.insert(name, code);
                return;
            }
            self.locals.insert(name, (*init.expr).clone());
        }
        visit::visit_local(self, local);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        if self.built(expr).is_none() {
            visit::visit_expr(self, expr);
        }
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        if let Ok(arguments) = mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }
}

struct Constants(Values);

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.0.insert(item.ident.to_string(), (*item.expr).clone());
    }
}

fn sources() -> Vec<(String, syn::File)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sim/runtime");
    let mut open: Vec<PathBuf> = vec![root.clone()];
    let mut files = vec![];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                let text = fs::read_to_string(&path).unwrap();
                files.push((name, syn::parse_file(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()))));
            }
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    files
}

/// Every refusal, by its code.
fn refusals() -> BTreeMap<String, Found> {
    let files = sources();
    let mut constants = Constants(Values::new());
    files.iter().for_each(|(_, file)| constants.visit_file(file));
    let mut all = BTreeMap::new();
    for (name, file) in &files {
        let mut reader = Reader {
            file: name.clone(),
            constants: &constants.0,
            locals: Values::new(),
            held: BTreeMap::new(),
            found: BTreeMap::new(),
        };
        reader.visit_file(file);
        all.append(&mut reader.found);
    }
    all
}

/// The frameworks that may refuse so: those of the file that read the key.
fn frameworks(found: &Found) -> Vec<&'static str> {
    let of_file = FRAMEWORKS.iter().find(|(file, _)| found.file.starts_with(file));
    let (_, names) = of_file.unwrap_or_else(|| panic!("{}: whose refusals are these?", found.file));
    let reads = |name: &str| {
        let key = found.key.as_ref().and_then(|path| rows().find(|(_, key)| key.path == *path));
        key.is_none_or(|(_, key)| key.is_read_by(name))
    };
    Runtime::ALL.map(Runtime::written).into_iter().filter(|name| names.contains(name) && reads(name)).collect()
}

fn page(refusals: &BTreeMap<String, Found>) -> String {
    let mut page = String::from(
        "# Refusals\n\nGenerated from `sim/runtime/` by `UPDATE=1 cargo test errors`. `windtunnel explain CODE` prints one section of this \
         page.\n\nWindtunnel refuses a plan that it cannot simulate instead of guessing. Each such refusal has a code, which stays when \
         its words change: scripts may rely on it. Where a section says nothing about what to write instead, the refusal itself \
         proposes single changes that make the file work. `windtunnel show model` describes the model even so.\n",
    );
    for (code, found) in refusals {
        let why = match found.key.as_deref() {
            _ if code.starts_with("step-") => "No step is written for `windtunnel compile-check`: ",
            // A sentence of its own.
            _ if code.starts_with("halves-") => "With backwards in halves: ",
            Some(FP8) => "Transformer Engine refuses it, or it is not simulated: ",
            _ => "Not simulated: ",
        };
        let _ = write!(page, "\n## {code}\n\n{why}{}.\n\n", found.problem);
        let _ = writeln!(page, "- Frameworks: {}", frameworks(found).join(", "));
        if let Some(key) = &found.key {
            let _ = writeln!(page, "- Key: `{key}`");
        }
        if let Some(instead) = &found.instead {
            let _ = writeln!(page, "- Instead: {instead}");
        }
    }
    page
}

#[test]
fn the_page_of_refusals_has_every_code() {
    let refusals = refusals();
    let listed: Vec<&str> = include_str!("refusal_codes.txt").lines().collect();
    let found: Vec<&str> = refusals.keys().map(String::as_str).collect();
    assert_eq!(found, listed, "the page reads other refusals off the source than the list has");
    for (code, found) in &refusals {
        assert!(!frameworks(found).is_empty(), "{code}: no framework of {} reads {:?}", found.file, found.key);
    }
    fresh("docs/errors.md", &page(&refusals), "the source of the refusals");
}
