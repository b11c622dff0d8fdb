//! Kernels that memory bounds: one measured curve per chip, and each family's share of it.
//!
//! The curve is the time of a streaming pointwise kernel over the bytes it reads and writes. A family that reaches a
//! `share` of the stream's bandwidth takes as long as the stream takes for `bytes / share`; so the launch floor is
//! common and the time is monotone. Copies over the host link take `latency + bytes / bandwidth`.

use serde::Deserialize;

use super::basis::{Basis, Cost, Evidence};
use super::curve::Curve;
use super::sound;
use crate::program::MemoryKind;
use crate::units::{Bandwidth, Bytes, Time};

/// The section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    stream: WrittenStream,
    elementwise: Family,
    strided: Option<Family>,
    norm: Family,
    norm_backward: Family,
    rms_norm: Option<Family>,
    rms_norm_backward: Option<Family>,
    layer_norm: Option<Family>,
    layer_norm_backward: Option<Family>,
    apex_norm: Option<Family>,
    apex_norm_backward: Option<Family>,
    persistent_norm: Option<Family>,
    persistent_norm_backward: Option<Family>,
    softmax: Family,
    log_softmax: Option<Family>,
    log_softmax_backward: Option<Family>,
    compiled_log_softmax: Option<Family>,
    compiled_log_softmax_backward: Option<Family>,
    gather: Family,
    scatter: Family,
    foreach: Family,
    fused_optimizer: Option<Family>,
    fused_optimizer_16bit: Option<Family>,
    chunk_cat: Option<Family>,
    copy: Family,
    complex: Family,
    widening_cast: Option<Family>,
    chunk_scan: Option<Family>,
    chunk_state: Option<Family>,
    gated_norm_backward: Option<Family>,
    host: WrittenHost,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenStream {
    evidence: Evidence,
    bytes: Vec<u64>,
    us: Vec<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenHost {
    evidence: Evidence,
    latency: Time,
    to_device: Bandwidth,
    to_host: Bandwidth,
}

/// A family's share of the stream's bandwidth.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Share of the stream's bandwidth.
    pub share: f64,
    /// What it rests on.
    pub evidence: Evidence,
}

impl Family {
    /// The same for kernels that it was not measured of.
    fn carried_over(&self) -> Family {
        let mut family = self.clone();
        family.evidence.basis = family.evidence.basis.and(Basis::Extrapolated);
        family.evidence.p90 = libm::hypot(family.evidence.p90, 0.3);
        family
    }
}

/// Memory-bound kernels on one chip.
#[derive(Clone, Debug)]
pub struct Memory {
    stream: Curve,
    /// By kind, in the order of declaration.
    families: Vec<Family>,
    host: WrittenHost,
}

impl Memory {
    /// The same on a chip of so many times the bandwidth.
    pub(super) fn carried_over(&mut self, bandwidth: f64, error: f64) {
        self.stream = self.stream.scaled(bandwidth);
        self.families.iter_mut().for_each(|family| family.evidence.carried_over(error));
    }

    /// Understands a section for a chip with the given bandwidth.
    pub(super) fn new(w: Written, bandwidth: Bandwidth) -> Result<Memory, String> {
        if w.stream.bytes.len() != w.stream.us.len() {
            return Err(format!(
                "memory.stream has {} sizes but {} times: expected as many of both",
                w.stream.bytes.len(),
                w.stream.us.len()
            ));
        }
        let points: Vec<(f64, f64)> =
            w.stream.bytes.iter().zip(&w.stream.us).map(|(&bytes, &us)| (bytes as f64, us * 1e-6)).collect();
        for (bytes, seconds) in &points {
            sound::not_stuck(*seconds, bytes / bandwidth.0)
                .map_err(|why| format!("memory.stream: {bytes} B in {} us{why}", sound::figure(seconds * 1e6)))?;
        }
        let stream = Curve::new(&points).map_err(|why| format!("memory.stream: {why}"))?;
        // Whose kernel nobody measured here is as others are, Apex's as PyTorch's LayerNorm: an extrapolation.
        let or = |own: Option<Family>, other: &Family| own.unwrap_or_else(|| other.carried_over());
        let (rms_norm, rms_norm_backward) = (or(w.rms_norm, &w.norm), or(w.rms_norm_backward, &w.norm_backward));
        let layer_norm = or(w.layer_norm, &w.norm);
        let layer_norm_backward = or(w.layer_norm_backward, &w.norm_backward);
        let (apex, persistent) = (or(w.apex_norm, &layer_norm), or(w.persistent_norm, &layer_norm));
        let apex_backward = or(w.apex_norm_backward, &layer_norm_backward);
        let persistent_backward = or(w.persistent_norm_backward, &layer_norm_backward);
        let (log_softmax, log_softmax_backward) =
            (or(w.log_softmax, &w.softmax), or(w.log_softmax_backward, &w.softmax));
        let compiled_log_softmax = or(w.compiled_log_softmax, &w.softmax);
        let compiled_log_softmax_backward = or(w.compiled_log_softmax_backward, &w.softmax);
        let (fused_optimizer, fused_optimizer_16bit) =
            (or(w.fused_optimizer, &w.foreach), or(w.fused_optimizer_16bit, &w.foreach));
        let (chunk_cat, cast) = (or(w.chunk_cat, &w.foreach), or(w.widening_cast, &w.elementwise));
        let strided = or(w.strided, &w.elementwise);
        let (chunk_scan, chunk_state) = (or(w.chunk_scan, &w.norm), or(w.chunk_state, &w.norm));
        let gated_norm_backward = or(w.gated_norm_backward, &w.norm_backward);
        let family = |kind: MemoryKind| match kind {
            MemoryKind::Elementwise => &w.elementwise,
            MemoryKind::Strided => &strided,
            MemoryKind::Norm => &w.norm,
            MemoryKind::NormBackward => &w.norm_backward,
            MemoryKind::RmsNorm => &rms_norm,
            MemoryKind::RmsNormBackward => &rms_norm_backward,
            MemoryKind::LayerNorm => &layer_norm,
            MemoryKind::LayerNormBackward => &layer_norm_backward,
            MemoryKind::ApexNorm => &apex,
            MemoryKind::ApexNormBackward => &apex_backward,
            MemoryKind::PersistentNorm => &persistent,
            MemoryKind::PersistentNormBackward => &persistent_backward,
            MemoryKind::Softmax => &w.softmax,
            MemoryKind::LogSoftmax => &log_softmax,
            MemoryKind::LogSoftmaxBackward => &log_softmax_backward,
            MemoryKind::CompiledLogSoftmax => &compiled_log_softmax,
            MemoryKind::CompiledLogSoftmaxBackward => &compiled_log_softmax_backward,
            MemoryKind::Gather => &w.gather,
            MemoryKind::Scatter => &w.scatter,
            MemoryKind::Foreach => &w.foreach,
            MemoryKind::FusedOptimizer => &fused_optimizer,
            MemoryKind::FusedOptimizer16 => &fused_optimizer_16bit,
            MemoryKind::ChunkCat => &chunk_cat,
            MemoryKind::Copy => &w.copy,
            MemoryKind::Complex => &w.complex,
            MemoryKind::Cast => &cast,
            MemoryKind::ChunkScan => &chunk_scan,
            MemoryKind::ChunkState => &chunk_state,
            MemoryKind::GatedNormBackward => &gated_norm_backward,
        };
        let mut families: Vec<Family> = MemoryKind::ALL.iter().map(|&kind| family(kind).clone()).collect();
        if let Some(bad) = families.iter().find(|f| !(0.01..=2.0).contains(&f.share)) {
            return Err(format!("a memory family has the share {}: expected 0.01 to 2 of the stream", bad.share));
        }
        if !(w.host.to_device.0 > 0.0 && w.host.to_host.0 > 0.0) {
            return Err("memory.host has a bandwidth of zero: expected such as \"52 GB/s\"".to_owned());
        }
        // The stream's own error comes on top of a family's.
        for family in &mut families {
            family.evidence.basis = family.evidence.basis.and(w.stream.evidence.basis);
            family.evidence.p90 = libm::hypot(family.evidence.p90, w.stream.evidence.p90);
        }
        Ok(Memory { stream, families, host: w.host })
    }

    /// Time of a kernel that moves `bytes` in all.
    pub fn cost(&self, kind: MemoryKind, bytes: Bytes) -> Cost {
        if bytes.0 == 0 {
            return Cost::NOTHING;
        }
        let family = &self.families[kind as usize];
        let size = bytes.0 as f64 / family.share;
        let seconds = self.stream.seconds(size);
        if self.stream.covers(size) { family.evidence.cost(seconds) } else { family.evidence.beyond(seconds) }
    }

    /// Time of a copy between host and device.
    pub fn host_copy(&self, bytes: Bytes, to_host: bool) -> Cost {
        if bytes.0 == 0 {
            return Cost::NOTHING;
        }
        let rate = if to_host { self.host.to_host } else { self.host.to_device };
        self.host.evidence.cost(self.host.latency.seconds() + bytes.0 as f64 / rate.0)
    }
}
