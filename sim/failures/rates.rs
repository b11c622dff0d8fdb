//! Rates of interruptions: of each component, for each chip or for each job.

/// Seconds of a day.
pub(super) const DAY: f64 = 86_400.0;

/// The rates of one study.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// The name that scenarios write.
    pub name: String,
    /// What was observed, in a line.
    pub description: String,
    /// What interrupts a job, in the order of the file.
    pub components: Vec<Component>,
    /// Where the numbers come from, each source once.
    pub sources: Vec<String>,
}

/// One kind of interruption.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    /// Its name in reports.
    pub name: String,
    /// How often it happens.
    pub rate: Rate,
    /// Whether the job loses a node until that is repaired.
    pub takes_node: bool,
}

/// How often something happens \[1/s\].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// On each chip, without warning.
    EachChip(f64),
    /// To each job, by plan: the job saves a checkpoint before it stops.
    Planned(f64),
}

impl Rate {
    /// The rate for a job of so many chips \[1/s\].
    pub fn of_job(self, chips: u32) -> f64 {
        match self {
            Rate::EachChip(rate) => rate * f64::from(chips),
            Rate::Planned(rate) => rate,
        }
    }
}

impl Rates {
    /// One kind of interruption with so many seconds between two of them, whatever the size of the job.
    pub fn every(seconds: f64, chips: u32) -> Rates {
        let rate = Rate::EachChip(1.0 / seconds / f64::from(chips.max(1)));
        let component = Component { name: "interruption".to_owned(), rate, takes_node: true };
        let name = "the scenario's own".to_owned();
        Rates { name, description: String::new(), components: vec![component], sources: vec![] }
    }
}
