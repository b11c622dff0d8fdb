//! One receipt and what is predicted for it.

use serde::{Deserialize, Serialize};

use super::map::Assumption;
use super::question::question;
use crate::cost::Variation;
use crate::files::digest;
use crate::scenario::predict::{Confidence, Kind, Reasons, Settings};
use crate::scenario::{Measured, Prediction, Ranks, Scenario, ScenarioError, predict};
use crate::units::{Bytes, Time};

/// A receipt that can be flown.
#[derive(Debug)]
pub struct Case {
    /// Its id, or the file of a user's own.
    pub id: String,
    /// The scenario's text, where a row was mapped; configurations are told apart by it.
    pub text: String,
    /// The scenario, with what was measured.
    pub scenario: Scenario,
    /// What the row does not state.
    pub assumptions: Vec<Assumption>,
    /// What a row states of publisher, software, machine and types; empty for a user's own.
    pub stated: String,
    /// Whether its memory is that of the last rank, whatever others have.
    pub of_last_rank: bool,
}

/// Predicted and measured, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// What the program says.
    pub predicted: f64,
    /// What was measured.
    pub measured: f64,
}

impl Pair {
    /// Relative error, positive where the prediction is higher.
    pub fn error(self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// Room on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Room {
    /// What the step needs \[B\].
    pub needs: u64,
    /// What the device has \[B\].
    pub capacity: u64,
    /// The chance that this is enough, 0 to 1.
    pub chance: f64,
}

/// A receipt held against its prediction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    /// The receipt's id.
    pub id: String,
    /// What the scenario calls itself.
    pub name: String,
    /// The day it was measured on; empty if nobody says.
    pub date: String,
    /// The commit of the code that ran; empty if nobody says.
    pub commit: String,
    /// Lane.
    pub lane: String,
    /// Hardware.
    pub hardware: String,
    /// Grade.
    pub grade: String,
    /// Everything but what was measured: rows of one configuration share it.
    pub configuration: String,
    /// What is the same for all layouts that it can be compared with ([`picks`](super::picks)).
    pub question: String,
    /// The configuration without its description, which may name the same layout otherwise.
    pub layout: String,
    /// Step time \[s\].
    pub step: Option<Pair>,
    /// Whether the measured step lies in the predicted interval.
    pub inside: Option<bool>,
    /// What kind of run it is, and whom it was measured with.
    pub kind: Kind,
    /// What of its step predictions err on.
    pub reasons: Reasons,
    /// Runs measured together.
    pub family: String,
    /// How much the predicted step time is worth.
    pub confidence: Confidence,
    /// Chips of the job.
    pub chips: u32,
    /// Reserved memory \[B\].
    pub reserved: Option<Pair>,
    /// Allocated memory \[B\].
    pub allocated: Option<Pair>,
    /// Memory of a kind that is not stated, against reserved \[B\].
    pub unstated: Option<Pair>,
    /// Model FLOPs utilisation in the receipt's own convention.
    pub mfu: Option<Pair>,
    /// The name of that convention; empty without a figure.
    pub mfu_convention: String,
    /// Whether it was out of memory: predicted, measured.
    pub memory_verdict: (bool, bool),
    /// What the device needs and has, and the chance that this is enough.
    pub room: Room,
    /// Largest parts of the predicted step: name, share.
    pub parts: Vec<(String, f64)>,
    /// Shares of compute, exposed communication, host and waiting.
    pub breakdown: [f64; 4],
    /// What bounds the step.
    pub bound: String,
    /// Keys that the row does not state.
    pub assumed: usize,
}

/// Parts of the step that are kept.
const PARTS: usize = 4;

/// What a scenario's text asks of the simulator: all but its description and what was measured.
pub(super) fn asked(text: &str) -> String {
    without(configuration(text), "description").to_string()
}

impl Case {
    /// A user's own scenario with `[measured]`, or a mapped row.
    pub fn new(id: &str, text: &str, scenario: Scenario, assumptions: Vec<Assumption>) -> Case {
        Case {
            id: id.to_owned(),
            text: text.to_owned(),
            scenario,
            assumptions,
            stated: String::new(),
            of_last_rank: false,
        }
    }

    /// What was measured.
    ///
    /// # Panics
    /// If the scenario measured nothing; a case is made of one that did.
    pub fn measured(&self) -> &Measured {
        self.scenario.measured.as_ref().expect("a case has a [measured] table")
    }

    /// The file with what was measured, and all that a prediction reads of it.
    pub(super) fn question(&self) -> String {
        format!("{} {} {}", self.id, digest(&self.text), self.scenario.asked())
    }

    /// Flies the scenario.
    pub fn fly(&self, record: bool) -> Result<Prediction, ScenarioError> {
        predict(&self.scenario, Settings { record, remedies: false, ..Settings::default() })
    }

    /// The same on GPUs whose pace differs as published; scenarios that say themselves how ranks differ are left as they are.
    pub fn fly_apart(&self, speed: Option<&Variation>) -> Result<Prediction, ScenarioError> {
        let ranks = speed.and_then(|speed| Ranks::published(speed, &self.scenario.topology));
        let Some(ranks) = ranks.filter(|_| self.scenario.ranks.is_none()) else { return self.fly(false) };
        let mut scenario = self.scenario.with(self.scenario.job.clone(), self.scenario.expandable_segments);
        scenario.ranks = Some(ranks);
        predict(&scenario, Settings { remedies: false, ..Settings::default() })
    }

    /// Holds a prediction against the receipt.
    pub fn judge(&self, answer: &Prediction) -> Judged {
        let m = self.measured();
        let seconds = |predicted: Time, measured: Option<Time>| {
            measured.map(|measured| Pair { predicted: predicted.seconds(), measured: measured.seconds() })
        };
        let bytes = |predicted: Bytes, measured: Option<Bytes>| {
            let measured = measured.filter(|measured| measured.0 > 0);
            measured.map(|measured| Pair { predicted: predicted.0 as f64, measured: measured.0 as f64 })
        };
        let last = answer.class_of.last().and_then(|&class| answer.classes.get(class as usize));
        let report = match last.filter(|_| self.of_last_rank) {
            Some(class) => &class.memory.report,
            None => &answer.memory.report,
        };
        let mfu = m.mfu.and_then(|(measured, name)| {
            let predicted = answer.mfu.iter().find(|mfu| mfu.name == name)?.utilisation;
            Some(Pair { predicted, measured })
        });
        let share = |part: Time| part.0 as f64 / answer.step.0.max(1) as f64;
        let parts = answer.parts.iter().take(PARTS);
        let b = &answer.breakdown;
        let keys = configuration(&self.text);
        let kind = &answer.kind;
        let about = format!("{} {} {} {} tokens", self.stated, kind.framework, kind.matmuls, answer.tokens);
        Judged {
            id: self.id.clone(),
            name: if self.scenario.description.is_empty() {
                self.id.clone()
            } else {
                self.scenario.description.clone()
            },
            date: m.date.clone(),
            commit: m.commit.clone(),
            lane: m.lane.clone(),
            hardware: m.hardware.clone(),
            grade: m.grade.clone(),
            configuration: keys.to_string(),
            question: question(&keys, &about),
            layout: without(keys, "description").to_string(),
            step: seconds(answer.step, m.step),
            inside: m.step.map(|step| answer.interval.0 <= step && step <= answer.interval.1),
            kind: answer.kind.clone(),
            reasons: answer.reasons,
            family: m.family.clone(),
            confidence: answer.confidence(),
            chips: self.scenario.topology.chips(),
            reserved: bytes(report.peak_reserved, m.reserved),
            allocated: bytes(report.peak_allocated, m.allocated),
            unstated: bytes(report.peak_reserved, m.peak_memory),
            mfu,
            mfu_convention: m.mfu.map_or("", |(_, name)| name).to_owned(),
            room: Room {
                needs: answer.memory.needs.0,
                capacity: answer.memory.capacity.0,
                chance: answer.memory.chance(),
            },
            memory_verdict: (answer.memory.refused(), m.out_of_memory),
            parts: parts.map(|part| (format!("{} {}", part.group, part.name), share(part.busy))).collect(),
            breakdown: [b.compute, b.exposed_communication, b.host_bound, b.bubble + b.waiting].map(share),
            bound: answer.bound().to_owned(),
            assumed: self.assumptions.len(),
        }
    }
}

/// A scenario's keys without what was measured.
fn configuration(text: &str) -> toml::Table {
    without(text.parse().unwrap_or_default(), "measured")
}

fn without(mut keys: toml::Table, key: &str) -> toml::Table {
    keys.remove(key);
    keys
}
