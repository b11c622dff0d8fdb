//! Stands where the program will be: a pipeline's computations as one matmul each, its sends and receives, parameters.

use super::Job;
use crate::program::builder::{Builder, Section};
use crate::program::{Category, DType, Direction, Dispatch, Mark, MatmulLayout, Pass, StreamId, Transfer, Work};
use crate::runtime::Flight;
use crate::schedule::{Action, Kind, Lowering, Shape, lower};
use crate::units::Bytes;

const COMPUTE: StreamId = StreamId(0);

/// What its ranks run.
pub fn compile(job: &Job) -> Flight {
    let shape =
        Shape { ranks: job.mesh.pp, virtual_stages: job.pipeline.virtual_stages, microbatches: job.micro_batches };
    let schedule = job.pipeline.schedule.build(shape).expect("a shape that the scenario has checked");
    let options = Lowering { overlap_p2p_comm: job.pipeline.overlap_p2p, ..Lowering::default() };
    let lists = lower(&schedule, &options).expect("a schedule that can be lowered");
    let tokens = job.batch * job.seq;
    let (d, tp) = (job.model.width, u64::from(job.mesh.tp));
    Flight::in_turn(
        (0..job.mesh.pp as usize)
            .map(|rank| {
                let mut program = Builder::new(job.mesh.ranks(), &["default", "pp"]);
                let pp = program.add_group(job.mesh.pipeline());
                let peers = job.mesh.pipeline();
                program.section(Section::Setup);
                let layers: u64 = lists
                    .rank(rank)
                    .iter()
                    .filter(|action| action.kind == Kind::Forward && action.microbatch == 0)
                    .map(|action| job.pipeline.layers[usize::from(action.stage)])
                    .sum();
                let parameters = Bytes(18 * 12 * d * d * layers / tp);
                program.alloc(parameters, COMPUTE, Category::Parameter, "parameters");
                program.section(Section::Step);
                let mut kept = vec![];
                for portion in lists.portions(rank) {
                    let mut moved = vec![];
                    for &Action { kind, stage, .. } in portion {
                        let layers = job.pipeline.layers[usize::from(stage)];
                        let bytes = Bytes(2 * tokens * d);
                        let transfer = |direction, by| Transfer {
                            direction,
                            group: pp,
                            ahead: peers.ahead(by),
                            bytes,
                            dtype: DType::Bf16,
                        };
                        match kind {
                            Kind::Forward | Kind::Backward => {
                                let times = if kind == Kind::Forward { 1 } else { 2 };
                                program.set_pass(if times == 1 { Pass::Forward } else { Pass::Backward });
                                let work = Work::Matmul {
                                    m: tokens,
                                    n: 12 * d / tp,
                                    k: d,
                                    dtype: DType::Bf16,
                                    layout: MatmulLayout::Forward,
                                };
                                for _ in 0..times * layers {
                                    program.launch(COMPUTE, "aten.mm", work, Dispatch::EagerForward);
                                }
                                match kind {
                                    Kind::Forward => kept.push(program.alloc(
                                        Bytes(34 * tokens * d * layers / tp),
                                        COMPUTE,
                                        Category::Activation,
                                        "saved",
                                    )),
                                    _ => {
                                        let buffer = kept.remove(0);
                                        program.free(buffer);
                                    }
                                }
                            }
                            Kind::SendForward => moved.push(transfer(Direction::Send, 1)),
                            Kind::RecvForward => moved.push(transfer(Direction::Receive, -1)),
                            Kind::SendBackward => moved.push(transfer(Direction::Send, -1)),
                            Kind::RecvBackward => moved.push(transfer(Direction::Receive, 1)),
                            _ => {}
                        }
                    }
                    let receives = moved.iter().any(|moved| moved.direction == Direction::Receive);
                    if !moved.is_empty() {
                        program.wait_stream(StreamId(1), COMPUTE);
                        program.exchange(StreamId(1), &moved);
                        if receives {
                            program.wait_stream(COMPUTE, StreamId(1));
                        }
                    }
                }
                program.mark(Mark::PhaseEnd("fwd-bwd".to_owned()));
                program.finish()
            })
            .collect(),
    )
}
