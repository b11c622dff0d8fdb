//! What a rank's part of the head and of the embedding takes and leaves, against the fork's own modules under PyTorch's
//! allocator (`tests/oracles/vocabulary-head.json`).

use serde_json::Value;
use windtunnel::program::{Builder, DType, GroupId, Instr, Mark, Program, StreamId};
use windtunnel::runtime::eager::framework::Megatron;
use windtunnel::runtime::eager::main_gradients::{MainGradients, ParamHooks};
use windtunnel::runtime::eager::vocabulary_parallel::{Meet, Part};
use windtunnel::runtime::eager::{Eager, FrameworkState};

use super::cases;
use crate::make;

#[derive(Debug)]
struct Nothing;

impl ParamHooks for Nothing {
    fn read(&mut self, _: &mut Builder, _: usize) {}
    fn arrived(&mut self, _: &mut Builder, _: usize) {}
}

/// Bytes in blocks of 512 that a phase leaves beside what was there, and the most it takes.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    left: i64,
    peak: i64,
}

/// Phases of a program, each up to its mark.
fn phases(program: &Program) -> Vec<Phase> {
    let (mut list, mut now) = (vec![], Phase::default());
    for instr in &program.setup {
        let block = |buffer| program.buffer(buffer).bytes.0.next_multiple_of(512) as i64;
        match *instr {
            Instr::Alloc { buffer } => now.left += block(buffer),
            Instr::Free { buffer } => now.left -= block(buffer),
            Instr::Mark { .. } => list.push(std::mem::take(&mut now)),
            _ => {}
        }
        now.peak = now.peak.max(now.left);
    }
    list
}

fn eager() -> Eager {
    let scenario = make::parse(make::TINY);
    let settings = scenario.job.train().expect("a job of PyTorch's own").eager;
    let megatron = Box::new(Megatron::new(MainGradients::new(DType::Fp16, true, Box::new(Nothing))));
    Eager::new(Builder::new(1, &["compute", "other"]), settings, 1, FrameworkState::Megatron(megatron))
}

fn end(eager: &mut Eager) {
    eager.program.mark(Mark::PhaseEnd("phase".to_owned()));
}

/// Forward and backward of a part of the head, and forward of a part of the embedding.
fn ours(part: Part, meet: Meet) -> [Phase; 3] {
    let mut eager = eager();
    let input = eager.storage(part.hidden(), "hidden");
    eager.retain(input);
    end(&mut eager);
    let (frame, results) = eager.part_of_head(part, input, meet);
    end(&mut eager);
    for storage in results.statistics.into_iter().chain(results.gradients) {
        eager.release(storage);
    }
    end(&mut eager);
    eager.part_of_head_backward(part, frame, meet, 0);
    end(&mut eager);
    eager.part_of_words(part);
    end(&mut eager);
    let phases = phases(&eager.program.finish());
    [phases[1], phases[3], phases[4]]
}

fn same(what: &str, ours: i64, theirs: &Value) {
    assert_eq!(ours, theirs.as_i64().expect("bytes"), "{what}");
}

#[test]
fn oracle_a_part_of_the_vocabulary_takes_and_leaves_what_the_forks_modules_do_to_the_byte() {
    let Some(file) = cases::read("vocabulary-head.json") else { return };
    let all = file["cases"].as_array().unwrap();
    assert!(all.len() >= 4 || cases::elsewhere());
    for case in all {
        let size = |key: &str| case[key].as_u64().unwrap();
        let tokens = size("sequence") * size("batch");
        let part = Part { tokens, width: size("width"), words: size("words"), dtype: DType::Fp16 };
        let at_once = Meet::AtOnce(GroupId(0), StreamId(1));
        for (name, meet) in [("Vocab1", Meet::Apart), ("Vocab2", Meet::Together), ("Interlaced", at_once)] {
            let [forward, backward, words] = ours(part, meet);
            let id = |what: &str| format!("{name}, {tokens} tokens, {} words, {what}", part.words);
            let theirs = &case[name];
            // Its result, two bytes a token that nobody reads, is there still.
            let result = if matches!(meet, Meet::AtOnce(..)) { 0 } else { 2 * tokens as i64 };
            same(&id("left by forward"), forward.left + result, &theirs["forward"]["left"]);
            same(&id("peak of forward"), forward.peak, &theirs["forward"]["peak"]);
            same(&id("left by backward"), backward.left, &theirs["backward_left"]);
            same(&id("peak of backward"), backward.peak, &theirs["backward_peak"]);
            same(&id("left by words"), words.left, &case["words_looked_up"]["forward"]["left"]);
            same(&id("peak of words"), words.peak, &case["words_looked_up"]["forward"]["peak"]);
        }
    }
}
