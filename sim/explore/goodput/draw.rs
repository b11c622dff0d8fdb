//! One training, event by event: it starts, trains and saves, is interrupted, and starts again from what was saved.
//!
//! Interruptions strike while the job starts or trains, and not while it is down already.

use super::arrivals::Arrivals;
use super::cycle::Cycle;
use super::job::{End, Job};
use super::nodes::Nodes;

/// Where a kind of time is counted.
type Account = fn(&mut Spent) -> &mut f64;

/// Where wall-clock time went \[s\]. The parts add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Steps that count.
    pub useful: f64,
    /// Steps that were lost and trained again.
    pub lost: f64,
    /// Waiting for checkpoints.
    pub saving: f64,
    /// Until it was known what had failed.
    pub detection: f64,
    /// Waiting for nodes: spares that join, and repairs.
    pub nodes: f64,
    /// Starting up, connecting and compiling.
    pub starting: f64,
    /// Loading checkpoints.
    pub loading: f64,
    /// What steps took longer with fewer replicas.
    pub slower: f64,
}

impl Spent {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.useful + self.lost + self.saving + self.detection + self.nodes + self.starting + self.loading + self.slower
    }
}

/// What became of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Where its time went.
    pub spent: Spent,
    /// Interruptions by cause.
    pub interruptions: Vec<u64>,
}

impl Outcome {
    /// The share of wall-clock time that counts.
    pub fn goodput(&self) -> f64 {
        let wall = self.spent.total();
        if wall > 0.0 { self.spent.useful / wall } else { 1.0 }
    }
}

/// How a phase ended.
enum Ended {
    /// As it should.
    Well,
    /// By a cause.
    By(usize),
    /// A node came back, and the job stops to take it in.
    NodeBack,
    /// With the training.
    Over,
}

struct Run<'j> {
    job: &'j Job,
    arrivals: Arrivals<'j>,
    nodes: Nodes,
    spent: Spent,
    interruptions: Vec<u64>,
    /// Wall-clock time \[s\].
    wall: f64,
    /// Time in which an interruption could strike \[s\].
    up: f64,
    /// Trained and saved, at full speed \[s\].
    saved: f64,
}

/// Draws a training.
pub fn draw(job: &Job, training: u64, seed: u64) -> Outcome {
    let mut run = Run {
        job,
        arrivals: Arrivals::new(&job.causes, training, seed),
        nodes: Nodes::new(job),
        spent: Spent::default(),
        interruptions: vec![0; job.causes.len()],
        wall: 0.0,
        up: 0.0,
        saved: 0.0,
    };
    loop {
        let ended = match run.start() {
            Ended::Well => run.train(),
            other => other,
        };
        let goes_on = match ended {
            Ended::By(cause) => run.interrupted(cause),
            Ended::NodeBack | Ended::Well => true,
            Ended::Over => false,
        };
        if !goes_on {
            return Outcome { spent: run.spent, interruptions: run.interruptions };
        }
    }
}

impl Run<'_> {
    /// Wall-clock time that is left \[s\].
    fn left(&self) -> f64 {
        match self.job.end {
            End::Wall(wall) => (wall - self.wall).max(0.0),
            End::Work(_) => f64::INFINITY,
        }
    }

    /// Time passes while the job is down; false where the training is over before.
    fn wait(&mut self, time: f64, account: fn(&mut Spent) -> &mut f64) -> bool {
        let passed = time.min(self.left());
        self.wall += passed;
        *account(&mut self.spent) += passed;
        passed == time
    }

    /// Until the next interruption while the job is up, and its cause \[s\].
    fn strikes(&self) -> (usize, f64) {
        self.arrivals.next().map_or((0, f64::INFINITY), |(cause, at)| (cause, (at - self.up).max(0.0)))
    }

    /// Starts up and loads what was saved.
    fn start(&mut self) -> Ended {
        self.nodes.come_back(self.wall);
        let load = if self.saved > 0.0 { self.job.load } else { 0.0 };
        let phases: [(f64, Account); 2] =
            [(self.job.restart, |spent| &mut spent.starting), (load, |spent| &mut spent.loading)];
        for (time, account) in phases {
            let (cause, strikes) = self.strikes();
            let passed = time.min(strikes);
            self.up += passed;
            if !self.wait(passed, account) {
                return Ended::Over;
            }
            if strikes < time {
                return Ended::By(cause);
            }
        }
        Ended::Well
    }

    /// Trains until something happens.
    fn train(&mut self) -> Ended {
        let speed = self.nodes.speed();
        let cycle = Cycle::new(self.job.interval, speed, self.job.save);
        let work = match self.job.end {
            End::Work(work) => (work - self.saved).max(0.0),
            End::Wall(_) => f64::INFINITY,
        };
        let done = if work.is_finite() { cycle.until(work) } else { f64::INFINITY };
        let back = self.nodes.next_back().map_or(f64::INFINITY, |at| (at - self.wall).max(0.0));
        let (cause, strikes) = self.strikes();
        let (wall, first) = (self.left(), done.min(strikes).min(back));
        let passed = first.min(wall);
        self.wall += passed;
        self.up += passed;
        let reached = cycle.at(passed, work);
        let (kept, ended) = match () {
            () if wall < first => (reached.trained, Ended::Over),
            () if done <= strikes && done <= back => (work, Ended::Over),
            // What people plan, and a node that comes back, find a checkpoint saved.
            () if back <= strikes => (reached.trained, Ended::NodeBack),
            () if self.job.causes[cause].planned => (reached.trained, Ended::By(cause)),
            () => (reached.saved, Ended::By(cause)),
        };
        let trained = if matches!(ended, Ended::Over) { kept } else { reached.trained };
        let spent = &mut self.spent;
        spent.useful += kept;
        spent.slower += kept / speed - kept;
        spent.lost += (trained - kept) / speed;
        spent.saving += (passed - trained / speed).max(0.0);
        self.saved += kept;
        let saves = match ended {
            Ended::NodeBack => true,
            Ended::By(cause) => self.job.causes[cause].planned,
            Ended::Well | Ended::Over => false,
        };
        if saves && !self.wait(self.job.save.whole(), |spent| &mut spent.saving) {
            return Ended::Over;
        }
        ended
    }

    /// What follows an interruption, until the job may start again; false where the training is over before.
    fn interrupted(&mut self, cause: usize) -> bool {
        let struck = self.wall;
        self.interruptions[cause] += 1;
        self.arrivals.advance(cause);
        let cause = &self.job.causes[cause];
        if cause.planned {
            return true;
        }
        let detected = self.wait(self.job.detection, |spent| &mut spent.detection);
        if !detected || !cause.takes_node {
            return detected;
        }
        let wait = self.nodes.lose(struck, self.wall);
        self.wait(wait, |spent| &mut spent.nodes)
    }
}
