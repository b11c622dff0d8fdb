//! A training with its interruptions, held against closed forms, published trainings, and what may never be.

use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use windtunnel::explore::goodput::{
    Cause, Elastic, End, GoodputError, Job, Length, Outcome, Save, closed, goodput, kept, outcomes, setting,
};
use windtunnel::failures::Rates;
use windtunnel::report::layout::{Percentiles, Training};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};

use crate::make::{self, MEGATRON, TINY, replaced};

const DAY: f64 = 86_400.0;

fn predicted(text: &str) -> (Scenario, Prediction) {
    let mut scenario = make::parse(text);
    scenario.read_interruptions();
    let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
    (scenario, answer)
}

fn trained((scenario, answer): &(Scenario, Prediction), length: &str) -> Training {
    goodput(scenario, answer, Length::parse(length).unwrap(), &|| ()).unwrap()
}

fn holds(of: Percentiles, value: f64) -> bool {
    (of.p5..=of.p95).contains(&value)
}

/// A job that is interrupted by one cause.
fn job(mean: f64, save: f64, restart: f64, interval: f64, work: f64) -> Job {
    let cause = Cause { name: "all".to_owned(), rate: 1.0 / mean, takes_node: true, planned: false };
    Job {
        end: End::Work(work),
        interval,
        save: Save { blocked: save, written_after: 0.0 },
        load: 0.0,
        restart,
        detection: 0.0,
        replacement: 0.0,
        repair: 0.0,
        spares: None,
        elastic: None,
        causes: vec![cause],
    }
}

fn mean(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
}

fn wall(job: &Job, draws: u64) -> f64 {
    mean(&outcomes(job, (draws, 1), &|| ()), |outcome| outcome.spent.total())
}

#[test]
fn drawn_trainings_take_as_long_as_dalys_model_says() {
    // Mean time between interruptions, checkpoint, restart and interval [s]: from rare to one in two intervals.
    for (mean, save, restart, interval) in
        [(1e5, 30.0, 300.0, 2_500.0), (1e4, 60.0, 120.0, 1_000.0), (2e3, 20.0, 100.0, 1_000.0)]
    {
        let work = 2_000.0 * mean;
        // The model has no first start without a restart, and counts a checkpoint after the last interval as any other.
        let expected = closed::daly_wall(work, interval, save, restart, mean);
        let drawn = wall(&job(mean, save, restart, interval, work), 64);
        assert!((drawn / expected - 1.0).abs() < 0.005, "{mean} {save}: {drawn} and {expected}");
        // What is lost besides useful work, which the whole hides.
        let overhead = (drawn - work) / (expected - work);
        assert!((overhead - 1.0).abs() < 0.02, "{mean} {save}: {overhead}");
    }
}

#[test]
fn the_best_interval_of_drawn_trainings_is_youngs_and_dalys() {
    for (mean, save) in [(1e6, 10.0), (2e5, 5.0)] {
        let young = closed::young(save, mean);
        let work = 4_000.0 * mean;
        // Overhead is A/τ + Bτ + C where interruptions are rare: three intervals give its minimum.
        let intervals = [0.5 * young, young, 2.0 * young];
        let walls = intervals.map(|interval| wall(&job(mean, save, 0.0, interval, work), 200) / work);
        let [half, once, twice] = walls;
        // With x = τ/young: half = 2a + b/2 + c, once = a + b + c, twice = a/2 + 2b + c.
        let (first, second) = (half - once, twice - once);
        let a = (2.0 * first + second) / 1.5;
        let b = (first + 2.0 * second) / 1.5;
        let best = (a / b).sqrt() * young;
        assert!((best / young - 1.0).abs() < 0.02, "{best} and Young's {young}");
        assert!((best / closed::daly(save, mean) - 1.0).abs() < 0.02, "{best} and Daly's {}", closed::daly(save, mean));
        // Young's overhead at that interval: the root of twice the checkpoint over the mean time.
        let overhead = once - 1.0;
        let expected = (2.0 * save / mean).sqrt();
        assert!((overhead / expected - 1.0).abs() < 0.02, "{overhead} and {expected}");
    }
}

#[test]
fn checkpoints_in_the_background_take_as_long_as_the_closed_form_says() {
    for written_after in [200.0, 900.0, 2_000.0] {
        let mut job = job(2e4, 5.0, 200.0, 1_000.0, 2e7);
        job.save.written_after = written_after;
        job.detection = 400.0;
        let drawn = mean(&outcomes(&job, (64, 3), &|| ()), Outcome::goodput);
        let expected = closed::expected(&job, job.interval);
        assert!((drawn / expected - 1.0).abs() < 0.005, "{written_after}: {drawn} and {expected}");
    }
}

/// nanotron on two stages, without replicas.
const NANOTRON: &str = r#"runtime = "nanotron"

[topology]
name = "h100-sxm-80gb"
chips = 4

[model]
huggingface = "config.json"
layers = 4

[mesh]
tp = 2
pp = 2

[batch]
sequence = 128
accumulation = 4
"#;

const XLA: &str = include_str!("../scenarios/two-narrow-blocks-4xv6e.toml");

/// Llama 3 405B as table 4 of arXiv 2407.21783 has it: 16,384 H100, TP 8, PP 16, DP 128, 2,048 sequences of 8,192 tokens.
const LLAMA: &str = r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80gb"
nodes = 2048

[model]
name = "llama-3.1-405b"

[mesh]
dp_shard = 128
tp = 8
pp = 16

[batch]
sequence = 8192
micro = 1
accumulation = 16

[pipeline]
schedule = "1F1B"

[activation_checkpointing]
policy = "full"

[failures]
planned = true
"#;

#[test]
fn llama_3_is_interrupted_as_often_as_was_counted_and_trains_nine_tenths_of_the_time() {
    let run = predicted(LLAMA);
    let own = trained(&run, "54d");
    // 54 days, 466 interruptions, 47 of them planned, "higher than 90 %" effective training time (section 3.3.4).
    assert!(holds(own.unexpected, 419.0), "{:?}", own.unexpected);
    assert!(holds(own.planned, 47.0), "{:?}", own.planned);
    let all: f64 = own.interruptions.iter().map(|one| one.mean).sum();
    assert!((all / 466.0 - 1.0).abs() < 0.08, "{all}");
    assert!(own.goodput.p5 > 0.90 && own.goodput.p95 < 0.96, "{:?}", own.goodput);
    // Every component that interrupted the training ten times or more was counted within what is drawn for it.
    for (component, counted) in [("faulty GPU", 148.0), ("GPU HBM3 memory", 72.0), ("network switch or cable", 35.0)] {
        let of = own.interruptions.iter().find(|one| one.component == component).unwrap();
        assert!(holds(of.percentiles, counted), "{component}: {:?}", of.percentiles);
    }
    // Studies of other clusters disagree by a factor of six: they bracket what this one counted, and none of them has it.
    let other = |name: &str| {
        let text = replaced(LLAMA, &[("planned = true", &format!("rates = \"{name}\""))]);
        trained(&predicted(&text), "54d").unexpected
    };
    let [rsc2, rsc1, opt] = ["rsc2-a100", "rsc1-a100", "opt-a100"].map(other);
    assert!(rsc2.p95 < 419.0 && (240.0..270.0).contains(&rsc2.p50), "{rsc2:?}");
    assert!(rsc1.p5 > 419.0 && (620.0..720.0).contains(&rsc1.p50), "{rsc1:?}");
    assert!(opt.p5 > rsc1.p95 && (1_250.0..1_350.0).contains(&opt.p50), "{opt:?}");
}

#[test]
fn a_checkpoint_holds_what_the_ranks_keep_together() {
    // Parameters, master weights and two moments: 2 + 4 + 4 + 4 bytes each under Megatron-Core.
    let (width, ffn, words, layers) = (16_384_u64, 53_248, 128_256, 126);
    let attention = 2 * width * width + 2 * width * 1_024;
    let parameters = 2 * words * width + width + layers * (attention + 3 * width * ffn + 2 * width);
    assert_eq!(parameters, 405_853_388_800);
    let text = replaced(
        LLAMA,
        &[
            ("runtime = \"fsdp2\"", "runtime = \"megatron\""),
            ("dp_shard = 128\n", ""),
            ("micro = 1\n", ""),
            ("[activation_checkpointing]\npolicy = \"full\"\n", "[megatron]\ndistributed_optimizer = true\n"),
            ("[failures]\nplanned = true\n", ""),
            ("nodes = 2048", "nodes = 2016"),
            ("pp = 16", "pp = 126"),
            ("accumulation = 16", "accumulation = 126"),
        ],
    );
    let scenario = make::parse(&text);
    assert_eq!(scenario.job.model().params().total * scenario.job.kept().bytes(), parameters * 14);

    // Without replicas and padding it is the sum over ranks of what their programs keep.
    let plans = [
        TINY.to_owned(),
        format!("{TINY}[precision]\nstorage = \"bf16\"\n[optimizer]\nname = \"adamw\"\nmaster_weights = true\n"),
        format!("{TINY}[optimizer]\nname = \"sgd\"\nmomentum = 0.9\n"),
        format!("{TINY}[optimizer]\namsgrad = true\n"),
        replaced(TINY, &[("fsdp2", "fsdp1")]),
        replaced(TINY, &[("fsdp2", "deepspeed-zero"), ("dp_shard = 8\n", "dp = 8\n")]) + "[zero]\nstage = 3\n",
        replaced(MEGATRON, &[("nodes = 1", "chips = 4")]),
        replaced(MEGATRON, &[("nodes = 1", "chips = 4")])
            + "[megatron]\ndistributed_optimizer = true\nexp_avg_dtype = \"bf16\"\n",
        NANOTRON.to_owned(),
        XLA.to_owned(),
    ];
    for text in plans {
        let (scenario, answer) = predicted(&text);
        let all: u64 = answer.classes.iter().map(|class| kept(&class.program).0 * u64::from(class.ranks)).sum();
        let held = scenario.job.model().params().total * scenario.job.kept().bytes();
        let ratio = all as f64 / held as f64;
        assert!((0.999..1.03).contains(&ratio), "{ratio}\n{text}");
    }
}

/// Rates, storage, spares and the like of a job, drawn from a number.
fn some_job(case: u64) -> Job {
    let pick = |shift: u64, values: &[f64]| values[(case >> shift) as usize % values.len()];
    let mut job = job(pick(0, &[2e3, 1e4, 5e4]), pick(2, &[1.0, 30.0]), pick(3, &[30.0, 600.0]), 1_000.0, 3e6);
    job.save.written_after = pick(4, &[0.0, 300.0]);
    job.detection = pick(5, &[0.0, 600.0]);
    job.replacement = pick(6, &[0.0, 300.0]);
    job.repair = pick(7, &[3_600.0, 2.0 * DAY]);
    job.spares = [None, Some(0), Some(3)][case as usize % 3];
    job.elastic = (case.is_multiple_of(2)).then_some(Elastic { copies: 8, lost: 1 });
    job
}

#[test]
fn time_adds_up_and_goes_where_it_should() {
    for case in 0..256 {
        let mut job = some_job(case);
        if case % 5 == 0 {
            job.end = End::Wall(2e6);
        }
        for outcome in outcomes(&job, (8, case), &|| ()) {
            let spent = outcome.spent;
            let parts =
                [spent.useful, spent.lost, spent.saving, spent.detection, spent.nodes, spent.starting, spent.slower];
            assert!(parts.iter().all(|part| *part >= 0.0), "{case}: {spent:?}");
            match job.end {
                End::Work(work) => assert!((spent.useful / work - 1.0).abs() < 1e-9, "{case}: {spent:?}"),
                End::Wall(wall) => assert!((spent.total() / wall - 1.0).abs() < 1e-9, "{case}: {spent:?}"),
            }
            assert!(job.elastic.is_some() || spent.slower == 0.0);
            assert!(outcome.goodput() <= 1.0);
        }
    }
}

#[test]
fn spare_nodes_never_hurt() {
    for case in 0..64 {
        let mut job = Job { elastic: None, ..some_job(case) };
        let mut before: Vec<f64> = vec![f64::INFINITY; 16];
        for spares in [Some(0), Some(1), Some(2), Some(8), None] {
            job.spares = spares;
            let walls: Vec<f64> = outcomes(&job, (16, case), &|| ()).iter().map(|one| one.spent.total()).collect();
            // Each training by itself: interruptions come at the same times.
            for (more, fewer) in walls.iter().zip(&before) {
                assert!(*more <= fewer * (1.0 + 1e-9), "{case}, {spares:?}: {more} and {fewer}");
            }
            before = walls;
        }
    }
}

#[test]
fn rarer_interruptions_and_faster_storage_never_lower_goodput() {
    let drawn = |job: &Job| mean(&outcomes(job, (200, 5), &|| ()), Outcome::goodput);
    for case in (0..256).step_by(7) {
        let job = Job { spares: None, elastic: None, ..some_job(case) };
        let steps = |of: &dyn Fn(f64) -> Job| [1.0, 1.5, 2.5, 4.0].map(of);
        let rarer = steps(&|factor| {
            let mut job = job.clone();
            job.causes[0].rate /= factor;
            job
        });
        let faster = steps(&|factor| {
            let mut job = job.clone();
            (job.save.blocked, job.save.written_after) = (job.save.blocked / factor, job.save.written_after / factor);
            job
        });
        for jobs in [rarer, faster] {
            for pair in jobs.windows(2) {
                let expected = [0, 1].map(|at: usize| closed::expected(&pair[at], pair[at].interval));
                assert!(expected[0] <= expected[1], "{case}: {expected:?}");
                let [less, more] = [0, 1].map(|at: usize| drawn(&pair[at]));
                assert!(less <= more * 1.005, "{case}: {less} and {more}");
            }
        }
    }
}

#[test]
fn threads_change_nothing_and_a_seed_changes_the_draws() {
    let run = predicted(&format!("{TINY}[failures]\nmean_time_between = \"2 h\"\n"));
    let on = |threads: usize| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| trained(&run, "10d"))
    };
    let (one, many) = (on(1), on(7));
    assert_eq!(one, many);
    let other = predicted(&format!("{TINY}[failures]\nmean_time_between = \"2 h\"\nseed = 1\n"));
    assert_ne!(one.goodput, trained(&other, "10d").goodput);
}

#[test]
fn defaults_that_are_written_out_change_nothing() {
    for base in [TINY.to_owned(), MEGATRON.to_owned()] {
        let taken = trained(&predicted(&base), "20d");
        assert!(taken.assumptions.len() > 10, "{:?}", taken.assumptions);
        let (mut failures, mut checkpoint) = (String::new(), String::new());
        for line in &taken.assumptions {
            let line = line.split(" (").next().unwrap();
            let (table, key) = line.split_once('.').unwrap();
            let text = if table == "failures" { &mut failures } else { &mut checkpoint };
            *text += &format!("{key}\n");
        }
        let written = trained(&predicted(&format!("{base}[failures]\n{failures}[checkpoint]\n{checkpoint}")), "20d");
        assert!(written.assumptions.is_empty(), "{:?}", written.assumptions);
        assert_eq!(Training { assumptions: vec![], ..taken }, written);
    }
}

#[test]
fn without_the_question_the_keys_have_no_effect_and_the_report_says_so() {
    let text = format!("{TINY}[failures]\ndetection = \"1 h\"\n[checkpoint]\nevery = 7\n");
    let scenario = make::parse(&text);
    let named: Vec<&str> = scenario.idle.iter().map(|idle| idle.key.as_str()).collect();
    assert_eq!(named, ["failures.detection", "checkpoint.every"]);
    let plain = make::parse(TINY);
    assert_eq!(scenario.assumptions, plain.assumptions);
    let mut asked = make::parse(&text);
    asked.read_interruptions();
    assert!(asked.idle.is_empty());
    // With the question, what others make useless is named.
    let mut spare = make::parse(&format!("{TINY}[failures]\nrepair = \"1 d\"\n"));
    spare.read_interruptions();
    assert_eq!(spare.idle[0].key, "failures.repair");
}

#[test]
fn every_key_changes_the_answer() {
    let base = replaced(TINY, &[("dp_shard = 8", "dp_shard = 4\ndp_replicate = 4"), ("nodes = 1", "nodes = 2")]);
    let answer = |keys: &str, length: &str| {
        let training = trained(&predicted(&format!("{base}{keys}")), length);
        Training { assumptions: vec![], ..training }
    };
    // What a key is varied beside, and a value that is not its default.
    let often = "[failures]\nmean_time_between = \"3 h\"\n";
    let few = "[failures]\nmean_time_between = \"3 h\"\nspares = 1\nrepair = \"1 d\"\n";
    let changes = [
        ("[failures]\n", "rates = \"opt-a100\""),
        ("[failures]\n", "mean_time_between = \"5 h\""),
        ("[failures]\n", "planned = false"),
        (often, "detection = \"1 h\""),
        (often, "restart = \"1 h\""),
        (often, "recompile = \"1 h\""),
        (often, "spares = 0\nrepair = \"1 d\""),
        (often, "replacement = \"1 h\""),
        (few, "elastic = true"),
        (often, "draws = 100"),
        (often, "seed = 3"),
        (often, "[checkpoint]\nevery = 1000"),
        (often, "[checkpoint]\nevery = \"3 h\""),
        (often, "[checkpoint]\nstorage_bandwidth = \"1 MB/s\""),
        (often, "[checkpoint]\nload_bandwidth = \"1 MB/s\""),
        (often, "[checkpoint]\nasynchronous = true"),
    ];
    let unchanged: Vec<&str> = changes
        .into_par_iter()
        .filter(|(base, change)| answer(base, "30d") == answer(&format!("{base}{change}\n"), "30d"))
        .map(|(_, change)| change)
        .collect();
    assert!(unchanged.is_empty(), "{unchanged:?}");
    let repairs = ["1 d", "2 d"].map(|repair| answer(&few.replace("1 d", repair), "30d"));
    assert_ne!(repairs[0], repairs[1]);
}

#[test]
fn what_cannot_be_is_said() {
    let wrong = [
        ("[failures]\nrates = \"lama3\"\n", "did you mean \"llama3-h100\""),
        ("[failures]\nspares = 3\n", "write failures.repair"),
        ("[failures]\nspares = \"some\"\n", "expected \"enough\" or a number of nodes"),
        ("[failures]\nrates = \"opt-a100\"\nmean_time_between = \"3 h\"\n", "keep one of them"),
        ("[failures]\nelastic = true\n", "one copy of the model"),
        ("[failures]\ndetection = \"3\"\n", "has the unit \"\""),
        ("[failures]\ndetecton = \"3 h\"\n", "did you mean"),
        ("[failures]\ndraws = 0\n", "expected 1 to 100000"),
        ("[checkpoint]\nevery = \"often\"\n", "expected \"best\", a time or a number of steps"),
        ("[checkpoint]\nevery = 0\n", "is out of range"),
        ("[checkpoint]\nstorage_bandwidth = \"1 B/s\"\n", "expected 1 MB/s"),
    ];
    for (keys, said) in wrong {
        let error = Scenario::parse(make::FILE, &format!("{TINY}{keys}")).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("scenario.toml:"), "{keys}: {error}");
    }
    let (scenario, answer) = predicted(&format!("{TINY}[failures]\nmean_time_between = \"1 s\"\n"));
    let asked = |length: Length| setting(&scenario, &answer, length).unwrap_err();
    assert!(matches!(asked(Length::Tokens(1e15)), GoodputError::Hopeless { .. }));
    let short = asked(Length::Wall(1e-9)).to_string();
    assert!(short.contains("less than one step"), "{short}");
}

#[test]
fn rates_of_ones_own_are_found_beside_the_scenario() {
    let rates = Rates::load("sim/failures/opt-a100.toml").unwrap();
    assert_eq!(rates, Rates::load("opt-a100").unwrap());
    assert!(Rates::load("nowhere/rates.toml").unwrap_err().to_string().contains("cannot read"));
}
