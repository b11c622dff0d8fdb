//! One entry of a rank's list, eight bytes of it.

use std::fmt;

use strum::VariantArray;

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray, serde::Serialize)]
pub enum Kind {
    /// Forward of one micro-batch.
    Forward,
    /// Backward of one micro-batch: gradients of inputs and of weights.
    Backward,
    /// The half of a backward that the previous stage waits for: gradients of inputs.
    Input,
    /// The half of a backward that nobody waits for: gradients of weights.
    Weight,
    /// Gathers a stage's sharded parameters.
    Unshard,
    /// Lets go of a stage's gathered parameters.
    Reshard,
    /// Sends a forward's result to the next stage.
    SendForward,
    /// Receives a forward's input from the previous stage.
    RecvForward,
    /// Sends the gradient of a stage's input to the previous stage.
    SendBackward,
    /// Receives the gradient of a stage's result from the next stage.
    RecvBackward,
    /// Waits until a `SendForward` is done, and lets go of what it sent.
    WaitSendForward,
    /// Waits until a `SendBackward` is done, and lets go of what it sent.
    WaitSendBackward,
    /// Starts the reduction of a stage's gradients over its replicas.
    ReduceGrad,
    /// Waits for that reduction.
    WaitReduceGrad,
    /// Looks a micro-batch's words up in the rank's part of the embedding.
    Embed,
    /// Starts the sum over ranks of what they have looked up.
    SumEmbed,
    /// Waits for that sum.
    WaitSumEmbed,
    /// Sends the gradient of the looked up words from the first rank to all.
    ShareGradient,
    /// Backward of the rank's part of the embedding.
    EmbedBackward,
    /// Sends the last stage's result to all ranks, and with it the gradient of the loss of the micro-batch before.
    ShareHidden,
    /// The rank's part of the head: backward of the micro-batch before, forward of this one.
    Output,
    /// Starts the reductions over ranks of what that has made.
    SumOutput,
    /// The loss, on the last rank.
    Loss,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Kind] = Kind::VARIANTS;

    /// PyTorch's word; for the parts of a vocabulary that ranks share, one of ours.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Forward => "F",
            Kind::Backward => "B",
            Kind::Input => "I",
            Kind::Weight => "W",
            Kind::Unshard => "UNSHARD",
            Kind::Reshard => "RESHARD",
            Kind::SendForward => "SEND_F",
            Kind::RecvForward => "RECV_F",
            Kind::SendBackward => "SEND_B",
            Kind::RecvBackward => "RECV_B",
            Kind::WaitSendForward => "WAIT_SEND_F",
            Kind::WaitSendBackward => "WAIT_SEND_B",
            Kind::ReduceGrad => "REDUCE_GRAD",
            Kind::WaitReduceGrad => "WAIT_REDUCE_GRAD",
            Kind::Embed => "E",
            Kind::SumEmbed => "SUM_E",
            Kind::WaitSumEmbed => "WAIT_SUM_E",
            Kind::ShareGradient => "CAST_B",
            Kind::EmbedBackward => "D",
            Kind::ShareHidden => "CAST_F",
            Kind::Output => "S",
            Kind::SumOutput => "SUM_S",
            Kind::Loss => "L",
        }
    }

    /// Whether it computes a stage's blocks.
    pub fn computes(self) -> bool {
        matches!(self, Kind::Forward | Kind::Backward | Kind::Input | Kind::Weight)
    }

    /// Whether it sends to or receives from another stage.
    pub fn is_message(self) -> bool {
        matches!(self, Kind::SendForward | Kind::RecvForward | Kind::SendBackward | Kind::RecvBackward)
    }

    /// Whether it belongs to a vocabulary that ranks share.
    pub fn of_vocabulary(self) -> bool {
        self >= Kind::Embed
    }

    /// Whether it yields the gradient that the previous stage waits for.
    pub fn is_backward(self) -> bool {
        matches!(self, Kind::Backward | Kind::Input)
    }

    /// Whether it concerns a whole stage rather than one micro-batch of it.
    pub fn of_stage(self) -> bool {
        matches!(self, Kind::Unshard | Kind::Reshard | Kind::ReduceGrad | Kind::WaitReduceGrad)
    }
}

/// One entry of a rank's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Action {
    /// Which micro-batch; 0 where the kind concerns a whole stage.
    pub microbatch: u32,
    /// Which stage of the model, over all ranks.
    pub stage: u16,
    /// What is done.
    pub kind: Kind,
    /// Issued as one with the next entry: computations that overlap, or sends and receives of one batch.
    pub joined: bool,
}

impl Action {
    /// An action on one micro-batch.
    pub fn new(stage: u16, kind: Kind, microbatch: u32) -> Action {
        Action { microbatch, stage, kind, joined: false }
    }

    /// An action on a whole stage.
    pub fn of_stage(stage: u16, kind: Kind) -> Action {
        Action::new(stage, kind, 0)
    }

    /// The same, issued as one with the entry after it.
    pub fn join(self) -> Action {
        Action { joined: true, ..self }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage, self.kind.word())?;
        if self.kind.of_stage() { Ok(()) } else { write!(f, "{}", self.microbatch) }
    }
}
