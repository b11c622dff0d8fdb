//! What choosing takes: the largest, sums along the way, and numbers at places of all axes.

use super::function::{Function, Value, list};
use super::{Element, Type};

/// What becomes of a number where another is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The new one stands.
    Replaced,
    /// The sum of both.
    Added,
}

impl Function {
    /// The `count` largest along the last axis, and where they stand.
    pub fn top_k(&mut self, value: &Value, count: u64) -> [Value; 2] {
        let mut of = value.of.clone();
        if let Some(last) = of.dims.last_mut() {
            *last = count;
        }
        let places = of.of(Element::I32);
        let types = format!("{} -> ({of}, {places})", value.of);
        let made = self.lines(vec![of, places], &format!("chlo.top_k({value}, k = {count})"), &types);
        [made[0].clone(), made[1].clone()]
    }

    /// Sums along an axis of all up to each place.
    pub fn running_sum(&mut self, value: &Value, axis: usize) -> Value {
        let (element, axes) = (value.of.element, value.of.dims.len());
        let start = self.constant(0.0, Type::scalar(element));
        let along = |number: u64, other: u64| -> Vec<u64> {
            (0..axes).map(|at| if at == axis { number } else { other }).collect()
        };
        let numbers = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let (ones, length) = (numbers(&along(1, 1)), value.of.dims[axis]);
        let window = numbers(&along(length, 1));
        let padding: Vec<String> = along(length - 1, 0).iter().map(|before| format!("[{before}, 0]")).collect();
        let after = format!(
            "\"stablehlo.reduce_window\"({value}, {start}) <{{base_dilations = array<i64: {ones}>, padding = dense<[{}]> : tensor<{axes}x2xi64>, window_dilations = array<i64: {ones}>, window_dimensions = array<i64: {window}>, window_strides = array<i64: {ones}>}}> ({{\n    ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):\n      %sum = stablehlo.add %a, %b : tensor<{element}>\n      stablehlo.return %sum : tensor<{element}>\n    }})",
            padding.join(", ")
        );
        let types = format!("({}, {}) -> {}", value.of, start.of, value.of);
        self.line(value.of.clone(), &after, &types)
    }

    /// Where the numbers of a row stand, the smallest first; of the same ones the first first.
    pub fn argsort(&mut self, row: &Value) -> Value {
        let (of, scalar) = (row.of.of(Element::I32), Type::scalar(row.of.element));
        let places = self.iota(of.clone(), 0);
        let after = format!(
            "\"stablehlo.sort\"({row}, {places}) <{{dimension = 0 : i64, is_stable = true}}> ({{\n    ^bb0(%a: {scalar}, %b: {scalar}, %at_a: tensor<i32>, %at_b: tensor<i32>):\n      %less = stablehlo.compare LT, %a, %b : ({scalar}, {scalar}) -> tensor<i1>\n      stablehlo.return %less : tensor<i1>\n    }})"
        );
        let types = format!("({0}, {of}) -> ({0}, {of})", row.of);
        self.lines(vec![row.of.clone(), of], &after, &types)[1].clone()
    }

    /// Numbers by a place on every axis; the last axis of `places` has these.
    pub fn take_at(&mut self, value: &Value, places: &Value) -> Value {
        let last = places.of.dims.len() - 1;
        let of = Type::new(value.of.element, &places.of.dims[..last]);
        let all = list(&(0..value.of.dims.len()).collect::<Vec<_>>());
        let numbers = format!(
            "#stablehlo.gather<collapsed_slice_dims = {all}, start_index_map = {all}, index_vector_dim = {last}>"
        );
        let ones = vec!["1"; value.of.dims.len()].join(", ");
        let after = format!(
            "\"stablehlo.gather\"({value}, {places}) <{{dimension_numbers = {numbers}, indices_are_sorted = false, slice_sizes = array<i64: {ones}>}}>"
        );
        let types = format!("({}, {}) -> {of}", value.of, places.of);
        self.line(of, &after, &types)
    }

    /// An array in which numbers are put by a place on every axis.
    pub fn put_at(&mut self, meeting: Meeting, value: &Value, places: &Value, numbers: &Value) -> Value {
        let (last, element) = (places.of.dims.len() - 1, value.of.element);
        let all = list(&(0..value.of.dims.len()).collect::<Vec<_>>());
        let dimensions = format!(
            "#stablehlo.scatter<inserted_window_dims = {all}, scatter_dims_to_operand_dims = {all}, index_vector_dim = {last}>"
        );
        let body = match meeting {
            Meeting::Replaced => "stablehlo.return %b".to_owned(),
            Meeting::Added => {
                format!("%sum = stablehlo.add %a, %b : tensor<{element}>\n        stablehlo.return %sum")
            }
        };
        self.scatter_by(&body, (value, places, numbers), &dimensions)
    }

    /// Numbers one by one.
    pub fn numbers(&mut self, numbers: &[u64], element: Element) -> Value {
        let of = Type::new(element, [numbers.len() as u64]);
        let types = of.to_string();
        self.line(of, &format!("stablehlo.constant dense<{}>", list(numbers)), &types)
    }
}
