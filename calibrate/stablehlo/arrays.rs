//! Parts of arrays: cut out, put together, looked up by index, and put back.

use super::function::{Function, Value, list};
use super::{Element, Type};

impl Function {
    /// An array of one number: a scalar, spread by the compiler where it is read.
    pub fn fill(&mut self, number: f64, of: &Type) -> Value {
        let scalar = self.constant(number, Type::scalar(of.element));
        self.broadcast(&scalar, &of.dims, &[])
    }

    /// What lies from `from` up to `to` along an axis.
    pub fn slice(&mut self, value: &Value, axis: usize, from: u64, to: u64) -> Value {
        let mut of = value.of.clone();
        assert!(from < to && to <= of.dims[axis], "{from}:{to} of axis {axis} of {of}");
        of.dims[axis] = to - from;
        let range = |(at, length): (usize, &u64)| match at == axis {
            true => format!("{from}:{to}"),
            false => format!("0:{length}"),
        };
        let ranges: Vec<String> = value.of.dims.iter().enumerate().map(range).collect();
        let types = format!("({}) -> {of}", value.of);
        self.line(of, &format!("stablehlo.slice {value} [{}]", ranges.join(", ")), &types)
    }

    /// Arrays, one behind the other along an axis.
    pub fn concatenate(&mut self, parts: &[&Value], axis: usize) -> Value {
        let mut of = parts[0].of.clone();
        of.dims[axis] = parts.iter().map(|part| part.of.dims[axis]).sum();
        let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
        let types: Vec<String> = parts.iter().map(|part| part.of.to_string()).collect();
        let types = format!("({}) -> {of}", types.join(", "));
        self.line(of, &format!("stablehlo.concatenate {}, dim = {axis}", names.join(", ")), &types)
    }

    /// The same arrays, of which nothing is known but that all are there.
    pub fn barrier(&mut self, values: &[&Value]) -> Vec<Value> {
        let of: Vec<Type> = values.iter().map(|value| value.of.clone()).collect();
        let names: Vec<String> = values.iter().map(ToString::to_string).collect();
        let types: Vec<String> = of.iter().map(ToString::to_string).collect();
        self.lines(of, &format!("stablehlo.optimization_barrier {}", names.join(", ")), &types.join(", "))
    }

    /// An array with so many zeros before it along an axis.
    pub fn pad(&mut self, value: &Value, axis: usize, before: u64) -> Value {
        let zero = self.constant(0.0, Type::scalar(value.of.element));
        let mut of = value.of.clone();
        of.dims[axis] += before;
        let none = vec![0; of.dims.len()];
        let mut low = none.clone();
        low[axis] = before;
        let (low, none) = (list(&low), list(&none));
        let types = format!("({}, {}) -> {of}", value.of, zero.of);
        self.line(of, &format!("stablehlo.pad {value}, {zero}, low = {low}, high = {none}, interior = {none}"), &types)
    }

    /// An array in which `part` stands from `at` on.
    pub fn dynamic_update_slice(&mut self, value: &Value, part: &Value, at: &[&Value]) -> Value {
        assert_eq!(at.len(), value.of.dims.len(), "an index for every axis of {}", value.of);
        let names: Vec<String> = at.iter().map(ToString::to_string).collect();
        let indices: Vec<String> = at.iter().map(|index| index.of.to_string()).collect();
        let types = format!("({}, {}, {}) -> {}", value.of, part.of, indices.join(", "), value.of);
        let after = format!("stablehlo.dynamic_update_slice {value}, {part}, {}", names.join(", "));
        self.line(value.of.clone(), &after, &types)
    }

    /// The row of a table (of rows, columns) at each place (of any shape).
    pub fn take_rows(&mut self, table: &Value, places: &Value) -> Value {
        let (axes, columns) = (places.of.dims.len(), table.of.dims[1]);
        let at = self.column(places);
        let of = Type::new(table.of.element, [&places.of.dims[..], &[columns]].concat());
        let numbers = format!(
            "#stablehlo.gather<offset_dims = [{axes}], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {axes}>"
        );
        let after = format!(
            "\"stablehlo.gather\"({table}, {at}) <{{dimension_numbers = {numbers}, indices_are_sorted = false, slice_sizes = array<i64: 1, {columns}>}}>"
        );
        let types = format!("({}, {}) -> {of}", table.of, at.of);
        self.line(of, &after, &types)
    }

    /// A table to which rows are added at their places: what [`Self::take_rows`] gives back.
    pub fn add_rows(&mut self, table: &Value, places: &Value, rows: &Value) -> Value {
        let axes = places.of.dims.len();
        let at = self.column(places);
        let numbers = format!(
            "#stablehlo.scatter<update_window_dims = [{axes}], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = {axes}>"
        );
        self.scatter(table, &at, rows, &numbers)
    }

    /// Of each row of an array (of any number of axes, the last the row's) the number at its place.
    pub fn pick(&mut self, value: &Value, places: &Value) -> Value {
        let (dims, at) = (places.of.dims.clone(), self.row_of_one(places));
        let of = Type::new(value.of.element, [&dims[..], &[1]].concat());
        let (axis, before) = (dims.len(), list(&(0..dims.len()).collect::<Vec<_>>()));
        let numbers = format!(
            "#stablehlo.gather<collapsed_slice_dims = [{axis}], operand_batching_dims = {before}, start_indices_batching_dims = {before}, start_index_map = [{axis}], index_vector_dim = {}>",
            axis + 1
        );
        let ones = vec!["1"; axis + 1].join(", ");
        let after = format!(
            "\"stablehlo.gather\"({value}, {at}) <{{dimension_numbers = {numbers}, indices_are_sorted = false, slice_sizes = array<i64: {ones}>}}>"
        );
        let types = format!("({}, {}) -> {of}", value.of, at.of);
        let rows = self.line(of, &after, &types);
        self.reshape(&rows, &dims)
    }

    /// An array to which a number is added in each row at its place: what [`Self::pick`] gives back.
    pub fn put(&mut self, value: &Value, places: &Value, numbers: &Value) -> Value {
        let (dims, at) = (places.of.dims.clone(), self.row_of_one(places));
        let numbers = self.reshape(numbers, &[&dims[..], &[1]].concat());
        self.put_many(value, &at, &numbers)
    }

    /// The same with several numbers in each row; the last axis of `places` is of length one.
    pub fn put_many(&mut self, value: &Value, places: &Value, numbers: &Value) -> Value {
        let axis = value.of.dims.len() - 1;
        let before = list(&(0..axis).collect::<Vec<_>>());
        let dimensions = format!(
            "#stablehlo.scatter<inserted_window_dims = [{axis}], input_batching_dims = {before}, scatter_indices_batching_dims = {before}, scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {}>",
            axis + 1
        );
        self.scatter(value, places, numbers, &dimensions)
    }

    /// Indices of rows of one place each, as `take_along_axis` has them: without the axis of length one, TPU's compiler sorts
    /// what it would otherwise select, and keeps three arrays of the size of the whole.
    fn row_of_one(&mut self, places: &Value) -> Value {
        self.reshape(places, &[&places.of.dims[..], &[1, 1]].concat())
    }

    /// Indices with an axis of their own.
    fn column(&mut self, places: &Value) -> Value {
        let axes: Vec<usize> = (0..places.of.dims.len()).collect();
        self.broadcast(places, &[&places.of.dims[..], &[1]].concat(), &axes)
    }

    fn scatter(&mut self, value: &Value, at: &Value, updates: &Value, dimensions: &str) -> Value {
        let element: Element = value.of.element;
        let sum = format!("%sum = stablehlo.add %a, %b : tensor<{element}>\n        stablehlo.return %sum");
        self.scatter_by(&sum, (value, at, updates), dimensions)
    }

    /// A scatter in which `body`, but for its type, makes one of two: what is there, `%a`, and what comes, `%b`.
    pub(super) fn scatter_by(
        &mut self,
        body: &str,
        (value, at, updates): (&Value, &Value, &Value),
        dimensions: &str,
    ) -> Value {
        let element: Element = value.of.element;
        let body = format!("^bb0(%a: tensor<{element}>, %b: tensor<{element}>):\n        {body} : tensor<{element}>");
        let after = format!(
            "\"stablehlo.scatter\"({value}, {at}, {updates}) <{{indices_are_sorted = false, scatter_dimension_numbers = {dimensions}, unique_indices = false}}> ({{\n      {body}\n    }})"
        );
        let types = format!("({}, {}, {}) -> {}", value.of, at.of, updates.of, value.of);
        self.line(value.of.clone(), &after, &types)
    }
}
