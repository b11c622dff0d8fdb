//! What this project claims about the world, held against things it did not write.

#![allow(clippy::unwrap_used, missing_docs)]

mod bad_input;
mod bad_input_megatron;
mod calibrate;
mod ceiling;
mod closed_form;
mod collectives;
mod command;
mod compare;
mod context;
mod deepspeed;
mod determinism;
mod engine_linears;
mod experts;
mod folding;
mod fp8;
mod frameworks;
mod grouped;
mod issued;
mod make;
mod mapping;
mod memory;
mod oracle;
mod pipeline;
mod profiles;
mod readme;
mod receipt_maker;
mod receipts;
mod schedule;
mod spmd;
mod tidy;
mod titan;
mod vocabulary;
mod zero;
mod zero_bubble;
