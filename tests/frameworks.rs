//! Frameworks that split a model as Megatron does and step it in their own way: what each moves between ranks, and when.
//! InternEvo's optimizer is held against itself in `sim/runtime/internevo/zero.rs`, nanotron's engines here.

use std::collections::BTreeMap;

use windtunnel::program::{Collective, Comm, DType, Direction, Instr, Kernel, MatmulLayout, Pass, Program, Work};
use windtunnel::runtime::internevo::Owners;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

use crate::command::Folder;
use crate::make;

/// InternLM of two blocks on two nodes.
const INTERNEVO: &str = r#"runtime = "internevo"

[topology]
name = "a100-sxm-80gb"
nodes = 2

[model]
name = "internlm-7b"
layers = 2

[mesh]
tp = 1

[batch]
sequence = 128
accumulation = 2

[internevo]
zero1 = 8
reduce_bucket_size = 100_000_000
"#;

/// The tiny model, of four blocks, on two stages.
const NANOTRON: &str = r#"runtime = "nanotron"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
huggingface = "config.json"
layers = 4

[mesh]
tp = 2
pp = 2

[batch]
sequence = 128
accumulation = 4

[nanotron]
zero_stage = 1
"#;

/// Collectives of a step over a group.
fn collectives(program: &Program, group: &str) -> Vec<Comm> {
    let issued = program.step.iter().filter_map(|instr| match *instr {
        Instr::Collective { comm, .. } => Some(*program.comm(comm)),
        _ => None,
    });
    issued.filter(|comm| program.group(comm.group).name == group).collect()
}

/// Elements of the model's parameters, and how many there are, from its sizes: two tables, two blocks, a norm.
fn internlm(layers: u64) -> Vec<u64> {
    let (d, f, v) = (4096, 11_008, 103_168);
    let block = [3 * d * d, 3 * d, d * d, d, d, d, d * f, d * f, d * f];
    let blocks = (0..layers).flat_map(|_| block);
    [v * d].into_iter().chain(blocks).chain([d, v * d]).collect()
}

#[test]
fn every_gradient_is_reduced_once_in_buckets_of_whole_parameters() {
    let program = make::program(INTERNEVO);
    let buckets: Vec<u64> =
        collectives(&program, "dp").iter().filter(|comm| comm.dtype == DType::Bf16).map(|comm| comm.bytes.0).collect();
    assert_eq!(buckets.iter().sum::<u64>(), 2 * internlm(2).iter().sum::<u64>());
    // A table is larger than a bucket and goes alone, the rest fits.
    let table = 2 * 103_168 * 4096;
    assert!(buckets.iter().all(|&bytes| bytes <= 200_000_000 || bytes == table), "{buckets:?}");
    // A bucket goes when the next parameter would overfill it: no two neighbours fit into one.
    assert!(buckets.windows(2).all(|pair| pair[0] + pair[1] > 200_000_000), "{buckets:?}");
}

#[test]
fn owners_broadcast_what_they_have_stepped_and_each_byte_goes_once() {
    let shares = |zero1: &str| -> Vec<u64> {
        let program = make::program(&INTERNEVO.replace("zero1 = 8", &format!("zero1 = {zero1}")));
        let sent = collectives(&program, "zero1");
        sent.iter().filter(|comm| comm.kind == Collective::Broadcast).map(|comm| comm.bytes.0).collect()
    };
    let all = 2 * internlm(2).iter().sum::<u64>();
    for (zero1, owners) in [("8", 8), ("16", 16), ("-1", 16), ("2", 2)] {
        let shares = shares(zero1);
        assert_eq!((shares.len(), shares.iter().sum::<u64>()), (owners, all), "{zero1}");
    }
    assert!(shares("1").is_empty());
}

#[test]
fn beyond_17_ranks_the_tables_of_internlm_7b_are_the_largest_shares() {
    // InternLM-7B, 291 parameters: 7.32 billion over 16 ranks are 458 million each, over 17 less than a table has.
    let sizes = internlm(32);
    assert_eq!(sizes.len(), 291);
    let most = |ranks| Owners::of(&sizes, ranks).elements.into_iter().max().unwrap();
    let all: u64 = sizes.iter().sum();
    assert!(most(8) < all / 8 + 60_000_000);
    assert_eq!((most(64), most(1024)), (422_576_128, 422_576_128));
    assert_eq!(Owners::of(&sizes, 1024).shares().count(), 291);
}

#[test]
fn a_gradient_of_a_smaller_group_is_still_reduced_over_all_replicas() {
    let all = |zero1: &str| {
        let text = INTERNEVO.replace("zero1 = 8", zero1);
        let program = make::program(&text);
        let group = program.groups.iter().find(|group| group.name == "dp").unwrap().size;
        (group, collectives(&program, "dp"))
    };
    assert_eq!(all("zero1 = 8").0, 16);
    assert_eq!(all("zero1 = 8").1.len(), all("zero1 = -1").1.len());
}

/// Matmuls of a step, and how many rows each multiplies.
fn products(program: &Program, wanted: MatmulLayout) -> BTreeMap<u64, usize> {
    let mut rows = BTreeMap::new();
    for instr in &program.step {
        let Instr::Launch { kernel, .. } = *instr else { continue };
        let Work::Matmul { m, layout, .. } = program.kernel(kernel).work else { continue };
        if layout == wanted {
            *rows.entry(m).or_default() += 1;
        }
    }
    rows
}

#[test]
fn a_rank_multiplies_its_own_part_while_the_others_are_gathered() {
    let text = NANOTRON.replace("pp = 2", "pp = 1").replace("tp = 2", "tp = 4").replace("accumulation = 4", "");
    let text = text.replace("huggingface = \"config.json\"", "name = \"llama-3-8b\"");
    let program = make::program(&text);
    let forward = products(&program, MatmulLayout::Forward);
    // Of 128 tokens a rank has 32. Two columns in each of four blocks and the head are split into the rank's own part, one
    // rank's before and two ranks' after it; two rows in each block are one product.
    assert_eq!(forward, BTreeMap::from([(32, 2 * 9), (64, 9), (128, 8)]));
    // In backward it is the rows that are split.
    let backward = products(&program, MatmulLayout::DataGradient);
    assert_eq!(backward, BTreeMap::from([(32, 2 * 8), (64, 8), (128, 9)]));
}

#[test]
fn a_gathered_input_that_is_kept_is_not_gathered_again() {
    let fly = |again: bool| {
        let text = format!("{NANOTRON}tp_recompute_allgather = {again}\n");
        let flown = make::fly(&text);
        let gathers = |program: &Program| {
            let all = collectives(program, "tp");
            all.iter().filter(|comm| comm.kind == Collective::AllGather).count()
        };
        let gathers: usize = flown.classes.iter().map(|class| gathers(&class.program)).sum();
        (gathers, flown.classes[0].memory.report.peak_allocated)
    };
    let ((again, least), (kept, most)) = (fly(true), fly(false));
    // Two linears in each of four blocks, and the head, for each of four micro-batches.
    assert_eq!(again - kept, 4 * (2 * 4 + 1));
    assert!(most > least);
}

#[test]
fn gradients_cross_in_fp32_whichever_way() {
    let flight = |text: &str| make::parse(text).job.compile().classes;
    for class in flight(NANOTRON) {
        let all = collectives(&class, "dp");
        let buffer = all.iter().filter(|comm| comm.kind == Collective::AllReduce && comm.bytes.0 > 4).count();
        assert_eq!(buffer, 1, "one call for the whole buffer");
    }
    for (class, zero) in flight(&NANOTRON.replace("zero_stage = 1", "zero_stage = 0")).iter().zip(flight(NANOTRON)) {
        let bytes = |program: &Program| -> u64 {
            let reduced = collectives(program, "dp");
            let reduced = reduced.iter().filter(|comm| comm.kind == Collective::AllReduce && comm.bytes.0 > 4);
            reduced.inspect(|comm| assert_eq!(comm.dtype, DType::Fp32)).map(|comm| comm.bytes.0).sum()
        };
        assert_eq!(bytes(class), bytes(&zero));
    }
}

#[test]
fn after_the_gather_every_slice_of_every_replica_is_copied_on_its_own() {
    let copies = |nodes: u32| {
        let text = NANOTRON.replace("nodes = 1", &format!("nodes = {nodes}"));
        let class = &make::parse(&text).job.compile().classes[0];
        let gather = class.step.iter().position(|instr| {
            matches!(*instr, Instr::Collective { comm, .. } if class.comm(comm).kind == Collective::AllGather
                && class.group(class.comm(comm).group).name == "dp")
        });
        let after = &class.step[gather.unwrap()..];
        let is_copy = |instr: &&Instr| match **instr {
            Instr::Launch { kernel, .. } => class.kernel(kernel).name == "aten.copy_",
            _ => false,
        };
        after.iter().filter(is_copy).count()
    };
    // The first stage of the tiny model: a table and two or three blocks of six parameters; a copy more for each replica.
    let params = copies(1) / 2 - 1;
    assert!([13, 19].contains(&params), "{params}");
    assert_eq!(copies(4), 8 * (params + 1));
}

#[test]
fn both_engines_run_every_micro_batch_and_nobody_waits_for_ever() {
    for engine in ["1f1b", "afab"] {
        let text = format!("{NANOTRON}pp_engine = \"{engine}\"\n").replace("pp = 2", "pp = 4");
        let flown = make::fly(&text);
        assert_eq!(flown.classes.len(), 4, "{engine}");
        // Hidden states forward and gradients back, four micro-batches each.
        for (class, neighbours) in flown.classes.iter().zip([1, 2, 2, 1]) {
            let large = class.program.step.iter().filter(|instr| match **instr {
                Instr::Exchange { exchange, .. } => {
                    class.program.exchange(exchange).all(|transfer| transfer.dtype == DType::Bf16)
                }
                _ => false,
            });
            assert_eq!(large.count(), 2 * 4 * neighbours, "{engine}");
        }
    }
}

/// What a stage does in host order, in the oracle's words: F and B, and messages of hidden states, masks and gradients.
fn said(program: &Program, first: bool, last: bool) -> Vec<String> {
    let mut events: Vec<String> = vec![];
    for instr in &program.step {
        let event = match *instr {
            Instr::Launch { kernel, .. } => match program.kernel(kernel) {
                Kernel { work: Work::Matmul { .. }, pass: Pass::Forward, .. } => "F".to_owned(),
                Kernel { work: Work::Matmul { .. }, pass: Pass::Backward, .. } => "B".to_owned(),
                _ => continue,
            },
            Instr::Exchange { exchange, .. } => {
                let transfer = program.exchange(exchange).next().unwrap();
                let word = if transfer.direction == Direction::Send { "send" } else { "recv" };
                let forwards = first || (!last && transfer.ahead == 1);
                let kind = match transfer.dtype {
                    DType::Bf16 if forwards == (word == "send") => "h",
                    DType::Bf16 => "g",
                    DType::Int64 => continue,
                    _ => "m",
                };
                format!("{word} {kind}")
            }
            _ => continue,
        };
        if event.len() > 1 || events.last() != Some(&event) {
            events.push(event);
        }
    }
    events
}

#[test]
fn stages_do_what_nanotrons_engines_do_in_their_order() {
    let cases: Vec<serde_json::Value> = serde_json::from_str(include_str!("oracles/nanotron-engine.json")).unwrap();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let (engine, stages) = (case["engine"].as_str().unwrap(), case["stages"].as_u64().unwrap());
        let text = format!("{NANOTRON}pp_engine = \"{engine}\"\n")
            .replace("pp = 2", &format!("pp = {stages}"))
            .replace("accumulation = 4", &format!("accumulation = {}", case["micro_batches"]));
        let classes = make::parse(&text).job.compile().classes;
        for (rank, (program, expected)) in classes.iter().zip(case["ranks"].as_array().unwrap()).enumerate() {
            let mut expected: Vec<&str> =
                expected.as_array().unwrap().iter().map(|event| event.as_str().unwrap()).collect();
            // Both ends of a message meet here, so a stage asks for the mask before it sends a gradient, not after.
            for at in 1..expected.len() {
                if expected[at - 1..=at] == ["send g", "recv m"] {
                    expected.swap(at - 1, at);
                }
            }
            assert_eq!(
                said(program, rank == 0, rank + 1 == classes.len()),
                expected,
                "{engine}, stage {rank} of {stages}"
            );
        }
    }
}

#[test]
fn all_forwards_first_hold_more_than_one_forward_one_backward() {
    let held = |engine: &str| {
        let flown =
            make::fly(&format!("{NANOTRON}pp_engine = \"{engine}\"\n").replace("accumulation = 4", "accumulation = 8"));
        flown.classes.iter().map(|class| class.memory.report.peak_allocated.0).max().unwrap()
    };
    assert!(held("afab") > held("1f1b"));
}

#[test]
fn a_step_of_either_framework_ends_with_what_it_began_with() {
    let again = INTERNEVO.replace("zero1 = 8", "zero1 = 8\ncheckpoint = true");
    let split = INTERNEVO.replace("tp = 1", "tp = 2");
    let ddp = NANOTRON.replace("zero_stage = 1", "zero_stage = 0\nrecompute_layer = true");
    for text in [INTERNEVO, &again, &split, NANOTRON, &ddp] {
        for program in make::parse(text).job.compile().classes {
            let mut held = vec![false; program.buffers.len()];
            let before = make::live(&program, program.before_second(), &mut held);
            assert_eq!(make::live(&program, &program.step, &mut held), before, "{text}");
            assert_eq!(make::live(&program, &program.step, &mut held), before, "{text}");
        }
    }
}

#[test]
fn simulating_every_rank_changes_nothing() {
    for text in [INTERNEVO.replace("nodes = 2", "nodes = 1"), NANOTRON.to_owned()] {
        let scenario = make::parse(&text);
        let fly = |fold| predict(&scenario, Settings { fold, ..Settings::default() }).unwrap();
        let (folded, full) = (fly(true), fly(false));
        assert!(folded.timeline.ranks.len() < full.timeline.ranks.len());
        assert_eq!((folded.step, folded.breakdown), (full.step, full.breakdown));
    }
}

#[test]
fn what_a_framework_cannot_do_is_refused_with_what_to_write() {
    let refused = |number: usize, text: &str| {
        let folder = Folder::new(&format!("frameworks-{number}"));
        folder.write("my.toml", text);
        folder.write("config.json", include_str!("tiny/config.json"));
        folder.refuses(&["run", "my.toml"])
    };
    let evo = |old: &str, new: &str| INTERNEVO.replacen(old, new, 1);
    let nano = |old: &str, new: &str| NANOTRON.replacen(old, new, 1);
    let cases = [
        (evo("zero1 = 8", "zero1 = 3"), "internevo.zero1 = 3 does not divide the 16 replicas", "-1 for all"),
        (evo("tp = 1", "pp = 2"), "and mesh.pp = 2", "write mesh.pp = 1"),
        (
            evo("[internevo]", "[nanotron]\n[internevo]"),
            "[nanotron] belongs to runtime = \"nanotron\"",
            "remove the table",
        ),
        (evo("[internevo]", "[optimizer]\nclip_grad_norm = true\n[internevo]"), "[optimizer] means nothing", "remove"),
        (evo("\"internlm-7b\"", "\"llama-3-8b\""), "shared key-value heads under InternEvo", "another dense model"),
        (nano("zero_stage = 1", "zero_stage = 3"), "nanotron.zero_stage = 3", "write 0, or 1"),
        (
            nano("tp = 2\npp = 2", "pp = 8")
                .replace("accumulation = 4", "accumulation = 2")
                .replace("zero_stage = 1", "zero_stage = 1\npp_engine = \"1f1b\""),
            "too few for 1F1B",
            "afab",
        ),
        (
            nano("zero_stage = 1", "zero_stage = 1\n[pipeline]\nschedule = \"AFAB\""),
            "pipeline.schedule means",
            "pp_engine",
        ),
        (nano("[nanotron]", "[tensor_parallel]\nsequence = false\n[nanotron]"), "REDUCE_SCATTER", "sequence = true"),
        (nano("\"nanotron\"", "\"fsdp2\"").replace("pp = 2\n", ""), "[nanotron] belongs to", "runtime = \"nanotron\""),
    ];
    for (number, (text, problem, remedy)) in cases.iter().enumerate() {
        let said = refused(number, text);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{number}\n{said}");
        assert!(said.contains(remedy), "{number}\n{said}");
    }
}
