//! `windtunnel show plan`: the mesh, its communicators on the machine, and who has which part of the model.

use std::fmt::Write;

use windtunnel::program::Group;
use windtunnel::report::text::table;
use windtunnel::runtime::fsdp::Reshard;
use windtunnel::runtime::spmd::ROUTER;
use windtunnel::runtime::{Flight, Parts, spmd, train};
use windtunnel::scenario::Scenario;

pub(super) fn plan(scenario: &Scenario, flight: &Flight) -> String {
    let sharded = scenario.job.sharded_states();
    let axes = match scenario.job.parts() {
        Parts::Whole(job) if !sharded.is_empty() && job.context > 1 => {
            format!("cp={}, dp={}", job.context, job.data_ranks() / job.context)
        }
        Parts::Whole(job) if !sharded.is_empty() => format!("dp={}", job.data_ranks()),
        Parts::Whole(job) => {
            let stages = job.pipeline.as_ref().map(|stages| format!("pp={}, ", stages.ranks)).unwrap_or_default();
            format!("{stages}dp_replicate={}, dp_shard={}", job.fsdp.replicate, job.fsdp.shard)
        }
        Parts::Split(job) => {
            let mesh = job.mesh;
            format!("tp={}, cp={}, dp={}, pp={}", mesh.tp, mesh.cp, mesh.dp, mesh.pp)
        }
        Parts::Compiled(job) => {
            let mesh = job.mesh;
            format!(
                "dcn_data={}, {}data={}, fsdp={}, fsdp_transpose={}, context={}, expert={}, tensor={}",
                mesh.dcn_data,
                job.pipeline
                    .map(|_| format!("dcn_pipeline={}, pipeline={}, ", mesh.dcn_pipeline, mesh.pipeline))
                    .unwrap_or_default(),
                mesh.data,
                mesh.fsdp,
                mesh.fsdp_transpose,
                mesh.context,
                mesh.expert,
                mesh.tensor
            )
        }
    };
    let mut out = format!("mesh ({axes}) on {} ({} chips)\n", scenario.topology.name, scenario.topology.chips());
    // All classes have the same groups.
    let groups: &[Group] = flight.classes.first().map_or(&[], |program| &program.groups);
    let rows = groups.iter().map(|group| {
        let lies = scenario.topology.on_nodes(group.size, group.stride);
        vec![
            group.name.clone(),
            group.size.to_string(),
            group.stride.to_string(),
            format!("{} on each of {} nodes", lies.ranks_per_node, lies.nodes),
        ]
    });
    let _ = writeln!(out, "\n{}", table(&["communicator", "ranks", "stride", "placed"], rows.collect(), 1));
    match scenario.job.parts() {
        Parts::Whole(_) if !sharded.is_empty() => {
            let _ = writeln!(out, "\nwhat a rank holds");
            for (states, part) in sharded {
                let _ = writeln!(out, "  {states:<15} {part}");
            }
        }
        Parts::Whole(job) => {
            groups_of(&mut out, job);
            if let Some(pipeline) = &job.pipeline {
                stages(&mut out, scenario, (pipeline.schedule.name(), pipeline.ranks));
            }
        }
        Parts::Split(job) => stages(&mut out, scenario, (job.pipeline.schedule.name, job.mesh.pp)),
        Parts::Compiled(job) => specs(&mut out, job),
    }
    out
}

/// The spec of each weight, by the axes that each dimension lies on.
fn specs(out: &mut String, job: &spmd::XlaPlan) {
    let stages = if job.pipeline.is_some() { "; repeats and stages before them" } else { "" };
    let _ = writeln!(out, "\nspecs of a block's weights (rows, columns; experts before them{stages})");
    let kinds = job.model.layers.kinds();
    let widest = kinds.iter().find(|kind| kind.experts().is_some()).unwrap_or(&kinds[0]);
    for weight in spmd::Block::of(job, widest).weights {
        let (rows, columns) = match (weight.row_parallel, weight.name.starts_with('w')) {
            (false, false) => ("fsdp, fsdp_transpose, context", "tensor"),
            (false, true) => ("fsdp, context", "fsdp_transpose, tensor"),
            (true, false) => ("tensor", "fsdp, fsdp_transpose, context"),
            (true, true) => ("fsdp_transpose, tensor", "fsdp, context"),
        };
        let axes = match (weight.experts, weight.name) {
            (true, _) => format!("expert, ({rows}), ({columns})"),
            // The router's scores are of all experts on every chip.
            (false, ROUTER) => format!("({rows}, expert), ()"),
            (false, _) if weight.row_parallel => format!("({rows}), ({columns}, expert)"),
            (false, _) => format!("({rows}, expert), ({columns})"),
        };
        let axes = match job.pipeline.map(|all| all.repeats) {
            None => axes,
            Some(1) => format!("stage, {axes}"),
            Some(_) => format!("(), stage, {axes}"),
        };
        let _ = writeln!(out, "  {:<8} P({axes})", weight.name);
    }
}

fn stages(out: &mut String, scenario: &Scenario, (schedule, ranks): (&str, u32)) {
    let _ = writeln!(out, "\nblocks of each rank of the pipeline ({schedule})");
    for rank in 0..ranks {
        let layers: Vec<String> = scenario.job.layers_of(rank).iter().map(u64::to_string).collect();
        let _ = writeln!(out, "  {rank:<8} {}", layers.join(" + "));
    }
}

fn policy(reshard: Reshard) -> String {
    match reshard {
        Reshard::Always => "true".to_owned(),
        Reshard::Never => "false".to_owned(),
        Reshard::To(ranks) => ranks.to_string(),
    }
}

fn groups_of(out: &mut String, job: &train::TorchPlan) {
    let wrap = &job.fsdp.wrap;
    let _ = writeln!(out, "\nparameter groups (reshard_after_forward)");
    if let Some(reshard) = wrap.embedding {
        let _ = writeln!(out, "  tok_embeddings  {}", policy(reshard));
    }
    for (layer, reshard) in wrap.blocks.iter().enumerate() {
        let shown = reshard.map_or_else(|| "not wrapped: its parameters belong to the root".to_owned(), policy);
        let _ = writeln!(out, "  layers.{layer:<8} {shown}");
    }
    if let Some(reshard) = wrap.head {
        let _ = writeln!(out, "  norm, output    {}", policy(reshard));
    }
    let _ = writeln!(out, "  root            {}", policy(wrap.root));
}
