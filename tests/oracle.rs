//! What PyTorch itself computes (`tests/oracles`), case by case. `WINDTUNNEL_ORACLES` names another folder to read.

mod architectures;
mod cases;
mod compile;
mod deepspeed;
mod deepspeed_memory;
mod deepspeed_zero;
mod float8;
mod flops;
mod fsdp1;
mod fsdp2_pipeline;
mod megatron;
mod megatron_case;
mod megatron_experts;
mod megatron_fsdp;
mod megatron_graphs;
mod megatron_step;
mod memory;
mod ring_attention;
mod schedules;
mod single;
mod styles;
mod torchtitan_experts;
mod vocabulary;
mod vocabulary_head;
mod xla;
mod xla_windows;
