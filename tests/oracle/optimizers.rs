//! Optimizers that people use besides Adam against the real ones (`tests/oracles/optimizers.json`): peaks of the optimizer's step and of
//! the whole step, and every allocation, free and collective of the optimizer's step in host order.

use serde_json::{Value, json};
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Pass, Program, Work};
use windtunnel::runtime::optimizer::{Adam, Bitsandbytes, Decay, How, Muon, Optimizer};
use windtunnel::runtime::train;
use windtunnel::units::Bytes;

use super::cases;
use super::fsdp2_switches::{first_difference_of_step, job, percent};

/// How far an allocated peak may be off.
const ALLOCATED: f64 = 0.01;

/// The optimizer of a case; none if it is not simulated.
fn optimizer(name: &str, args: &Value) -> Option<Optimizer> {
    let rest = Adam::new(How::Foreach, Decay::OfWeights, false);
    Some(match name {
        "muon" => Optimizer::Muon(Muon {
            nesterov: args["nesterov"].as_bool().unwrap_or(true),
            iterations: args["ns_steps"].as_u64().unwrap_or(5) as u32,
            rest,
        }),
        "bnb_8bit" => Optimizer::Bitsandbytes(Bitsandbytes { states: 2 }),
        "bnb_lion_8bit" => Optimizer::Bitsandbytes(Bitsandbytes { states: 1 }),
        _ => return None,
    })
}

/// A case's program.
fn program(case: &Value) -> Option<Program> {
    let config = &case["config"];
    let stepped = optimizer(config["opt"].as_str().unwrap(), &config["opt_args"])?;
    let mut plain = case.clone();
    plain["config"]["opt"] = json!("sgd");
    plain["config"]["opt_args"] = json!({});
    let mut job = job::job(&plain)?;
    job.optimizer = stepped;
    Some(train::compile(&job))
}

fn check(beginning: &str, count: usize) {
    let Some(file) = cases::read("optimizers.json") else { return };
    let (mut wrong, mut table, mut compared) = (String::new(), String::new(), 0);
    for case in file["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        if !id.starts_with(beginning) || case["error"].is_string() {
            continue;
        }
        let Some(program) = program(case) else { continue };
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let off = percent(report.peak_allocated.0, case["peak_allocated"].as_u64().unwrap());
        let difference = first_difference_of_step(case["events"].as_str().unwrap(), &program);
        table += &format!("{id:34} allocated {off:+8.4} %  {}\n", if difference.is_empty() { "in order" } else { "" });
        if off.abs() > ALLOCATED * 100.0 || !difference.is_empty() {
            wrong += &format!("{id}: allocated {off:+.4} %, {difference}");
        }
        compared += 1;
    }
    println!("{table}{compared} cases");
    assert!(wrong.is_empty(), "{table}{wrong}");
    assert!(compared >= count || cases::elsewhere(), "{compared} cases");
}

#[test]
fn muon_allocates_and_communicates_as_pytorchs_does_alone_and_under_fully_shard() {
    check("muon", 24);
}

#[test]
fn states_of_8_bits_are_bitsandbytes_own() {
    check("bnb_8bit", 4);
    check("bnb_lion_8bit", 4);
}

#[test]
fn newton_schulz_of_a_matrix_is_5_times_4_m_m_n_and_2_m_m_m_flops() {
    let Some(file) = cases::read("optimizers.json") else { return };
    let case = file["cases"].as_array().unwrap().iter().find(|case| case["id"] == "muon_bf16_small").unwrap();
    let program = program(case).unwrap();
    let flops = |m: u128, n: u128| 5 * (4 * m * m * n + 2 * m * m * m);
    let layer = 2 * flops(1024, 1024) + 2 * flops(256, 1024) + 3 * flops(1024, 3584);
    assert_eq!(program.flops_of(Pass::Optimizer).0, 2 * layer);
    let bf16 = |work: &Work| !matches!(work, Work::Matmul { dtype, .. } if dtype.bytes() != 2);
    assert!(program.kernels.iter().filter(|kernel| kernel.pass == Pass::Optimizer).all(|kernel| bf16(&kernel.work)));
}
