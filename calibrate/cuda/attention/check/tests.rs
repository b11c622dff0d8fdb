//! The check, on tensors in the host's memory that hold right and wrong results.

use super::*;
use crate::cuda::attention::shape::Layout;
use crate::cuda::attention::tensors::bf16;

const SHAPE: Shape = Shape {
    batch: 2,
    heads: 6,
    kv_heads: 2,
    queries: 40,
    keys: 40,
    head_dim: 16,
    value_dim: 8,
    causal: true,
    window: None,
};

/// Memory of the host, by address.
struct Memory {
    bytes: Vec<u8>,
    tensors: Tensors,
}

impl Source for Memory {
    fn head(&self, address: u64, layout: &Layout, batch: u64, head: u64) -> Result<Vec<f32>, CudaError> {
        let token = |token: u64| (0..layout.width).map(move |along| (token, along));
        let all = (0..layout.tokens).flat_map(token);
        Ok(all.map(|(token, along)| self.number(address, layout.at(batch, head, token) as u64 + along)).collect())
    }

    fn floats(&self, address: u64, count: u64) -> Result<Vec<f32>, CudaError> {
        let bytes = &self.bytes[address as usize..][..4 * count as usize];
        Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
    }
}

impl Memory {
    fn number(&self, address: u64, at: u64) -> f32 {
        let at = (address + 2 * at) as usize;
        bf16(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// Writes a number as the nearest bf16.
    fn put(&mut self, address: u64, at: u64, number: f64) {
        let bits = ((number as f32).to_bits() + 0x8000) >> 16;
        let at = (address + 2 * at) as usize;
        self.bytes[at..at + 2].copy_from_slice(&(bits as u16).to_le_bytes());
    }

    fn put_all(&mut self, address: u64, layout: &Layout, place: (u64, u64, u64), numbers: &[f64]) {
        let start = layout.at(place.0, place.1, place.2) as u64;
        for (along, number) in numbers.iter().enumerate() {
            self.put(address, start + along as u64, *number);
        }
    }

    /// Random inputs, and of the first sequence the results of attention of `shape`, by definition.
    fn new(shape: &Shape) -> Self {
        let (tensors, end) = Tensors::lay(shape, true, 0);
        let mut memory = Self { bytes: vec![0; end as usize], tensors };
        let gradients = tensors.backward.expect("asked for");
        let mut state = 7u64;
        for (address, count) in
            [(tensors.q, shape.q()), (tensors.k, shape.k()), (tensors.v, shape.v()), (gradients.d_o, shape.o())]
        {
            for at in 0..count {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                memory.put(address, at, (state >> 40) as f64 / f64::from(1 << 22) - 2.0);
            }
        }
        memory.compute(shape, |head| head * shape.kv_heads / shape.heads);
        memory
    }

    /// Results of the first sequence, if query heads use the key-value heads that `pairs` says.
    fn compute(&mut self, shape: &Shape, pairs: impl Fn(u64) -> u64) {
        let tensors = self.tensors;
        let gradients = tensors.backward.expect("asked for");
        for at in 0..shape.heads {
            let [keys, values] = pair(self, shape, &tensors, pairs(at)).expect("in memory");
            let both = Pair { keys: keys.view(), values: values.view() };
            let queries = self.head(tensors.q, &shape.queries_lie(), 0, at).expect("in memory");
            let queries = Vectors { values: &queries, width: shape.head_dim as usize };
            for row in 0..shape.queries {
                let (output, statistic) = reference::output(shape, row, queries.of(row), both);
                self.put_all(tensors.o, &shape.output_lies(), (0, at, row), &output);
                let at = (tensors.statistics + 4 * (at * shape.queries + row)) as usize;
                self.bytes[at..at + 4].copy_from_slice(&(statistic as f32).to_le_bytes());
            }
            let whole = Whole::read(self, shape, &tensors, gradients.d_o, at).expect("in memory");
            for row in 0..shape.queries {
                let dq = reference::query_gradient(shape, row, whole.view(), both);
                self.put_all(gradients.dq, &shape.queries_lie(), (0, at, row), &dq);
            }
        }
        for kv_head in 0..shape.kv_heads {
            let [keys, values] = pair(self, shape, &tensors, kv_head).expect("in memory");
            let both = Pair { keys: keys.view(), values: values.view() };
            let heads: Vec<Whole> = (0..shape.heads)
                .filter(|at| pairs(*at) == kv_head)
                .map(|at| Whole::read(self, shape, &tensors, gradients.d_o, at).expect("in memory"))
                .collect();
            for key in 0..shape.keys {
                let (mut dk, mut dv) = (vec![0.0; shape.head_dim as usize], vec![0.0; shape.value_dim as usize]);
                for head in &heads {
                    reference::add_pair_gradient(shape, key, head.view(), both, &mut dk, &mut dv);
                }
                self.put_all(gradients.dk, &shape.keys_lie(), (0, kv_head, key), &dk);
                self.put_all(gradients.dv, &shape.values_lie(), (0, kv_head, key), &dv);
            }
        }
    }

    fn forward(&self, shape: &Shape) -> Result<(), Skip> {
        forward(self, shape, &self.tensors)
    }

    fn backward(&self, shape: &Shape) -> Result<(), Skip> {
        backward(self, shape, &self.tensors)
    }
}

#[test]
fn right_results_pass() {
    for shape in [SHAPE, Shape { causal: false, ..SHAPE }, Shape { window: Some(7), ..SHAPE }] {
        let memory = Memory::new(&shape);
        assert_eq!(memory.forward(&shape), Ok(()), "{shape:?}");
        assert_eq!(memory.backward(&shape), Ok(()), "{shape:?}");
    }
}

#[test]
fn a_wrong_mask_is_noticed() {
    let memory = Memory::new(&Shape { causal: false, ..SHAPE });
    let refusal = memory.forward(&SHAPE).expect_err("a causal mask was asked for");
    assert!(refusal.why.contains("attention forward is wrong"), "{}", refusal.why);
    assert!(memory.backward(&SHAPE).is_err());
    let windowed = Memory::new(&Shape { window: Some(8), ..SHAPE });
    assert!(windowed.forward(&Shape { window: Some(7), ..SHAPE }).is_err(), "one key too many");
}

#[test]
fn query_heads_with_the_wrong_keys_are_noticed() {
    let mut memory = Memory::new(&SHAPE);
    memory.compute(&SHAPE, |head| head % SHAPE.kv_heads);
    assert!(memory.forward(&SHAPE).is_err());
    assert!(memory.backward(&SHAPE).is_err());
}

#[test]
fn gradients_of_one_query_head_alone_are_noticed() {
    let mut memory = Memory::new(&SHAPE);
    let gradients = memory.tensors.backward.expect("asked for");
    let [keys, values] = pair(&memory, &SHAPE, &memory.tensors, 0).expect("in memory");
    let both = Pair { keys: keys.view(), values: values.view() };
    let one = Whole::read(&memory, &SHAPE, &memory.tensors, gradients.d_o, 0).expect("in memory");
    for key in 0..SHAPE.keys {
        let (mut dk, mut dv) = (vec![0.0; 16], vec![0.0; 8]);
        reference::add_pair_gradient(&SHAPE, key, one.view(), both, &mut dk, &mut dv);
        memory.put_all(gradients.dv, &SHAPE.values_lie(), (0, 0, key), &dv);
    }
    let refusal = memory.backward(&SHAPE).expect_err("two heads are missing");
    assert!(refusal.why.contains("gradient of the values"), "{}", refusal.why);
}

#[test]
fn wrong_statistics_are_noticed() {
    let mut memory = Memory::new(&SHAPE);
    let last = (memory.tensors.statistics + 4 * (SHAPE.queries - 1)) as usize;
    memory.bytes[last..last + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let refusal = memory.forward(&SHAPE).expect_err("not a number");
    assert!(refusal.why.contains("statistics"), "{}", refusal.why);
}

#[test]
fn the_last_row_is_looked_at_first() {
    assert_eq!(rows(8192), [8191, 0, 1, 2730, 4099]);
    assert_eq!(rows(1), [0]);
    assert_eq!(rows(2), [1, 0]);
}

#[test]
fn however_long_the_sequence_one_row_is_looked_at() {
    assert_eq!(affordable(rows(1 << 20), u64::MAX).count(), 1);
    assert_eq!(affordable(rows(4096), 1000).count(), 5);
}

#[test]
fn what_is_no_number_is_refused() {
    let refusal = near("attention forward", 3, 7, f64::NAN).expect_err("not near anything");
    assert!(refusal.why.contains("row 7 of head 3"), "{}", refusal.why);
    assert!(near("attention forward", 3, 7, 0.003).is_ok());
}
