//! What buffers hold: random numbers, because a chip that multiplies zeros draws less power and clocks higher.

/// The contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fill {
    /// All bits zero.
    Zero,
    /// 32-bit floats that are one: scales.
    One,
    /// Normally distributed, in bf16.
    Bf16,
    /// Normally distributed, in fp16.
    #[allow(dead_code)]
    Fp16,
    /// Normally distributed, in 8-bit floats of 4 exponent and 3 mantissa bits.
    Fp8,
    /// Normally distributed, in 8-bit floats of 5 exponent and 2 mantissa bits.
    Fp8Wide,
    /// Normally distributed, in 32-bit floats.
    Fp32,
    /// 32-bit indices below a bound.
    Index(u32),
}

impl Fill {
    /// Bytes of one element.
    pub fn width(self) -> usize {
        match self {
            Self::Fp8 | Self::Fp8Wide => 1,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Zero | Self::One | Self::Fp32 | Self::Index(_) => 4,
        }
    }

    /// About `bytes` bytes of it, a whole number of elements. The same every time.
    pub fn bytes(self, bytes: usize) -> Vec<u8> {
        let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
        let count = bytes.div_ceil(self.width());
        let mut out = Vec::with_capacity(count * self.width());
        for _ in 0..count {
            match self {
                Self::Zero => out.extend(0u32.to_le_bytes()),
                Self::One => out.extend(1f32.to_le_bytes()),
                Self::Bf16 => out.extend(bf16(noise.normal()).to_le_bytes()),
                Self::Fp16 => out.extend(small_float(noise.normal(), 5, 10).to_le_bytes()),
                Self::Fp8 => out.push(small_float(noise.normal(), 4, 3) as u8),
                Self::Fp8Wide => out.push(small_float(noise.normal(), 5, 2) as u8),
                Self::Fp32 => out.extend(noise.normal().to_le_bytes()),
                Self::Index(below) => out.extend(noise.below(below).to_le_bytes()),
            }
        }
        out
    }
}

impl Fill {
    /// The numbers that bytes of it stand for.
    pub fn numbers(self, bytes: &[u8]) -> Vec<f32> {
        let words = |four: &[u8]| four.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let number = |element: &[u8]| match self {
            Self::Bf16 => f32::from_bits(words(element) << 16),
            Self::Fp16 => large(words(element), 5, 10),
            Self::Fp8 => large(words(element), 4, 3),
            Self::Fp8Wide => large(words(element), 5, 2),
            Self::Zero | Self::One | Self::Fp32 => f32::from_bits(words(element)),
            Self::Index(_) => words(element) as f32,
        };
        bytes.chunks_exact(self.width()).map(number).collect()
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014): small, fast, the same everywhere.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Nearly normal, with mean 0 and variance 1: the sum of four uniform numbers, 16 bits each.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|at| ((bits >> (16 * at)) & 0xFFFF) as f32 / 65536.0 - 0.5).sum();
        sum * 3f32.sqrt()
    }

    fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }
}

/// The nearest bf16 (ties away from zero).
fn bf16(value: f32) -> u16 {
    (value.to_bits().wrapping_add(0x8000) >> 16) as u16
}

/// The nearest float with so many bits of exponent and mantissa, for values that neither overflow nor are tiny: below the
/// smallest normal number it gives zero.
fn small_float(value: f32, exponent: u32, mantissa: u32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 31) << (exponent + mantissa)) as u16;
    let rounded = (bits & 0x7FFF_FFFF) + (1 << (22 - mantissa));
    let bias = 127 - ((1 << (exponent - 1)) - 1);
    let power = (rounded >> 23) as i32 - bias;
    if power <= 0 {
        return sign;
    }
    sign | ((power as u16) << mantissa) | ((rounded & 0x7F_FFFF) >> (23 - mantissa)) as u16
}

/// The number that a small float stands for; its own infinities and NaNs are not told apart.
fn large(bits: u32, exponent: u32, mantissa: u32) -> f32 {
    let sign = if bits >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    let power = (bits >> mantissa & ((1 << exponent) - 1)) as i32;
    let bias = (1 << (exponent - 1)) - 1;
    let fraction = (bits & ((1 << mantissa) - 1)) as f32 / (1 << mantissa) as f32;
    let size = if power == 0 { fraction * 2f32.powi(1 - bias) } else { (1.0 + fraction) * 2f32.powi(power - bias) };
    sign * size
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_the_small_floats_that_the_formats_define() {
        // OCP FP8: 1.0 is 0 0111 000, -1.5 is 1 0111 100, 0.0625 is 0 0011 000. IEEE half: 1.0 is 0x3C00, -2.0 is 0xC000.
        assert_eq!(small_float(1.0, 4, 3), 0b0011_1000);
        assert_eq!(small_float(-1.5, 4, 3), 0b1011_1100);
        assert_eq!(small_float(0.0625, 4, 3), 0b0001_1000);
        assert_eq!(small_float(1.0, 5, 10), 0x3C00);
        assert_eq!(small_float(-2.0, 5, 10), 0xC000);
        assert_eq!(bf16(1.0), 0x3F80);
        assert_eq!(small_float(1.0, 5, 2), 0b0011_1100);
    }

    #[test]
    fn small_floats_become_the_numbers_that_they_came_from() {
        let mut noise = Noise(3);
        for _ in 0..1000 {
            let value = noise.normal();
            for (exponent, mantissa) in [(4, 3), (5, 2), (5, 10)] {
                let back = large(u32::from(small_float(value, exponent, mantissa)), exponent, mantissa);
                let grain = 2f32.powi(-(mantissa as i32) - 1);
                assert!((back - value).abs() <= grain * value.abs() + 0.016, "{value} {back} {exponent} {mantissa}");
            }
        }
        assert_eq!(Fill::Bf16.numbers(&bf16(1.5).to_le_bytes()), [1.5]);
        assert_eq!(Fill::Fp32.numbers(&(-2.25f32).to_le_bytes()), [-2.25]);
        assert_eq!(Fill::Index(9).numbers(&7u32.to_le_bytes()), [7.0]);
    }

    #[test]
    fn rounding_carries_into_the_exponent() {
        assert_eq!(small_float(1.99, 4, 3), small_float(2.0, 4, 3));
        assert_eq!(bf16(1.999_9), bf16(2.0));
    }

    #[test]
    fn random_numbers_have_mean_zero_and_variance_one() {
        let mut noise = Noise(1);
        let values: Vec<f64> = (0..100_000).map(|_| f64::from(noise.normal())).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn no_random_eight_bit_float_is_a_nan() {
        assert!(Fill::Fp8.bytes(1 << 16).iter().all(|byte| byte & 0x7F != 0x7F));
    }

    #[test]
    fn indices_stay_below_their_bound() {
        let bytes = Fill::Index(1000).bytes(40_000);
        let indices: Vec<u32> =
            bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        assert_eq!(indices.len(), 10_000);
        assert!(indices.iter().all(|index| *index < 1000));
        assert!(indices.iter().any(|index| *index > 900));
    }
}
