//! A function that grows line by line.

use std::fmt::Write;

use super::{Element, Spec, Type};

/// A result, or a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its name in the text.
    name: String,
    /// Its type.
    pub of: Type,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// How many values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// Whether all say yes.
    All,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Less.
    Less,
    /// More, or the same.
    AtLeast,
    /// Less, or the same.
    AtMost,
    /// The same.
    Equal,
    /// Something else.
    Unequal,
}

/// A function in the making.
#[derive(Clone, Debug, Default)]
pub struct Function {
    parameters: Vec<(String, Type)>,
    results: Vec<(Value, Option<Spec>)>,
    body: String,
    values: usize,
    depth: usize,
}

impl Function {
    /// One without parameters, that does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its types of parameters and results are those given so far.
    pub(super) fn text(&self) -> String {
        let result = |(value, spec): &(Value, Option<Spec>)| format!("{}{}", value.of, attribute(spec.as_ref()));
        let types: Vec<String> = self.results.iter().map(result).collect();
        let names: Vec<&str> = self.results.iter().map(|(value, _)| value.name.as_str()).collect();
        let plain: Vec<String> = self.results.iter().map(|(value, _)| value.of.to_string()).collect();
        let parameters: Vec<&str> = self.parameters.iter().map(|(text, _)| text.as_str()).collect();
        format!(
            "  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}\n",
            parameters.join(", "),
            types.join(", "),
            self.body,
            names.join(", "),
            plain.join(", ")
        )
    }

    /// The types of its parameters.
    pub fn takes(&self) -> Vec<Type> {
        self.parameters.iter().map(|(_, of)| of.clone()).collect()
    }

    /// A parameter, and how it lies.
    pub fn parameter(&mut self, of: Type, spec: Option<&Spec>) -> Value {
        self.parameter_with(of, spec, None)
    }

    /// A parameter whose memory becomes that of a result, by the result's place.
    pub fn donated(&mut self, of: Type, spec: Option<&Spec>, result: usize) -> Value {
        self.parameter_with(of, spec, Some(result))
    }

    fn parameter_with(&mut self, of: Type, spec: Option<&Spec>, result: Option<usize>) -> Value {
        let name = format!("%arg{}", self.parameters.len());
        let lies = spec.map(|spec| format!("sdy.sharding = #sdy.sharding{}", spec.text()));
        let goes = result.map(|place| format!("tf.aliasing_output = {place} : i32"));
        let attributes: Vec<String> = lies.into_iter().chain(goes).collect();
        let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) };
        self.parameters.push((format!("{name}: {of}{attributes}"), of.clone()));
        Value { name, of }
    }

    /// Makes a value a result, the next one.
    pub fn result(&mut self, value: &Value, spec: Option<&Spec>) {
        self.results.push((value.clone(), spec.cloned()));
    }

    /// Writes an operation; `after` is all after the equals sign but the type.
    pub(super) fn line(&mut self, of: Type, after: &str, types: &str) -> Value {
        let name = format!("%{}", self.values);
        self.values += 1;
        let indent = "  ".repeat(self.depth + 2);
        let _ = writeln!(self.body, "{indent}{name} = {after} : {types}");
        Value { name, of }
    }

    /// Writes an operation of several results.
    pub(super) fn lines(&mut self, of: Vec<Type>, after: &str, types: &str) -> Vec<Value> {
        let (name, count) = (format!("%{}", self.values), of.len());
        self.values += 1;
        let indent = "  ".repeat(self.depth + 2);
        let _ = writeln!(self.body, "{indent}{name}:{count} = {after} : {types}");
        let result = |(place, of)| Value { name: format!("{name}#{place}"), of };
        of.into_iter().enumerate().map(result).collect()
    }

    /// Names for what an inner part is given.
    pub(super) fn names(&mut self, of: &[Type]) -> Vec<Value> {
        let at = self.values;
        self.values += 1;
        let one = |(place, of): (usize, &Type)| Value { name: format!("%p{at}_{place}"), of: of.clone() };
        of.iter().enumerate().map(one).collect()
    }

    /// Writes an operation that has a part of its own, which `body` writes: it gives what the part returns, and the types of
    /// the results, as values and as text.
    pub(super) fn region(
        &mut self,
        head: &str,
        end: &str,
        body: impl FnOnce(&mut Self) -> (Vec<Value>, Vec<Type>, String),
    ) -> Vec<Value> {
        let (at, indent) = (self.values, "  ".repeat(self.depth + 2));
        self.values += 1;
        let before = std::mem::take(&mut self.body);
        self.depth += 1;
        let (made, of, types) = body(self);
        self.depth -= 1;
        let inside = std::mem::replace(&mut self.body, before);
        let names: Vec<&str> = made.iter().map(|value| value.name.as_str()).collect();
        let plain: Vec<String> = made.iter().map(|value| value.of.to_string()).collect();
        let _ = write!(self.body, "{indent}%{at}:{} = {head}\n{inside}", of.len());
        let _ =
            writeln!(self.body, "{indent}  {end} {} : {}\n{indent}}} : {types}", names.join(", "), plain.join(", "));
        let result = |(place, of)| Value { name: format!("%{at}#{place}"), of };
        of.into_iter().enumerate().map(result).collect()
    }

    /// The same number everywhere.
    pub fn constant(&mut self, number: f64, of: Type) -> Value {
        let number = match of.element {
            Element::I1 => (number != 0.0).to_string(),
            Element::I8 | Element::I32 => format!("{}", number as i64),
            // The bits, as no decimal is infinite.
            Element::F32 if number.is_infinite() => format!("0x{:08X}", (number as f32).to_bits()),
            Element::Bf16 if number.is_infinite() => format!("0x{:04X}", (number as f32).to_bits() >> 16),
            _ => decimal(number),
        };
        let types = of.to_string();
        self.line(of, &format!("stablehlo.constant dense<{number}>"), &types)
    }

    /// Numbers counted up along an axis.
    pub fn iota(&mut self, of: Type, axis: usize) -> Value {
        let types = of.to_string();
        self.line(of, &format!("stablehlo.iota dim = {axis}"), &types)
    }

    /// An operation on each element: `exponential`, `negate`, `rsqrt`, `tanh`, `logistic`, `log`, `sqrt`, `sine`, `cosine`.
    pub fn map(&mut self, operation: &str, value: &Value) -> Value {
        self.line(value.of.clone(), &format!("stablehlo.{operation} {}", value.name), &value.of.to_string())
    }

    /// An operation on pairs of elements: `add`, `subtract`, `multiply`, `divide`, `maximum`, `minimum`, `power`.
    pub fn zip(&mut self, operation: &str, a: &Value, b: &Value) -> Value {
        assert_eq!(a.of, b.of, "{operation} takes two arrays of one type");
        self.line(a.of.clone(), &format!("stablehlo.{operation} {}, {}", a.name, b.name), &a.of.to_string())
    }

    /// Compares pairs of elements.
    pub fn compare(&mut self, how: Comparison, a: &Value, b: &Value) -> Value {
        assert_eq!(a.of, b.of, "two arrays of one type can be compared");
        let how = match how {
            Comparison::Less => "LT",
            Comparison::AtLeast => "GE",
            Comparison::AtMost => "LE",
            Comparison::Equal => "EQ",
            Comparison::Unequal => "NE",
        };
        let of = a.of.of(Element::I1);
        let types = format!("({}, {}) -> {of}", a.of, b.of);
        self.line(of, &format!("stablehlo.compare {how}, {}, {}", a.name, b.name), &types)
    }

    /// Of each pair the first where `which` says so, else the second.
    pub fn select(&mut self, which: &Value, a: &Value, b: &Value) -> Value {
        assert_eq!(a.of, b.of, "select takes two arrays of one type");
        let types = format!("{}, {}", which.of, a.of);
        self.line(a.of.clone(), &format!("stablehlo.select {}, {}, {}", which.name, a.name, b.name), &types)
    }

    /// The same numbers as other elements.
    pub fn convert(&mut self, value: &Value, element: Element) -> Value {
        if value.of.element == element {
            return value.clone();
        }
        let of = value.of.of(element);
        let types = format!("({}) -> {of}", value.of);
        self.line(of, &format!("stablehlo.convert {}", value.name), &types)
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, value: &Value, dims: &[u64]) -> Value {
        let of = Type::new(value.of.element, dims);
        assert_eq!(of.bytes(), value.of.bytes(), "a reshape keeps all elements: {} and {of}", value.of);
        let types = format!("({}) -> {of}", value.of);
        self.line(of, &format!("stablehlo.reshape {}", value.name), &types)
    }

    /// Its axes in another order.
    pub fn transpose(&mut self, value: &Value, order: &[usize]) -> Value {
        let dims: Vec<u64> = order.iter().map(|axis| value.of.dims[*axis]).collect();
        let of = Type::new(value.of.element, dims);
        let types = format!("({}) -> {of}", value.of);
        self.line(of, &format!("stablehlo.transpose {}, dims = {}", value.name, list(order)), &types)
    }

    /// Repeated along new axes: axis i of the value is axis `axes[i]` of the result.
    pub fn broadcast(&mut self, value: &Value, dims: &[u64], axes: &[usize]) -> Value {
        assert_eq!(axes.len(), value.of.dims.len(), "every axis of {} goes somewhere", value.of);
        let of = Type::new(value.of.element, dims);
        let types = format!("({}) -> {of}", value.of);
        self.line(of, &format!("stablehlo.broadcast_in_dim {}, dims = {}", value.name, list(axes)), &types)
    }

    /// Many along some axes become one.
    pub fn reduce(&mut self, how: Reduction, value: &Value, axes: &[usize]) -> Value {
        let (operation, start) = match how {
            Reduction::Sum => ("add", 0.0),
            Reduction::Max => ("maximum", f64::NEG_INFINITY),
            Reduction::All => ("and", 1.0),
        };
        let start = self.constant(start, Type::scalar(value.of.element));
        let kept = value.of.dims.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        let of = Type::new(value.of.element, kept.map(|(_, length)| *length).collect::<Vec<_>>());
        let types = format!("({}, {}) -> {of}", value.of, start.of);
        let name = (&value.name, &start.name);
        let after = format!(
            "stablehlo.reduce({} init: {}) applies stablehlo.{operation} across dimensions = {}",
            name.0,
            name.1,
            list(axes)
        );
        self.line(of, &after, &types)
    }

    /// The product of two arrays: axes of `batch` go along, axes of `contracted` are summed over; those of the first come
    /// first in each pair. The result has the batch's axes, then the others of the first, then those of the second.
    pub fn dot(
        &mut self,
        a: &Value,
        b: &Value,
        batch: (&[usize], &[usize]),
        contracted: (&[usize], &[usize]),
        element: Element,
    ) -> Value {
        let lengths =
            |value: &Value, axes: &[usize]| -> Vec<u64> { axes.iter().map(|axis| value.of.dims[*axis]).collect() };
        for (ours, theirs) in [batch, contracted] {
            assert_eq!(lengths(a, ours), lengths(b, theirs), "axes {ours:?} of {}, {theirs:?} of {}", a.of, b.of);
        }
        let free = |value: &Value, taken: [&[usize]; 2]| -> Vec<u64> {
            let all = value.of.dims.iter().enumerate();
            all.filter(|(axis, _)| !taken.iter().any(|axes| axes.contains(axis))).map(|(_, length)| *length).collect()
        };
        let dims = [lengths(a, batch.0), free(a, [batch.0, contracted.0]), free(b, [batch.1, contracted.1])].concat();
        let of = Type::new(element, dims);
        let along = match batch.0.is_empty() {
            true => String::new(),
            false => format!(", batching_dims = {} x {}", list(batch.0), list(batch.1)),
        };
        let after = format!(
            "stablehlo.dot_general {}, {}{along}, contracting_dims = {} x {}",
            a.name,
            b.name,
            list(contracted.0),
            list(contracted.1)
        );
        let types = format!("({}, {}) -> {of}", a.of, b.of);
        self.line(of, &after, &types)
    }

    /// A part of an array that begins at `at` along its axes.
    pub fn dynamic_slice(&mut self, value: &Value, at: &[&Value], sizes: &[u64]) -> Value {
        let of = Type::new(value.of.element, sizes);
        let names: Vec<&str> = at.iter().map(|index| index.name.as_str()).collect();
        let indices: Vec<String> = at.iter().map(|index| index.of.to_string()).collect();
        let after = format!("stablehlo.dynamic_slice {}, {}, sizes = {}", value.name, names.join(", "), list(sizes));
        let types = format!("({}, {}) -> {of}", value.of, indices.join(", "));
        self.line(of, &after, &types)
    }

    /// Says how a value lies from here on.
    pub fn constrain(&mut self, value: &Value, spec: &Spec) -> Value {
        let after = format!("sdy.sharding_constraint {} {}", value.name, spec.text());
        self.line(value.of.clone(), &after, &value.of.to_string())
    }

    /// Runs `body` so many times: it takes the turn's number and what is carried, and gives what is carried on.
    pub fn repeat(
        &mut self,
        turns: u64,
        carried: &[Value],
        body: impl FnOnce(&mut Self, &Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let index = Type::scalar(Element::I32);
        let (zero, one) = (self.constant(0.0, index.clone()), self.constant(1.0, index.clone()));
        let bound = self.constant(turns as f64, index.clone());
        let at = self.values;
        self.values += 1;
        let inner: Vec<Value> = std::iter::once(&zero)
            .chain(carried)
            .enumerate()
            .map(|(place, value)| Value { name: format!("%c{at}_{place}"), of: value.of.clone() })
            .collect();
        let outer = std::iter::once(&zero).chain(carried);
        let starts: Vec<String> =
            inner.iter().zip(outer).map(|(inner, outer)| format!("{} = {}", inner.name, outer.name)).collect();
        let types: Vec<String> = inner.iter().map(|value| value.of.to_string()).collect();
        let types = types.join(", ");
        let indent = "  ".repeat(self.depth + 2);
        let count = inner.len();
        let _ = writeln!(self.body, "{indent}%{at}:{count} = stablehlo.while({}) : {types}", starts.join(", "));
        let _ = writeln!(self.body, "{indent}cond {{");
        self.depth += 1;
        let more = self.compare(Comparison::Less, &inner[0], &bound);
        let _ = writeln!(self.body, "{indent}  stablehlo.return {} : {}", more.name, more.of);
        let _ = writeln!(self.body, "{indent}}} do {{");
        let next = self.zip("add", &inner[0], &one);
        let given = body(self, &inner[0], &inner[1..]);
        for (value, old) in given.iter().zip(carried) {
            assert_eq!(value.of, old.of, "a loop carries the same types on");
        }
        assert_eq!(given.len(), carried.len(), "a loop carries as many values on");
        let names: Vec<&str> = std::iter::once(&next).chain(&given).map(|value| value.name.as_str()).collect();
        let _ = writeln!(self.body, "{indent}  stablehlo.return {} : {types}", names.join(", "));
        self.depth -= 1;
        let _ = writeln!(self.body, "{indent}}}");
        let result = |(place, value): (usize, &Value)| Value { name: format!("%{at}#{place}"), of: value.of.clone() };
        inner.iter().enumerate().skip(1).map(result).collect()
    }
}

/// With a point and an exponent, as MLIR wants numbers: `1.0e-5`.
fn decimal(number: f64) -> String {
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

fn attribute(spec: Option<&Spec>) -> String {
    spec.map(|spec| format!(" {{sdy.sharding = #sdy.sharding{}}}", spec.text())).unwrap_or_default()
}

pub(super) fn list<T: std::fmt::Display>(numbers: &[T]) -> String {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    format!("[{}]", numbers.join(", "))
}
