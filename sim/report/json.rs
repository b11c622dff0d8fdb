//! The report a program reads: everything the text says and more, with units in the names.

use serde_json::Value;

use super::layout::{
    ByPart, Change, Changes, Default, FORMAT, GroupWaits, KeyWithoutEffect, Live, Memory, Mfu, Model, Part, Phase,
    Question, Ranks, Remedy, Report, RunsLikeIt, SlowRank, Topology, Training, Uncertain, Unstated,
};
use super::{pipeline, start_up};
use crate::scenario::advice::{self, Advice, Moved, Tried};
use crate::scenario::predict::{Apart, Reason, Waits};
use crate::scenario::{Idle, Prediction, Scenario, predict};

/// The prediction as JSON.
pub fn report(scenario: &Scenario, answer: &Prediction) -> Value {
    answer.report(scenario).json()
}

impl Report {
    /// The same with single changes that were simulated.
    #[must_use]
    pub fn with(self, advice: Option<&Advice>) -> Report {
        let report = Report { changes: advice.map(changes), ..self };
        report.unstated(advice.and_then(|advice| advice.unstated.as_ref()))
    }

    /// The same with where throughput lies at other values of what decides it.
    #[must_use]
    pub fn unstated(self, unstated: Option<&advice::Unstated>) -> Report {
        let range = |of: &advice::Unstated| Unstated {
            defaults: of.defaults.clone(),
            tokens_per_second_per_chip: [of.rates.0, of.rates.1],
        };
        Report { unstated: unstated.map(range).or(self.unstated), ..self }
    }

    /// The same with the training that the step is part of.
    #[must_use]
    pub fn training(self, training: Option<&Training>) -> Report {
        Report { training: training.cloned(), ..self }
    }
}

fn changes(advice: &Advice) -> Changes {
    let change = |tried: &Tried| Change {
        change: tried.change.clone(),
        device_total_bytes: tried.device_total.0,
        fits: tried.fits,
        step_time_s: tried.step.seconds(),
        tokens_per_second_per_chip: tried.rate,
        tokens_per_step: tried.tokens,
    };
    let default = |moved: &Moved| Default {
        default: moved.default.clone(),
        memory: moved.memory,
        other: change(&moved.other),
        throughput: moved.rate,
    };
    Changes {
        defaults: advice.defaults.iter().map(default).collect(),
        faster: advice.faster.iter().map(change).collect(),
        simulated: advice.simulated,
    }
}

impl Prediction {
    /// The report of this prediction as plain data, which serde writes in the layout of `windtunnel run --json`.
    pub fn report(&self, scenario: &Scenario) -> Report {
        let (job, topology) = (&scenario.job, &scenario.topology);
        let idle = scenario.idle.iter().chain(&self.idle);
        Report {
            allocator_stall_s: self.stall.seconds(),
            assumptions: scenario.assumption_lines(),
            bound_by: self.bound(),
            breakdown_s: pipeline::breakdown(&self.breakdown),
            bubble: pipeline::bubble(scenario, self),
            by_part: self.by_part(scenario).iter().map(by_part).collect(),
            changes: None,
            description: scenario.description.clone(),
            evidence: self.shares.iter().map(|(basis, share)| (basis.label(), *share)).collect(),
            format: FORMAT,
            keys_without_effect: idle
                .map(|Idle { key, why }| KeyWithoutEffect { key: key.clone(), why: why.clone() })
                .collect(),
            lane: scenario.runtime.lane(),
            not_simulated: scenario.not_simulated.clone(),
            memory: memory(self),
            mfu: mfu(self),
            model: Model { name: job.model().name.clone(), parameters: job.model().params().total },
            parts: parts(self),
            questions: super::questions::questions(scenario, self)
                .into_iter()
                .map(|(question, answer)| Question { answer, question })
                .collect(),
            ranks: self.apart.as_ref().map(ranks),
            residual_half_width: self.reasons.residual,
            runs_like_it: RunsLikeIt {
                configurations: self.alike.runs,
                half_within: self.alike.half,
                median_error: self.alike.bias,
                models: self.alike.families,
                nine_in_ten_within: self.alike.nine_in_ten,
            },
            scenario: scenario.file.clone(),
            sequences_per_step: self.tokens / job.seq().max(1),
            stages: pipeline::stages(scenario, self),
            start_up: start_up::report(scenario, self),
            step_time_confidence: self.confidence().word(),
            step_time_interval_80_s: [self.interval.0.seconds(), self.interval.1.seconds()],
            step_time_s: self.step.seconds(),
            step_time_uncertain_by: uncertain(self),
            tokens_per_second_per_chip: self.tokens_per_second_per_chip(topology.chips()),
            tokens_per_step: self.tokens,
            topology: Topology { chips: topology.chips(), name: topology.name.clone(), nodes: topology.nodes },
            topology_without_effect: self.unread.iter().map(|fact| fact.key.clone()).collect(),
            training: None,
            unstated: None,
            windtunnel: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl Report {
    /// The report as a JSON value. `{:#}` prints it as `--json` does.
    pub fn json(&self) -> Value {
        serde_json::to_value(self).expect("every key of a report is text, and nothing else fails")
    }
}

fn ranks(apart: &Apart) -> Ranks {
    let group = |waits: &Waits| GroupWaits {
        group: waits.group.clone(),
        if_alike_s: waits.alike.seconds(),
        mean_s: waits.mean.seconds(),
    };
    let slow = |slow: &predict::SlowRank| SlowRank {
        costs_s: slow.costs.seconds(),
        kernels: slow.kernels,
        links: slow.links,
        rank: slow.rank,
    };
    Ranks {
        groups: apart.waits.iter().map(group).collect(),
        slow: apart.slow.iter().map(slow).collect(),
        source: apart.source.clone(),
        step_if_alike_s: apart.alike.seconds(),
        steps_s: apart.steps.iter().map(|step| step.seconds()).collect(),
        stragglers_s: apart.costs().seconds(),
    }
}

fn uncertain(answer: &Prediction) -> Vec<Uncertain> {
    let list = answer.reasons.list().into_iter().filter(|reason| reason.share > 0.0);
    list.map(|Reason { what, share }| Uncertain { share, what }).collect()
}

fn memory(answer: &Prediction) -> Memory {
    let memory = &answer.memory;
    let report = &memory.report;
    let host = memory.host;
    Memory {
        allocated_bytes: report.peak_allocated.0,
        allocator_retries: report.retries,
        breakdown_bytes: report
            .breakdown
            .sorted()
            .into_iter()
            .map(|(category, count)| (category.label(), count.0))
            .collect(),
        capacity_bytes: memory.capacity.0,
        chance_to_fit: memory.chance(),
        device_total_bytes: memory.device_total().0,
        disk_bytes: host.map(|host| host.rank.files.0).filter(|&files| files > 0),
        doubt_bytes: memory.doubt.0,
        fits: memory.fits(),
        fits_beyond_doubt: memory.fits_beyond_doubt(),
        host_bytes: host.map(|host| host.rank.all.0),
        host_bytes_per_node: host.map(|host| host.wanted().0),
        host_capacity_bytes: host.map(|host| host.capacity.map(|has| has.0)),
        host_pinned_bytes: host.map(|host| host.rank.pinned.0),
        live_at_peak: answer
            .live()
            .into_iter()
            .map(|live| Live {
                bytes: live.bytes.0,
                category: live.category.label(),
                count: live.count,
                name: live.name,
            })
            .collect(),
        may_fit: memory.may_fit(),
        needs_bytes: memory.needs.0,
        outside_allocator_bytes: memory.outside.0,
        peak_phase: report.peak_phase.clone(),
        phases: report
            .phases
            .iter()
            .map(|phase| Phase {
                end_allocated_bytes: phase.end_allocated.0,
                name: phase.name.clone(),
                peak_allocated_bytes: phase.peak_allocated.0,
            })
            .collect(),
        nearest: memory.nearest.as_ref().map(remedy),
        remedies: memory.remedies.iter().map(remedy).collect(),
        reserved_bytes: report.peak_reserved.0,
        shortfall_bytes: memory.shortfall().0,
        verdict: memory.verdict().to_string(),
    }
}

fn remedy(remedy: &crate::scenario::remedy::Remedy) -> Remedy {
    Remedy { change: remedy.change.clone(), device_total_bytes: remedy.device_total.0 }
}

fn mfu(answer: &Prediction) -> Vec<Mfu> {
    let one = |mfu: &predict::Mfu| Mfu {
        convention: mfu.name,
        because: mfu.because.clone(),
        flops_per_step: mfu.flops.0.to_string(),
        formula: mfu.formula,
        utilisation: mfu.utilisation,
    };
    answer.mfu.iter().map(one).collect()
}

fn by_part(part: &predict::PartShare) -> ByPart {
    ByPart {
        activation_bytes: part.activations.0,
        compute_s: part.busy.seconds(),
        flops_per_step: part.flops.0.to_string(),
        layers: part.layers,
        model_flops_per_step: part.model_flops.0.to_string(),
        parameters: part.params,
        part: part.owner.label(),
    }
}

fn parts(answer: &Prediction) -> Vec<Part> {
    let one = |part: &predict::Part| Part {
        basis: part.basis.label(),
        busy_s: part.busy.seconds(),
        count: part.count,
        exposed_s: part.exposed.seconds(),
        group: part.group,
        name: part.name.clone(),
    };
    answer.parts.iter().map(one).collect()
}
