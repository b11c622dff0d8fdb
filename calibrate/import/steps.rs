//! What published traces of real steps say of the shipped profiles: kernels of `steps.csv`, which `steps.py` makes, beside predictions.
//!
//! No profile takes a number from here. A family of kernels may replace a section where it predicts a trace that it was not given
//! better than the section does. The test for that: all kernels of a family are predicted by the profile times one factor, the
//! median of the family's other traces. The page `docs/how/calibration.md` shows the table; `UPDATE=1` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use windtunnel::cost::{Backend, Cost, CostModel, Profile, Regime, Software};
use windtunnel::program::{AttentionShape, DType, Grouping, MatmulLayout, MemoryKind, Work};
use windtunnel::units::Bytes;

use super::ImportError;
use super::tables::{Row, Table};
use crate::fit::{error, median, quantile};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how/calibration.md");
const PROFILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/cost/profiles");
const MARKS: [&str; 2] = ["<!-- steps -->\n", "<!-- /steps -->"];

/// A kind of work in one trace, and what the profile of its chip says of it.
#[derive(Debug)]
struct Kernel {
    trace: String,
    profile: String,
    family: String,
    calls: f64,
    /// \[s\].
    measured: f64,
    sustained: Cost,
    burst: Cost,
}

fn kernels() -> Result<Vec<Kernel>, ImportError> {
    let table = Table::parse("calibrate/import/steps.csv", include_bytes!("steps.csv"))?;
    let mut profiles: BTreeMap<&str, Profile> = BTreeMap::new();
    let mut kernels = vec![];
    for row in table.rows() {
        let bad = |what: &str| table.error(&format!("line {} has no {what}", row.line()));
        let name = row.text("profile");
        if !profiles.contains_key(name) {
            profiles.insert(name, Profile::load(&Path::new(PROFILES).join(format!("{name}.toml")))?);
        }
        let (work, backend) = work(&row).map_err(bad)?;
        let software = Software { attention: backend.unwrap_or_default(), ..Software::default() };
        let of = |regime| CostModel::new(&profiles[name], regime).with(software).work(&work);
        let [calls, us] = ["calls", "us"].map(|column| row.number(column).ok_or_else(|| bad(column)));
        kernels.push(Kernel {
            trace: row.text("trace").to_owned(),
            profile: name.to_owned(),
            family: family(&row),
            calls: calls?,
            measured: us? * 1e-6,
            sustained: of(Regime::Sustained),
            burst: of(Regime::Burst),
        });
    }
    Ok(kernels)
}

/// What a row is, with whose attention it is; or the column that is wrong.
fn work<'r>(row: &Row<'r>) -> Result<(Work, Option<Backend>), &'r str> {
    let number = |column: &'r str| row.number(column).map(|number| number as u64).ok_or(column);
    let dtype = || match row.text("dtype") {
        "bf16" => Ok(DType::Bf16),
        "fp16" => Ok(DType::Fp16),
        "fp8" => Ok(DType::Fp8),
        _ => Err("dtype"),
    };
    let layout = || match row.text("layout") {
        "forward" => Ok(MatmulLayout::Forward),
        "data_gradient" => Ok(MatmulLayout::DataGradient),
        "weight_gradient" => Ok(MatmulLayout::WeightGradient),
        _ => Err("layout"),
    };
    let passes = |kind| {
        let [read, written] = ["read", "written"].map(|column| number(column).map(Bytes));
        Ok((Work::Memory { kind, read: read?, written: written? }, None))
    };
    match row.text("family") {
        "matmul" => {
            let work =
                Work::Matmul { m: number("m")?, n: number("n")?, k: number("k")?, dtype: dtype()?, layout: layout()? };
            Ok((work, None))
        }
        "batched" => {
            let (groups, m) = (number("groups")?, number("m")?);
            let (inputs, outputs, dtype) = (number("k")?, number("n")?, dtype()?);
            let layout = MatmulLayout::Forward;
            let kernels = Grouping::Batched;
            Ok((Work::GroupedMatmul { groups, rows: groups * m, inputs, outputs, dtype, layout, kernels }, None))
        }
        "attention" => {
            let backend = Backend::ALL.iter().find(|backend| backend.name() == row.text("backend"));
            let shape = AttentionShape {
                batch: number("batch")?,
                heads: number("heads")?,
                kv_heads: number("kv_heads")?,
                queries: number("queries")?,
                keys: number("keys")?,
                head_dim: number("head_dim")?,
                causal: row.text("causal") == "True",
                window: row.number("window").map(|keys| keys as u64),
                squares: None,
            };
            let backward = row.text("backward") == "True";
            Ok((Work::Attention { shape, backward, dtype: DType::Bf16 }, Some(*backend.ok_or("backend")?)))
        }
        "elementwise" | "elementwise_strided" => passes(MemoryKind::Elementwise),
        "layer_norm" => passes(MemoryKind::LayerNorm),
        _ => Err("family"),
    }
}

/// The name of a row's family in the table.
fn family(row: &Row<'_>) -> String {
    let whole = |column: &str| row.number(column).is_some_and(|length| length % 8.0 == 0.0);
    let name = match row.text("family") {
        "matmul" if row.text("dtype") != "fp8" => "matmul, 16 bits",
        "matmul" if row.text("layout") == "forward" => "matmul, fp8, fast accumulation",
        "matmul" => "matmul, fp8, full accumulation",
        "batched" if whole("n") && whole("k") => "batched matmul",
        "batched" => "batched matmul, rows of no whole 16 B",
        "attention" => {
            let pass = if row.text("backward") == "True" { "backward" } else { "forward" };
            let window = if row.text("window").is_empty() { "" } else { ", windows" };
            return format!("{} {pass}{window}", row.text("backend"));
        }
        "elementwise" => "pointwise, contiguous",
        "elementwise_strided" => "pointwise, broadcast or converted",
        _ => "LayerNorm, eager",
    };
    let beside = if row.text("beside") == "True" { ", beside an exchange" } else { "" };
    format!("{name}{beside}")
}

/// Kernels of one family on one chip.
#[derive(Debug)]
struct Verdict {
    traces: usize,
    /// Measured over predicted.
    ratios: Vec<f64>,
    /// The same over bursts.
    over_bursts: Vec<f64>,
    shipped: Vec<f64>,
    /// Errors with one factor from the other traces; none where there is no other.
    factored: Option<Vec<f64>>,
}

fn verdict(kernels: &[&Kernel]) -> Verdict {
    let traces: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.trace.as_str()).collect();
    let ratio = |kernel: &&Kernel| kernel.measured / kernel.sustained.time.seconds();
    let factored = |kernel: &&Kernel| {
        let others: Vec<f64> = kernels.iter().filter(|other| other.trace != kernel.trace).map(ratio).collect();
        error(median(&others) * kernel.sustained.time.seconds(), kernel.measured)
    };
    Verdict {
        traces: traces.len(),
        ratios: kernels.iter().map(ratio).collect(),
        over_bursts: kernels.iter().map(|kernel| kernel.measured / kernel.burst.time.seconds()).collect(),
        shipped: kernels.iter().map(|kernel| error(kernel.sustained.time.seconds(), kernel.measured)).collect(),
        factored: (traces.len() > 1).then(|| kernels.iter().map(factored).collect()),
    }
}

fn verdicts(kernels: &[Kernel]) -> BTreeMap<(&str, &str), Vec<&Kernel>> {
    let mut families: BTreeMap<(&str, &str), Vec<&Kernel>> = BTreeMap::new();
    for kernel in kernels {
        families.entry((&kernel.profile, &kernel.family)).or_default().push(kernel);
    }
    families
}

/// The table of the page.
fn table(kernels: &[Kernel]) -> String {
    let mut text = "| chip | kernels | rests on | traces | shapes, calls | measured over predicted, 10 to 90 % | over bursts | error, p90 | by a factor of other traces |\n|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for ((profile, family), kernels) in verdicts(kernels) {
        let v = verdict(&kernels);
        let percents =
            |errors: &[f64]| format!("{:.0} %, {:.0} %", 100.0 * median(errors), 100.0 * quantile(errors, 0.9));
        let calls: f64 = kernels.iter().map(|kernel| kernel.calls).sum();
        let _ = writeln!(
            text,
            "| {} | {family} | {} | {} | {}, {calls} | {:.2}, {:.2} to {:.2} | {:.2} | {} | {} |",
            profile.split('-').next().unwrap_or(profile).to_uppercase(),
            kernels[0].burst.basis.label(),
            v.traces,
            kernels.len(),
            median(&v.ratios),
            quantile(&v.ratios, 0.1),
            quantile(&v.ratios, 0.9),
            median(&v.over_bursts),
            percents(&v.shipped),
            v.factored.map_or("–".to_owned(), |errors| percents(&errors)),
        );
    }
    text
}

#[test]
fn the_page_says_what_traces_say_of_the_shipped_profiles() {
    let text = table(&kernels().expect("steps.csv is whole"));
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let place = |mark: &str| page.find(mark).expect("the page has both marks");
    let (from, to) = (place(MARKS[0]) + MARKS[0].len(), place(MARKS[1]));
    if std::env::var_os("UPDATE").is_some() {
        let whole = format!("{}{text}{}", &page[..from], &page[to..]);
        std::fs::write(PAGE, whole).expect("the page is written");
        return;
    }
    assert_eq!(&page[from..to], text, "UPDATE=1 cargo test -p windtunnel-calibrate --lib import::steps");
}

#[test]
fn a_trace_is_predicted_by_a_factor_that_it_had_no_part_in() {
    let cost = |us: f64| {
        let profile = Profile::find("h100-sxm-80gb").expect("shipped");
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(1 << 20), written: Bytes(1 << 20) };
        let cost = CostModel::new(&profile, Regime::Burst).work(&work);
        Cost { time: windtunnel::units::Time::from_seconds(us * 1e-6), ..cost }
    };
    let kernel = |trace: &str, measured: f64| Kernel {
        trace: trace.to_owned(),
        profile: "h100-sxm-80gb".to_owned(),
        family: "a family".to_owned(),
        calls: 1.0,
        measured: measured * 1e-6,
        sustained: cost(100.0),
        burst: cost(80.0),
    };
    let near = |errors: &[f64], expected: &[f64]| {
        assert_eq!(errors.len(), expected.len());
        assert!(errors.iter().zip(expected).all(|(own, other)| (own - other).abs() < 1e-6), "{errors:?}");
    };
    let two = [kernel("one", 200.0), kernel("other", 100.0)];
    let both = verdict(&two.iter().collect::<Vec<_>>());
    near(&both.shipped, &[0.5, 0.0]);
    near(&both.factored.expect("there are two traces"), &[0.5, 1.0]);
    let alone = verdict(&[&two[0]]);
    assert!(alone.factored.is_none());
    near(&alone.over_bursts, &[2.5]);
}
