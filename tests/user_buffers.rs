//! `megatron.tp_comm_overlap`: exchanges of tensor-parallel ranks beside matmuls, over Transformer Engine's user buffers
//! (`common/comm_gemm_overlap/comm_gemm_overlap.cpp`, `pytorch/module/base.py`, 2.9), counted by hand.

use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::program::{Collective, DType, Direction, Dispatch, Instr, Kernel, MatmulLayout, Pass, Program, Work};

use crate::command::Folder;
use crate::make;

const LAYERS: usize = 2;
const MICRO_BATCHES: usize = 3;
const TOKENS: u64 = 4096;
const WIDTH: u64 = 4096;

/// Eight tensor-parallel ranks of two blocks of a Llama; `more` goes into `[megatron]`.
pub fn text(ranks: u32, more: &str) -> String {
    format!(
        "runtime = \"megatron\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n\
         layers = {LAYERS}\n[mesh]\ntp = {ranks}\n[batch]\nsequence = {TOKENS}\naccumulation = {MICRO_BATCHES}\n\
         [tensor_parallel]\nsequence = true\n[megatron]\nrecompute = \"none\"\n{more}\n"
    )
}

const ON: &str = "tp_comm_overlap = true";

fn program(ranks: u32, more: &str) -> Program {
    make::program(&text(ranks, more))
}

fn kernels(program: &Program) -> impl Iterator<Item = &Kernel> {
    program.step.iter().filter_map(|instr| match instr {
        Instr::Launch { kernel, .. } => Some(program.kernel(*kernel)),
        _ => None,
    })
}

fn launches(program: &Program, name: &str, pass: Pass) -> usize {
    kernels(program).filter(|kernel| kernel.name == name && kernel.pass == pass).count()
}

fn of_class(program: &Program, class: Dispatch) -> usize {
    kernels(program).filter(|kernel| kernel.dispatch == class).count()
}

/// What the host pays for a step \[us\]: its calls of the driver, and all else.
fn host(program: &Program) -> (f64, f64) {
    let profile = Profile::find("h100-sxm-80gb").unwrap();
    let model = CostModel::new(&profile, Regime::Sustained);
    let of = |class: Dispatch| 1e6 * model.dispatch(class).time.seconds();
    let (mut driver, mut rest) = (0.0, 0.0);
    let mut pay = |class: Dispatch, count: u32| {
        *(if class == Dispatch::Extra { &mut driver } else { &mut rest }) += of(class) * f64::from(count);
    };
    for instr in &program.step {
        match *instr {
            Instr::Launch { kernel, .. } => pay(program.kernel(kernel).dispatch, 1),
            Instr::Collective { comm, .. } => pay(program.group(program.comm(comm).group).dispatch(), 1),
            Instr::Exchange { exchange, .. } => {
                program.exchange(exchange).for_each(|end| pay(program.group(end.group).dispatch(), 1));
            }
            Instr::Host { dispatch, count } => pay(dispatch, count),
            Instr::Record { .. } | Instr::Wait { .. } => pay(Dispatch::Extra, 1),
            _ => {}
        }
    }
    (driver, rest)
}

/// Bytes of the collectives of a group, of one kind.
fn exchanged(program: &Program, group: &str, kind: Collective) -> Vec<u64> {
    let comms = program.step.iter().filter_map(|instr| match *instr {
        Instr::Collective { comm, .. } => Some(program.comm(comm)),
        _ => None,
    });
    let ours = comms.filter(|comm| comm.kind == kind && program.group(comm.group).name == group);
    ours.map(|comm| comm.bytes.0).collect()
}

/// Bytes of a rank's messages.
fn sent(program: &Program) -> Vec<u64> {
    let exchanges = program.step.iter().filter_map(|instr| match *instr {
        Instr::Exchange { exchange, .. } => Some(exchange),
        _ => None,
    });
    let ends = exchanges.flat_map(|exchange| program.exchange(exchange));
    ends.filter(|end| end.direction == Direction::Send).map(|end| end.bytes.0).collect()
}

#[test]
fn all_parts_of_a_matmul_are_one_call_from_python() {
    for recipe in ["", "\nfp8 = \"delayed\""] {
        for ranks in [2, 8] {
            let [off, on] = [String::new(), ON.to_owned()].map(|more| program(ranks, &(more + recipe)));
            for class in [Dispatch::TransformerEngineForward, Dispatch::TransformerEngineBackward] {
                assert_eq!(of_class(&on, class), of_class(&off, class), "{class:?}");
            }
            // What the host pays more is calls of the driver, a hundred or so for a linear on eight ranks; of torch.distributed's
            // collectives there are fewer. An operator of PyTorch's clones what was scattered.
            let ((_, before), (_, after)) = (host(&off), host(&on));
            let clones = of_class(&on, Dispatch::EagerForward) - of_class(&off, Dispatch::EagerForward);
            assert_eq!(clones, 2 * LAYERS * MICRO_BATCHES);
            assert!(after < before, "{after} {before}");
        }
    }
}

#[test]
fn each_linear_has_the_parts_that_the_default_configuration_gives_it() {
    for ranks in [2_u64, 4, 8] {
        let on = program(ranks as u32, ON);
        let blocks = LAYERS * MICRO_BATCHES;
        let t = ranks as usize;
        // Rings: two linears forward, and the gradients of two inputs.
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(launches(&on, Kernel::PART, pass), 2 * t * blocks);
        }
        // Pipelines of four; in bulk a matmul for each of two inputs and two weights. Two weights have nothing beside them.
        assert_eq!(launches(&on, Kernel::BESIDE, Pass::Forward), 2 * 4 * blocks);
        assert_eq!(launches(&on, Kernel::BESIDE, Pass::Backward), 4 * blocks);
        assert_eq!(launches(&on, "te.generic_gemm", Pass::Forward), 0);
        assert_eq!(launches(&on, "te.generic_gemm", Pass::Backward), 2 * blocks);
        // Bytes: a ring's messages, a pipeline's quarters, and whole exchanges in bulk.
        let whole = TOKENS * WIDTH * 2;
        assert_eq!(sent(&on), vec![whole / ranks; 4 * (t - 1) * blocks]);
        let scatters = exchanged(&on, "tp user buffers", Collective::ReduceScatter);
        assert_eq!(scatters.iter().filter(|&&bytes| bytes == whole / 4).count(), 2 * 4 * blocks);
        assert_eq!(scatters.iter().filter(|&&bytes| bytes == whole).count(), 2 * blocks);
        assert_eq!(exchanged(&on, "tp user buffers", Collective::AllGather), vec![whole; 2 * blocks]);
    }
}

#[test]
fn as_much_is_multiplied_and_exchanged_as_without() {
    let (off, on) = (program(4, ""), program(4, ON));
    for pass in [Pass::Forward, Pass::Backward] {
        assert_eq!(off.flops_of(pass), on.flops_of(pass));
    }
    let all = |program: &Program, kind| -> u64 {
        ["tp", "tp user buffers"].iter().flat_map(|group| exchanged(program, group, kind)).sum()
    };
    let scatter = Collective::ReduceScatter;
    assert_eq!(all(&off, scatter), all(&on, scatter));
    // Of what is gathered each rank gets three quarters from others.
    let gather = Collective::AllGather;
    assert_eq!(all(&off, gather) * 3 / 4, all(&on, gather) * 3 / 4 + sent(&on).iter().sum::<u64>());
}

#[test]
fn buffers_of_all_linears_hold_a_micro_batch_each() {
    let bytes = |more: &str| {
        let program = program(8, &format!("{ON}{more}"));
        let own: Vec<u64> = program.groups.iter().filter_map(|group| group.user_buffers).map(|bytes| bytes.0).collect();
        assert_eq!(own.len(), 1);
        own[0] / (TOKENS * WIDTH)
    };
    assert_eq!(bytes(""), 12 * 2);
    // What is gathered is in fp8, what is scattered is not.
    assert_eq!(bytes("\nfp8 = \"delayed\""), 8 + 4 * 2);
}

#[test]
fn without_autograd_nothing_is_gathered_beside_a_matmul() {
    // A block that runs again gathers at first in one collective, and in a ring when it runs again.
    let again = text(4, ON).replace("recompute = \"none\"", "recompute.uniform = 1");
    let full = make::program(&again);
    let whole = TOKENS * WIDTH * 2;
    let gathers = exchanged(&full, "tp", Collective::AllGather).into_iter().filter(|&bytes| bytes == whole).count();
    let none = program(4, ON);
    let before = exchanged(&none, "tp", Collective::AllGather).into_iter().filter(|&bytes| bytes == whole).count();
    assert_eq!(gathers - before, 2 * LAYERS * MICRO_BATCHES);
    assert_eq!(sent(&full).len(), sent(&none).len());
}

#[test]
fn bulk_without_a_margin_leaves_no_processors_and_is_slowed() {
    let on = program(4, &format!("{ON}\ntp_comm_bulk_sm_margin = false"));
    let blocks = LAYERS * MICRO_BATCHES;
    assert_eq!(launches(&on, Kernel::BESIDE, Pass::Forward), 2 * 4 * blocks);
    assert_eq!(launches(&on, Kernel::BESIDE, Pass::Backward), 0);
    let slow = on.comms.iter().filter(|comm| {
        let group = on.group(comm.group);
        group.user_buffers.is_some() && group.slows
    });
    let mut whole: Vec<Collective> = slow.map(|comm| comm.kind).collect();
    whole.sort_unstable();
    assert_eq!(whole, [Collective::AllGather, Collective::ReduceScatter]);
}

#[test]
fn processors_that_are_left_to_others_are_missed() {
    let profile = Profile::find("h100-sxm-80gb").unwrap();
    let work = Work::Matmul { m: 8192, n: 8192, k: 8192, dtype: DType::Bf16, layout: MatmulLayout::Forward };
    let seconds = |name, regime| {
        let kernel = Kernel { name, work, pass: Pass::Forward, dispatch: Dispatch::Extra };
        CostModel::new(&profile, regime).kernel(&kernel).time.seconds()
    };
    let slower = |regime| seconds(Kernel::BESIDE, regime) / seconds("te.generic_gemm", regime);
    // At boost clocks a matmul of many waves takes 132 / 116 of its time; where power limits the clock, less.
    let (burst, sustained) = (slower(Regime::Burst), slower(Regime::Sustained));
    assert!((burst / (132.0 / 116.0) - 1.0).abs() < 0.05, "{burst}");
    assert!((1.0..=burst).contains(&sustained), "{sustained} {burst}");
}

#[test]
fn what_is_exposed_without_it_is_hidden_by_it() {
    let step = |text: &str| make::fly(text).step.seconds();
    // Wide matmuls, whose exchanges NCCL leaves exposed.
    let wide = text(8, "").replace("llama-3.1-8b", "llama-3-70b").replace("sequence = 4096", "sequence = 8192");
    let (off, on) = (step(&wide), step(&format!("{wide}{ON}\n")));
    assert!(on < off, "{on} {off}");
}

#[test]
fn ranks_of_several_nodes_have_no_buffers_in_common() {
    let two = text(16, ON)
        .replace("nodes = 1", "nodes = 2")
        .replace("= 4096", "= 2048")
        .replace("llama-3.1-8b", "gpt-megatron-175b");
    let said = crate::followed::refusal(make::FILE, &two);
    assert!(said.contains("mesh.tp is 16, and a node has 8 chips"), "{said}");
}

#[test]
fn a_ring_that_scatters_sends_each_rank_its_rows_which_adds_them_up_at_the_end() {
    let rings = format!("{ON}\ntp_comm_proj_fprop = \"ring_exchange\"\ntp_comm_fc2_fprop = \"ring_exchange\"");
    for ranks in [2_u64, 4, 8] {
        let on = program(ranks as u32, &rings);
        let (t, blocks) = (ranks as usize, LAYERS * MICRO_BATCHES);
        // Four linears forward in as many parts as there are ranks, none in pipelines of four.
        assert_eq!(launches(&on, Kernel::PART, Pass::Forward), 4 * t * blocks);
        assert_eq!(launches(&on, Kernel::BESIDE, Pass::Forward), 0);
        // Two rings gather forward, two backward, and two scatter: all parts but one's own, each of a rank's rows.
        let messages = sent(&on);
        assert_eq!(messages.len(), 6 * (t - 1) * blocks);
        assert!(messages.iter().all(|&bytes| bytes == TOKENS / ranks * WIDTH * 2));
        // What is left to user buffers' reduce-scatter are two bulk exchanges.
        assert_eq!(exchanged(&on, "tp user buffers", Collective::ReduceScatter).len(), 2 * blocks);
        let sums: Vec<&Kernel> = kernels(&on).filter(|kernel| kernel.name == "ub.reduce_bf16").collect();
        assert_eq!(sums.len(), 2 * blocks);
        let Work::Memory { read, written, .. } = sums[0].work else { panic!("{:?}", sums[0]) };
        assert_eq!((read.0, written.0), (TOKENS * WIDTH * 2, TOKENS / ranks * WIDTH * 2));
    }
}

#[test]
fn a_matmul_takes_the_longer_the_more_processors_it_leaves() {
    let profile = Profile::find("h100-sxm-80gb").unwrap();
    let model = CostModel::new(&profile, Regime::Burst);
    let seconds = |name: &'static str| {
        let work = Work::Matmul { m: TOKENS, n: 12288, k: 12288, dtype: DType::Bf16, layout: MatmulLayout::Forward };
        model.kernel(&Kernel { name, work, pass: Pass::Forward, dispatch: Dispatch::Extra }).time.seconds()
    };
    let whole = seconds("te.generic_gemm");
    let mut left: Vec<u8> = Kernel::leaves().collect();
    left.sort_unstable();
    let times: Vec<f64> = left.iter().map(|&processors| seconds(Kernel::beside(processors))).collect();
    assert!(times.is_sorted() && times[0] >= whole, "{times:?}");
    // A third of 132 processors more or less for a quarter of them: about their share, and never twice that.
    let (most, last) = (f64::from(left[left.len() - 1]) / 132.0, times[times.len() - 1] / whole - 1.0);
    assert!(last > most / 2.0 && last < 2.0 * most / (1.0 - most), "{last} {most}");
}

#[test]
fn how_user_buffers_are_configured_is_told_where_it_means_nothing_or_is_not_known() {
    let folder = Folder::new("user-buffers");
    let refused = |more: &str| {
        folder.write("my.toml", &text(8, more));
        folder.refuses(&["run", "my.toml"])
    };
    let said = {
        folder.write("my.toml", &text(1, ON).replace("[tensor_parallel]\nsequence = true\n", ""));
        folder.refuses(&["run", "my.toml"])
    };
    assert!(said.contains("mesh.tp is 1") && said.contains("tp_comm_overlap = false"), "{said}");
    for key in ["tp_comm_proj_fprop", "tp_comm_fc2_fprop"] {
        let said = refused(&format!("{key} = \"ring_exchange\""));
        assert!(
            said.contains(&format!("{key} is about exchanges that overlap with matmuls")) && said.contains("my.toml:"),
            "{said}"
        );
        let said = refused(&format!("{ON}\n{key} = {{ pipeline = 17 }}"));
        assert!(said.contains("17 processors") && said.contains("[2, 4, 8, 16, 20, 24, 32]"), "{said}");
    }
}

#[test]
fn a_pipeline_without_a_margin_leaves_no_processors() {
    let before = format!("{ON}\ntp_comm_proj_fprop = {{ pipeline = 0 }}\ntp_comm_fc2_fprop = {{ pipeline = 0 }}");
    let on = program(8, &before);
    let blocks = LAYERS * MICRO_BATCHES;
    // Their eight parts of a block are ordinary matmuls; bulk still leaves some.
    assert_eq!(launches(&on, "te.generic_gemm", Pass::Forward), 8 * blocks);
    assert_eq!(launches(&on, Kernel::BESIDE, Pass::Forward), 0);
    assert_eq!(launches(&on, Kernel::BESIDE, Pass::Backward), 4 * blocks);
}
