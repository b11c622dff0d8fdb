//! Documents packed into a sequence: attention computes the pairs that the mask lets through, and nothing else changes.

use windtunnel::program::{Instr, Program, Work};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

use crate::make::{self, MEGATRON, TINY};

/// FLOPs of attention's kernels, and of all others.
fn flops(program: &Program) -> [u128; 2] {
    let mut sums = [0, 0];
    for instr in &program.step {
        if let Instr::Launch { kernel, .. } = *instr {
            let work = program.kernel(kernel).work;
            sums[usize::from(!matches!(work, Work::Attention { .. }))] += work.flops().0;
        }
    }
    sums
}

/// A scenario with changes, if any.
fn with(text: &str, changes: &str) -> String {
    if changes.is_empty() { text.to_owned() } else { make::apply(text, changes) }
}

fn tiny(changes: &str) -> String {
    with(TINY, changes)
}

fn engine(changes: &str) -> String {
    make::apply(
        MEGATRON,
        &format!("megatron.implementation = 'transformer_engine', megatron.attention = 'flash'{changes}"),
    )
}

/// FLOPs of all ranks' classes together.
fn of_classes(text: &str) -> [u128; 2] {
    let all = make::parse(text).job.compile().programs();
    all.iter().map(flops).fold([0, 0], |[a, b], [c, d]| [a + c, b + d])
}

#[test]
fn attention_computes_the_blocks_of_the_mask() {
    for text in
        [tiny(""), tiny("activation_checkpointing.policy = 'full'"), tiny("attention.backend = 'flex'"), engine("")]
    {
        let [whole, rest] = of_classes(&text);
        for blocks in [2, 4, 32] {
            let masked = of_classes(&make::apply(&text, &format!("batch.documents = {{ length = {} }}", 128 / blocks)));
            assert_eq!(masked, [whole / u128::from(blocks as u64), rest], "{blocks} documents of a sequence of 128");
        }
    }
}

#[test]
fn one_document_a_sequence_changes_nothing() {
    for text in [tiny(""), engine("")] {
        let plain = format!("{:?}", make::parse(&text).job);
        for written in ["{ length = 128 }", "{ length = 4096 }", "{ squares = 16384 }"] {
            let scenario = make::parse(&make::apply(&text, &format!("batch.documents = {written}")));
            assert_eq!(format!("{:?}", scenario.job), plain, "{written}");
            assert!(scenario.idle.iter().any(|idle| idle.key == "batch.documents"), "{written}");
        }
    }
}

#[test]
fn the_report_has_flops_with_the_mask_and_without() {
    let whole = make::fly(&tiny(""));
    let masked = make::fly(&tiny("batch.documents = { length = 32 }"));
    assert!(whole.mfu.iter().all(|mfu| mfu.name != "6N + 6LHS, within documents"));
    for one in whole.mfu.iter().filter(|mfu| !["hardware", "6N + attended"].contains(&mfu.name)) {
        let other = masked.mfu.iter().find(|mfu| mfu.name == one.name).expect(one.name);
        assert_eq!(one.flops, other.flops, "{}: formulas count the whole sequence", one.name);
    }
    let of = |name: &str| masked.mfu.iter().find(|mfu| mfu.name == name).expect(name).flops.0;
    let (plain, full, inside) = (of("6N"), of("6N + 6LHS"), of("6N + 6LHS, within documents"));
    assert_eq!((full - plain) / 4, inside - plain, "four documents a sequence");
}

#[test]
fn many_documents_take_longer_than_their_pairs() {
    // Rates fall with the length: four documents of a quarter have a quarter of the pairs, and take more of the time.
    let attention = |changes: &str| {
        let text = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 2\n\
                    [mesh]\ndp_shard = 8\n[batch]\nsequence = 16384\n";
        make::fly(&with(text, changes)).step.seconds()
    };
    let [whole, quarters, short] =
        ["", "batch.documents = { length = 4096 }", "batch.documents = { length = 64 }"].map(attention);
    assert!(short < quarters && quarters < whole, "{whole} {quarters} {short}");
}

/// What is refused of the tiny model, and a word of it.
const REFUSED: &[(&str, &str)] = &[
    ("batch.documents = { length = 0 }", "batch.documents.length = 0 is out of range"),
    ("batch.documents = { lengths = [] }", "expected 1 to"),
    ("batch.documents = { lengths = [{ length = 4,share = 0.0 }] }", "a number above 0"),
    ("batch.documents = { lengths = [{ length = 0,share = 1.0 }] }", "batch.documents.lengths = 0 is out of range"),
    ("batch.documents = { lognormal = { mean = 0.5,sigma = 1.0 } }", "lognormal.mean = 0.5"),
    ("batch.documents = { lognormal = { mean = 50.0,sigma = -1.0 } }", "lognormal.sigma = -1"),
    ("batch.documents = { squares = 127 }", "from 128 to 16384"),
    ("batch.documents = { squares = 16385 }", "from 128 to 16384"),
    (
        "batch.documents = { length = 32 }, mesh.cp = 2, mesh.dp_shard = 4, compile.blocks = true",
        "ranks share a sequence",
    ),
    ("batch.documents = { length = 32 }, attention.unpad = true", "bert_padding"),
    (
        "batch.documents = { length = 32 }, attention.deterministic = true, attention.backend = 'flash2'",
        "deterministic",
    ),
];

/// Why a scenario is not flown, whether its reader or the simulator says so.
fn refused(text: &str) -> String {
    let flown = Scenario::parse(make::FILE, text).and_then(|scenario| predict(&scenario, Settings::default()));
    flown.map(|_| ()).expect_err(text).to_string()
}

#[test]
fn what_is_not_simulated_is_refused_with_its_place() {
    for &(changes, words) in REFUSED {
        let error = refused(&tiny(changes));
        assert!(error.contains(words) && error.contains("scenario.toml:"), "{changes}: {error}");
    }
    for (text, words) in [
        (make::apply(MEGATRON, "megatron.attention = 'unfused', batch.documents = { length = 32 }"), "flash attention"),
        (engine(", mesh.cp = 2, mesh.tp = 1, batch.documents = { length = 32 }"), "context-parallel ranks share"),
    ] {
        let error = refused(&text);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn keys_about_packing_without_effect_are_named() {
    for (changes, idle) in [
        ("batch.packing = 'cut'", true),
        ("batch.packing = 'cut', batch.documents = { length = 32 }", true),
        ("batch.packing = 'cut', batch.documents = { squares = 4096 }", true),
        ("batch.packing = 'cut', batch.documents = { length = 48 }", false),
    ] {
        let scenario = make::parse(&tiny(changes));
        assert_eq!(scenario.idle.iter().any(|idle| idle.key == "batch.packing"), idle, "{changes}");
    }
}
