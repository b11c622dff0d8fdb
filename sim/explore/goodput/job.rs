//! A training as the simulation of its interruptions sees it: times in seconds, and rates.

/// How long a training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// When so much has been trained \[s of steps at full speed\].
    Work(f64),
    /// When so much time has passed \[s\].
    Wall(f64),
}

/// One kind of interruption of the whole job.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Its name: with the seed it names the stream that it is drawn from.
    pub name: String,
    /// How often it happens while the job is up \[1/s\].
    pub rate: f64,
    /// Whether the job loses a node.
    pub takes_node: bool,
    /// Whether the job saves a checkpoint before it stops.
    pub planned: bool,
}

/// What saving a checkpoint takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Save {
    /// Training stands still for so long \[s\].
    pub blocked: f64,
    /// From there until the checkpoint counts \[s\]; 0 where training waits for it.
    pub written_after: f64,
}

impl Save {
    /// Until a checkpoint counts that nothing overlaps with \[s\].
    pub fn whole(self) -> f64 {
        self.blocked + self.written_after
    }
}

/// How the job goes on without a spare node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// Replicas of the model.
    pub copies: u64,
    /// Replicas that a node takes with it.
    pub lost: u64,
}

/// A training with everything that may happen to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// How long it is.
    pub end: End,
    /// Training between two checkpoints, at full speed \[s\].
    pub interval: f64,
    /// What saving takes.
    pub save: Save,
    /// What loading a checkpoint takes \[s\].
    pub load: f64,
    /// Until processes are up, connected and compiled \[s\].
    pub restart: f64,
    /// From an interruption until it is known what has failed \[s\].
    pub detection: f64,
    /// Until a spare node is part of the job \[s\].
    pub replacement: f64,
    /// How long a node is away \[s\].
    pub repair: f64,
    /// Nodes that wait at first; none: there always is one.
    pub spares: Option<u64>,
    /// Whether the job goes on with fewer replicas.
    pub elastic: Option<Elastic>,
    /// What interrupts it.
    pub causes: Vec<Cause>,
}

impl Job {
    /// Unexpected interruptions of the job while it is up \[1/s\].
    pub fn unexpected(&self) -> f64 {
        self.causes.iter().filter(|cause| !cause.planned).map(|cause| cause.rate).sum()
    }

    /// Those that people plan \[1/s\].
    pub fn planned(&self) -> f64 {
        self.causes.iter().filter(|cause| cause.planned).map(|cause| cause.rate).sum()
    }

    /// Until training goes on after a restart \[s\].
    pub fn up_again(&self) -> f64 {
        self.restart + self.load
    }

    /// The same job with another interval between checkpoints.
    pub fn every(&self, interval: f64) -> Job {
        Job { interval, ..self.clone() }
    }
}
