//! Collectives of a training step by XLA's TPU compiler (`oracles/xla_steps.json`): kind, number and bytes.

use std::collections::BTreeMap;

use windtunnel::program::{Collective, Instr};

use super::xla_case::{LIMIT, Step, steps};

/// What a collective is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A weight is gathered.
    Gather,
    /// A weight's gradient is reduced.
    Reduce,
    /// Parts of a sum over the tensor axis.
    Sum,
    /// Rows of the embedding and their columns change places, or tokens are sent to experts and back.
    Swap,
    /// A part of something is sent to a neighbour.
    Permute,
    /// A micro-batch is sent to a neighbour of a pipeline.
    Pass,
}

/// Bytes and number of each kind's collectives, by the bytes of each; below a megabyte only norms' gradients, the loss and
/// words' numbers are sent, which are left out on both sides.
type Exchanged = BTreeMap<(What, u64), u64>;

const LEAST: u64 = 1 << 20;

fn ours(step: &Step) -> Exchanged {
    let mut all = Exchanged::new();
    let program = step.case.scenario().job.compile().classes.remove(0);
    for instr in &program.step {
        if let Instr::Collective { comm, .. } = instr {
            let comm = program.comm(*comm);
            let what = match comm.kind {
                _ if program.groups[comm.group.0 as usize].name == "tensor" => What::Sum,
                Collective::AllToAll => What::Swap,
                Collective::SendRecv => What::Pass,
                Collective::AllGather => What::Gather,
                _ => What::Reduce,
            };
            *all.entry((what, comm.bytes.0)).or_default() += 1;
        }
    }
    all.retain(|(_, bytes), _| *bytes >= LEAST);
    all
}

/// The compiler's, and how often a shard of each weight is sent to a neighbour: an exchange in windows is a chain of those.
fn theirs(step: &Step) -> (Exchanged, BTreeMap<u64, u64>) {
    let (mut all, mut permutes) = (Exchanged::new(), BTreeMap::new());
    let (shards, tensor) = (step.case.shards(), step.case.mesh[1]);
    for ran in &step.collectives {
        let what = match ran.kind.as_str() {
            "all-gather" => What::Gather,
            "reduce-scatter" => What::Reduce,
            "all-reduce" if tensor == 1 || ran.stride.is_some_and(|stride| stride > 1) => What::Reduce,
            "all-reduce" => What::Sum,
            "all-to-all" => What::Swap,
            "collective-permute" if step.case.part() == Some(ran.bytes) => What::Pass,
            // Tokens that change places for a loss in parts, or for micro-batches, go by an exchange and a shift.
            "collective-permute"
                if (step.case.tiling > 1 || step.case.stage.is_some())
                    && ran.bytes == 2 * step.case.own_tokens() * step.case.d =>
            {
                continue;
            }
            // The rest of a gradient that is padded to be reduced, from chip to chip.
            "collective-permute" if ran.pairs.is_some() => continue,
            "collective-permute" => {
                *permutes.entry(ran.bytes * shards).or_default() += ran.count;
                continue;
            }
            kind => panic!("{}: a {kind}", step.name),
        };
        *all.entry((what, ran.bytes)).or_default() += ran.count;
    }
    all.retain(|(_, bytes), _| *bytes >= LEAST);
    permutes.retain(|bytes, _| *bytes >= LEAST);
    (all, permutes)
}

/// In a step, of a kind: what is simulated and what the compiler has in its place, the bytes of each and how many.
type Instead = (&'static str, What, (u64, u64), (u64, u64));

/// All that differ.
///
/// With three axes the partitioner dispatches otherwise, forward and again, and for the gradient of what is combined: it sends
/// the mask, of one byte a number where it is of zeros and ones, and gathers the tokens of the expert axis. Scores are
/// scattered in halves over the tensor axis, and their gradients gathered in two steps.
///
/// A chip's sequences become micro-batches by an exchange of pairs and a shift, or of two and a gather; one of four such changes of
/// places is a gather and a sum where the pipeline goes around. The head's gradient is padded to be reduced. With a tensor axis
/// too, words are looked up in half of a table that is laid out anew first, and what was found is gathered.
const OTHERWISE: [Instead; 15] = [
    ("pipe-l8-circular", What::Swap, (33_554_432, 1), (0, 0)),
    ("pipe-l8-circular", What::Gather, (0, 0), (67_108_864, 1)),
    ("pipe-l8-circular", What::Reduce, (0, 0), (134_217_728, 1)),
    ("pipe-l8-circular", What::Reduce, (131_072_000, 1), (135_168_000, 1)),
    ("pipe-l8-kept", What::Reduce, (131_072_000, 1), (135_168_000, 1)),
    ("pipe-l8-model2", What::Gather, (0, 0), (67_108_864, 2)),
    ("pipe-l8-model2", What::Permute, (0, 0), (65_536_000, 2)),
    ("pipe-l8-model2", What::Reduce, (65_536_000, 1), (66_560_000, 1)),
    ("pipe-l4-delay", What::Gather, (0, 0), (67_108_864, 1)),
    ("pipe-l4-delay", What::Reduce, (131_072_000, 1), (135_168_000, 1)),
    ("moe-l2-expert4-model2-sent", What::Swap, (167_772_160, 4), (83_886_080, 4)),
    ("moe-l2-expert4-model2-sent", What::Gather, (0, 0), (268_435_456, 6)),
    ("moe-l2-expert4-model2-sent", What::Gather, (2_097_152, 2), (1_048_576, 2)),
    ("moe-l2-expert4-model2-sent", What::Reduce, (2_097_152, 4), (1_048_576, 4)),
    ("moe-l2-expert4-model2-sent", What::Permute, (0, 0), (2_097_152, 6)),
];

#[test]
fn collectives_are_the_compilers_in_kind_number_and_bytes() {
    // Blocks that are written out share what they gather with their backward, which is not simulated; within a tenth of
    // the limit the compiler gathers again what it has no room to keep.
    let has_room = |step: &Step| step.case.scan.unwrap_or(true) && (step.peak as f64) < 0.9 * LIMIT;
    for step in steps().iter().filter(|step| !step.collectives.is_empty() && has_room(step)) {
        let ((mut ours, (mut theirs, mut permutes)), name, case) = ((ours(step), theirs(step)), &step.name, &step.case);
        for &(_, what, mine, compilers) in OTHERWISE.iter().filter(|(step, ..)| step == name) {
            let less = |left: Option<&mut u64>, count| *left.unwrap_or_else(|| panic!("{name}: {what:?}")) -= count;
            match what {
                _ if compilers.1 == 0 => {}
                What::Permute => less(permutes.get_mut(&compilers.0), compilers.1),
                _ => less(theirs.get_mut(&(what, compilers.0)), compilers.1),
            }
            if mine.1 > 0 {
                less(ours.get_mut(&(what, mine.0)), mine.1);
            }
        }
        theirs.retain(|_, count| *count > 0);
        permutes.retain(|_, count| *count > 0);
        let shards = case.shards();
        // With one sequence a chip the weights of queries and keys lie otherwise for their gradients, and are gathered again.
        // Before experts all four of attention are gathered again, as large by twos, for which the program shows no reason.
        let again = match case.experts {
            8 => 2 * case.layers,
            // In a pipeline they lie otherwise, too.
            _ if case.remat == "full" && case.iterations().is_some() => {
                2 * case.iterations().unwrap_or(0) * case.per_stage.unwrap_or(1)
            }
            _ if case.batch == shards && case.remat == "full" => case.layers,
            _ => 0,
        };
        let (query, key) = (2 * case.d * case.d / case.mesh[1], 2 * case.d * case.d / case.h * case.kv / case.mesh[1]);
        let (mut combined, mut parts) = (0, 0);
        for (&(what, bytes), &count) in &theirs {
            let more = if what == What::Gather && [query, key].contains(&bytes) { again } else { 0 };
            match ours.get_mut(&(what, bytes)) {
                Some(left) => {
                    let fewer =
                        || panic!("{name}: {count} times {what:?} of {bytes} B, and {more} more than {left} are due");
                    *left = (*left + more).checked_sub(count).unwrap_or_else(fewer);
                }
                // Words' numbers.
                None if what == What::Gather && bytes == 4 * case.batch * case.seq => {}
                None if what == What::Reduce => combined += count * bytes,
                None => panic!("{name}: {count} times {what:?} of {bytes} B"),
            }
        }
        for (bytes, sent) in permutes {
            // What is not whole in theirs is in windows: a chain over n shards is n − 1 permutes where it is unrolled, n + 1
            // in a loop.
            let mut take = |what| ours.remove(&(what, bytes)).unwrap_or_default();
            let windows = take(What::Gather) + take(What::Reduce);
            let chains = windows * (shards - 1)..=windows * (shards + 1);
            assert!(chains.contains(&sent), "{name}: {sent} permutes of {bytes} B / {shards}, {chains:?} expected");
        }
        for ((what, bytes), left) in ours.into_iter().filter(|(_, left)| *left > 0) {
            assert_eq!(what, What::Reduce, "{name}: {left} of {bytes} B are not the compiler's");
            parts += left * bytes;
        }
        // Reductions of small gradients are combined to one, norms' among them; those over the expert axis are padded.
        let more = parts / if case.expert > Some(1) { 800 } else { 1000 };
        assert!(parts <= combined && combined <= parts + more, "{name}: {parts} B left, {combined} B combined");
    }
}
