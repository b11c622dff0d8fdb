//! What micro-batches do alike is stamped: every program is, to the instruction, the one in which each runs its operators.

use std::path::Path;

use windtunnel::program::Program;
use windtunnel::receipt::map::map;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;
use windtunnel::runtime::Flight;
use windtunnel::runtime::megatron::{MegatronPlan, Split, compile, compile_one_by_one};
use windtunnel::scenario::Scenario;

use crate::make::{FILE, MEGATRON, parse, replaced};

/// Rounds of micro-batches that hold all a step does: one that fills the pipeline, some alike, one that empties it.
const ROUNDS: u32 = 3;

/// The job with fewer micro-batches.
fn shorter(job: &MegatronPlan) -> MegatronPlan {
    let round = job.split.mesh.pp.max(2);
    let most = ROUNDS * round;
    let split = Split { micro_batches: job.split.micro_batches.min(most), ..job.split.clone() };
    MegatronPlan { split, ..job.clone() }
}

fn hold(what: &str, job: &MegatronPlan) {
    let programs = |flight: Flight| -> (Vec<Program>, Vec<u32>) { (flight.clone().programs(), flight.class_of) };
    let ((stamped, of), (written, by)) = (programs(compile(job)), programs(compile_one_by_one(job)));
    assert_eq!(of, by, "{what}");
    for (stamped, written) in stamped.iter().zip(&written) {
        let differs = stamped.step.iter().zip(&written.step).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{what}: the first instruction that differs");
        assert_eq!(stamped.step.len(), written.step.len(), "{what}");
        assert_eq!((&stamped.setup, &stamped.first), (&written.setup, &written.first), "{what}");
        assert_eq!((&stamped.buffers, stamped.events), (&written.buffers, written.events), "{what}");
        assert_eq!((&stamped.kernels, &stamped.comms), (&written.kernels, &written.comms), "{what}");
        assert_eq!((&stamped.exchanges, &stamped.transfers), (&written.exchanges, &written.transfers), "{what}");
        assert_eq!((&stamped.renames, &stamped.marks), (&written.renames, &written.marks), "{what}");
        assert_eq!((&stamped.rounds, stamped.flops), (&written.rounds, written.flops), "{what}");
    }
}

#[test]
fn every_sixth_published_run_is_stamped_as_it_would_be_written() {
    let (mut receipts, tables) = (Receipts::default(), Tables::shipped());
    for file in ["public.jsonl", "vtrain-a100.jsonl"] {
        receipts.add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts").join(file)).unwrap();
    }
    let mut held = 0;
    for receipt in receipts.entries.iter().step_by(6) {
        let Ok(mapped) = map(receipt, &tables) else { continue };
        let ours = ["runtime = \"megatron\"", "runtime = \"deepspeed\""].iter().any(|line| mapped.text.contains(line));
        let Some(scenario) = Scenario::parse(FILE, &mapped.text).ok().filter(|_| ours) else { continue };
        if scenario.simulable().is_ok() {
            hold(&receipt.row.id, &shorter(scenario.job.megatron().expect("a plan of Megatron's")));
            held += 1;
        }
    }
    assert!(held >= 80, "{held} runs");
}

#[test]
fn schedules_overlap_and_recomputation_do_not_change_what_is_stamped() {
    let overlap = "[megatron]\ndistributed_optimizer = true\noverlap_grad_reduce = true\noverlap_param_gather = true\n";
    for more in [
        "",
        overlap,
        "[megatron]\nfp8 = \"delayed\"\n",
        "[megatron]\nfp8 = \"tensorwise\"\n",
        "[megatron]\nrecompute.uniform = 1\n",
        "[megatron]\nrecompute_modules = [\"layernorm\", \"mlp\"]\n",
        "[megatron]\nmtp_num_layers = 1\n",
        "[megatron]\nimplementation = \"local\"\n",
        "[megatron]\nrecompute = \"core_attn\"\nattention = \"unfused\"\nimplementation = \"local\"\n",
    ] {
        for pipeline in ["", "[pipeline]\nvirtual_stages = 2\n", "[pipeline]\nschedule = \"ZB-H1\"\n"] {
            if pipeline.contains("ZB-H1") && !more.contains("local") {
                continue;
            }
            let scenario =
                parse(&replaced(&format!("{MEGATRON}{pipeline}{more}"), &[("accumulation = 4", "accumulation = 8")]));
            hold(&format!("{pipeline}{more}"), scenario.job.megatron().expect("a plan of Megatron's"));
        }
    }
}

#[test]
fn shared_experts_beside_exchanges_are_stamped_as_they_would_be_written() {
    let plan = parse(&replaced(crate::shared_experts::PLAN, &[("accumulation = 2", "accumulation = 6")]));
    hold("shared experts", plan.job.megatron().expect("a plan of Megatron's"));
}
