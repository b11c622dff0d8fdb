//! The ranks: rank 0 on the device that is measured, the others on this machine's other GPUs, all in this process.

use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::api::{Communicators, Nccl};
use super::kind::{Kind, PERIOD, WIDTH, sent};
use crate::cuda::device::{Buffer, Device};
use crate::cuda::error::CudaError;
use crate::cuda::sweep::Skip;

/// Numbers are made on the host and copied on \[elements\].
const PATTERN: u64 = 512 * PERIOD;

/// Elements at either end of a result that are looked at.
const LOOK: u64 = 256 * 1024;

/// Ranks 1 and up, and NCCL's communicators of all.
pub struct Ranks {
    // In the order in which they are dropped: communicators need their devices.
    communicators: Communicators,
    others: Vec<Device>,
    first: Arc<CudaStream>,
}

impl Ranks {
    /// `count` ranks, of which `first` is rank 0.
    pub fn open(first: &Device, count: u64) -> Result<Self, CudaError> {
        let here = first.context().ordinal();
        let rest = (0..).filter(|ordinal| *ordinal != here).take(count as usize - 1);
        let ordinals: Vec<usize> = std::iter::once(here).chain(rest).collect();
        let others: Result<Vec<Device>, CudaError> =
            ordinals[1..].iter().map(|ordinal| Device::open(*ordinal)).collect();
        let communicators = Communicators::new(&Nccl::load()?, &ordinals);
        first.context().bind_to_thread()?;
        Ok(Self { communicators: communicators?, others: others?, first: first.stream().clone() })
    }

    /// Whether rank 0 is this device.
    pub fn are_of(&self, first: &Device) -> bool {
        Arc::ptr_eq(&self.first, first.stream())
    }

    fn device<'a>(&'a self, first: &'a Device, rank: usize) -> &'a Device {
        if rank == 0 { first } else { &self.others[rank - 1] }
    }
}

/// A collective with its buffers.
pub struct Ready<'d> {
    ranks: Rc<Ranks>,
    first: &'d Device,
    kind: Kind,
    count: u64,
    /// Where each rank sends from and receives at, by turn.
    turns: Vec<Vec<(u64, u64)>>,
    buffers: Vec<Buffer>,
}

impl<'d> Ready<'d> {
    /// Allocates and fills the buffers, `copies` of them that take turns.
    pub fn new(
        ranks: Rc<Ranks>,
        first: &'d Device,
        kind: Kind,
        bytes: u64,
        in_place: bool,
        copies: usize,
    ) -> Result<Self, CudaError> {
        let n = ranks.others.len() as u64 + 1;
        let (sends, receives) = (kind.sends(bytes, n) * WIDTH, kind.receives(bytes, n) * WIDTH);
        let each = |bytes: u64| bytes.next_multiple_of(512);
        let mut ready =
            Self { ranks, first, kind, count: kind.count(bytes, n), turns: vec![vec![]; copies], buffers: vec![] };
        for rank in 0..n {
            let device = ready.ranks.device(first, rank as usize);
            device.context().bind_to_thread()?;
            let one = if in_place { each(sends.max(receives)) } else { each(sends) + each(receives) };
            let buffer = device.alloc(one * copies as u64)?;
            let pattern = pattern(device, rank, n, PATTERN.min(sends / WIDTH))?;
            for (turn, ends) in ready.turns.iter_mut().enumerate() {
                let start = buffer.pointer() + one * turn as u64;
                let part = rank * ready.count * WIDTH;
                let (from, to) = match (in_place, kind) {
                    (false, _) => (start, start + each(sends)),
                    (true, Kind::AllGather) => (start + part, start),
                    (true, Kind::ReduceScatter) => (start, start + part),
                    (true, _) => (start, start),
                };
                fill(device, from, sends, &pattern)?;
                ends.push((from, to));
            }
            device.synchronize()?;
            ready.buffers.push(buffer);
        }
        first.context().bind_to_thread()?;
        Ok(ready)
    }

    /// Issues the collective once.
    pub fn issue(&self, turn: usize) -> Result<(), CudaError> {
        let n = self.ranks.others.len() + 1;
        let streams: Vec<&CudaStream> =
            (0..n).map(|rank| self.ranks.device(self.first, rank).stream().as_ref()).collect();
        self.ranks.communicators.issue(self.kind, self.count, &self.turns[turn % self.turns.len()], &streams)
    }

    /// Runs it once and looks at both ends of what every rank received.
    pub fn check(&self, bytes: u64) -> Result<(), Skip> {
        self.issue(0)?;
        let n = self.ranks.others.len() as u64 + 1;
        let receives = self.kind.receives(bytes, n);
        let (mut wrong, mut looked) = (0u64, 0u64);
        for rank in 0..n {
            let device = self.ranks.device(self.first, rank as usize);
            device.context().bind_to_thread().map_err(CudaError::from)?;
            device.synchronize()?;
            let to = self.turns[0][rank as usize].1;
            let near = (0, receives.min(LOOK));
            let far = (receives.saturating_sub(LOOK).max(near.1), receives);
            for (start, end) in [near, far] {
                let got = read(device, to + start * WIDTH, end - start)?;
                looked += end - start;
                let wanted = (start..end).map(|at| bf16(self.kind.received(rank, n, self.count, at)));
                wrong += got.iter().zip(wanted).filter(|(got, wanted)| **got != *wanted).count() as u64;
            }
        }
        self.first.context().bind_to_thread().map_err(CudaError::from)?;
        verdict(self.kind, wrong, looked)
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        // Freeing memory makes its device the current one; whoever comes next expects rank 0's.
        self.buffers.clear();
        let bound = self.first.context().bind_to_thread();
        self.first.context().record_err(bound);
    }
}

/// A refusal if anything is wrong.
fn verdict(kind: Kind, wrong: u64, looked: u64) -> Result<(), Skip> {
    if wrong == 0 {
        return Ok(());
    }
    let name = kind.name();
    Err(Skip::wrong(format!(
        "NCCL's {name} is wrong: {wrong} of {looked} elements differ from what was sent. It is not timed; look at the \
         links with `nvidia-smi nvlink --errorcounters`"
    )))
}

/// A small whole number as bf16.
fn bf16(value: u16) -> u16 {
    (f32::from(value).to_bits() >> 16) as u16
}

/// The beginning of what a rank sends.
#[allow(unsafe_code)]
fn pattern(device: &Device, rank: u64, ranks: u64, count: u64) -> Result<Buffer, CudaError> {
    let numbers: Vec<u16> = (0..count).map(|at| bf16(sent(rank, ranks, at))).collect();
    let buffer = device.alloc(count * WIDTH)?;
    // SAFETY: the buffer is as long as the vector.
    unsafe { cudarc::driver::result::memcpy_htod_sync(buffer.pointer(), &numbers) }?;
    Ok(buffer)
}

/// Repeats a pattern over `bytes` bytes.
fn fill(device: &Device, to: u64, bytes: u64, pattern: &Buffer) -> Result<(), CudaError> {
    let mut done = bytes.min(pattern.bytes());
    device.copy(to, pattern.pointer(), done)?;
    while done < bytes {
        // What is there is whole periods; each copy doubles it.
        let part = done.min(bytes - done);
        device.copy(to + done, to, part)?;
        done += part;
    }
    Ok(())
}

/// Elements, read back.
#[allow(unsafe_code)]
fn read(device: &Device, from: u64, count: u64) -> Result<Vec<u16>, CudaError> {
    let mut numbers = vec![0u16; count as usize];
    if count > 0 {
        device.synchronize()?;
        // SAFETY: the caller's buffer holds as many elements as the vector.
        unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut numbers, from) }?;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_element_is_a_refusal_that_counts_it() {
        assert!(verdict(Kind::AllReduce, 0, 512).is_ok());
        let refusal = verdict(Kind::AllReduce, 1, 512).expect_err("one is wrong");
        assert!(refusal.wrong);
        assert!(refusal.why.contains("all_reduce is wrong: 1 of 512"), "{}", refusal.why);
    }

    #[test]
    fn whole_numbers_are_exact_in_bf16() {
        assert_eq!(bf16(0), 0);
        assert_eq!(bf16(1), 0x3F80);
        assert!((0..=256u16).all(|value| f32::from_bits(u32::from(bf16(value)) << 16) == f32::from(value)));
    }

    #[test]
    fn patterns_are_whole_periods() {
        assert_eq!(PATTERN % PERIOD, 0);
    }
}
