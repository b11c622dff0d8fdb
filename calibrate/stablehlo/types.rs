//! Types of arrays.

use std::fmt;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// Yes or no.
    I1,
    /// 8 bits, signed.
    I8,
    /// 32 bits, signed.
    I32,
    /// 8-bit float of 4 exponent bits.
    F8E4M3Fn,
    /// Brain float.
    Bf16,
    /// IEEE single.
    F32,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Self::I1 | Self::I8 | Self::F8E4M3Fn => 1,
            Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
        }
    }

    /// Whether it has a point.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F8E4M3Fn | Self::Bf16 | Self::F32)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I1 => "i1",
            Self::I8 => "i8",
            Self::I32 => "i32",
            Self::F8E4M3Fn => "f8E4M3FN",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        })
    }
}

/// The type of an array: its elements, and the lengths of its axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Of what.
    pub element: Element,
    /// Lengths; none for a scalar.
    pub dims: Vec<u64>,
}

impl Type {
    /// An array.
    pub fn new(element: Element, dims: impl Into<Vec<u64>>) -> Self {
        Self { element, dims: dims.into() }
    }

    /// One number.
    pub fn scalar(element: Element) -> Self {
        Self::new(element, [])
    }

    /// Bytes of it, without padding.
    pub fn bytes(&self) -> u64 {
        self.dims.iter().product::<u64>() * self.element.bytes()
    }

    /// The same lengths of other elements.
    pub fn of(&self, element: Element) -> Self {
        Self::new(element, self.dims.clone())
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for length in &self.dims {
            write!(f, "{length}x")?;
        }
        write!(f, "{}>", self.element)
    }
}
