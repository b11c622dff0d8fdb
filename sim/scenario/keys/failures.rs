//! What `run --for` reads of a training that is interrupted: `[failures]` and `[checkpoint]`.

use super::readers::ALL;
use super::row::Kind::{Count, Flag, Other, Quantity, Text};
use super::row::{Group, Key, Table};

/// `[failures]`
pub(super) const FAILURES_KEYS: Table = Table {
    name: "failures",
    help: "What interrupts the training, and what it takes to go on. Only `windtunnel run --for` reads it.",
    group: Group::Rest,
    owner: None,
    instead: &[],
    keys: &[
        Key::new(
            "rates",
            Text,
            ALL,
            "How often components interrupt a job: `llama3-h100`, `opt-a100`, `rsc1-a100`, `rsc2-a100`, `tpu-v4`, or the path of a \
             file.",
        ),
        Key::new(
            "mean_time_between",
            Quantity("3 h"),
            ALL,
            "Mean time between unexpected interruptions of the whole job, in place of `rates`.",
        ),
        Key::new("planned", Flag, ALL, "Whether the job is also interrupted by plan, as the study of `rates` was."),
        Key::new("detection", Quantity("10 min"), ALL, "From an interruption until it is known which node has failed."),
        Key::new("restart", Quantity("5 min"), ALL, "From there until all processes are up and connected."),
        Key::new("recompile", Quantity("2 min"), ALL, "What compiling takes after each restart."),
        Key::new(
            "spares",
            Other("\"enough\", or a number of nodes"),
            ALL,
            "Nodes that wait to take the place of a node that fails.",
        ),
        Key::new("replacement", Quantity("5 min"), ALL, "How long it takes until a spare node is part of the job."),
        Key::new(
            "repair",
            Quantity("2 d"),
            ALL,
            "How long a node is away that has failed. A number of spares needs it.",
        ),
        Key::new(
            "elastic",
            Flag,
            ALL,
            "Whether the job goes on with fewer replicas of the model where no spare is left.",
        ),
        Key::new("draws", Count(Some((1, 100_000))), ALL, "How many trainings are drawn."),
        Key::new("seed", Count(Some((0, i64::MAX))), ALL, "Which trainings are drawn: another seed draws others."),
    ],
};

/// `[checkpoint]`
pub(super) const CHECKPOINT_KEYS: Table = Table {
    name: "checkpoint",
    help: "How checkpoints are saved and loaded. Only `windtunnel run --for` reads it.",
    group: Group::Rest,
    owner: None,
    instead: &[],
    keys: &[
        Key::new(
            "every",
            Other("\"best\", a time, or a number of steps"),
            ALL,
            "How often a checkpoint is saved. `best` looks for the interval with the best goodput.",
        ),
        Key::new(
            "storage_bandwidth",
            Quantity("200 GB/s"),
            ALL,
            "What the storage takes from the whole job while it saves a checkpoint.",
        ),
        Key::new(
            "load_bandwidth",
            Quantity("200 GB/s"),
            ALL,
            "What the storage gives to the whole job while it loads a checkpoint.",
        ),
        Key::new(
            "asynchronous",
            Flag,
            ALL,
            "Whether training goes on once the state is copied to host memory. The checkpoint counts once it is written.",
        ),
    ],
};
