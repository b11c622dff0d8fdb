//! Writes a module's operators down, one after the other.

use super::{Axis, Dims, Graph, Op, OpKind, Param, ParamId, Recomputed, Role, Value, ValueId, order};
use crate::model::operators::Activation;
use crate::program::{DType, Owner};

/// Writes a [`Graph`].
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    compute: DType,
    /// Whether operators now run on a side stream.
    side_stream: bool,
    /// The part of the model that operators now belong to.
    owner: Owner,
    /// Operators whose backward comes as early as it can.
    early: Vec<usize>,
}

impl GraphBuilder {
    /// A graph whose input has the given name, shape and type.
    pub fn new(
        name: &'static str,
        dims: Dims,
        compute: DType,
        input: (&'static str, &'static [Axis], DType),
    ) -> (Self, ValueId) {
        let graph = Graph {
            name,
            dims,
            values: vec![],
            ops: vec![],
            params: vec![],
            output: 0,
            causal: true,
            recomputed: vec![],
            order: vec![],
            needs: vec![],
        };
        let mut builder = GraphBuilder { graph, compute, side_stream: false, owner: Owner::Rest, early: vec![] };
        let value = builder.value_of(input.0, input.1, input.2);
        (builder, value)
    }

    /// The type matmuls run in.
    pub fn compute(&self) -> DType {
        self.compute
    }

    /// Sizes.
    pub fn dims(&self) -> Dims {
        self.graph.dims
    }

    /// A further input, which the caller puts in place.
    pub fn input(&mut self, name: &'static str, shape: &'static [Axis], dtype: DType) -> ValueId {
        self.value_of(name, shape, dtype)
    }

    fn value_of(&mut self, name: &'static str, shape: &'static [Axis], dtype: DType) -> ValueId {
        let elements = self.graph.dims.elements(shape);
        self.graph.values.push(Value { name, shape, elements, dtype });
        self.graph.values.len() - 1
    }

    /// Registers the weight of a linear, or of one column a vector, in the order the module would.
    pub fn param(&mut self, name: &'static str, rows: u64, cols: u64) -> ParamId {
        self.register(Param::of(name, (rows, cols), Role::Matrix))
    }

    /// Registers a table with a row for each word or position: an embedding, or the head.
    pub fn table(&mut self, name: &'static str, rows: u64, cols: u64) -> ParamId {
        self.register(Param::of(name, (rows, cols), Role::Table))
    }

    /// Registers a parameter of one routed expert.
    pub fn expert(&mut self, name: &'static str, rows: u64, cols: u64) -> ParamId {
        self.register(Param::of(name, (rows, cols), Role::Expert))
    }

    /// Registers the weights of `count` routed experts of so many rows and columns each, one behind the other.
    pub fn experts(&mut self, name: &'static str, count: u64, each: (u64, u64)) -> ParamId {
        self.register(Param::of_experts(name, count, each))
    }

    /// Registers one of the two narrow matrices beside a frozen weight.
    pub fn adapter(&mut self, name: &'static str, rows: u64, cols: u64) -> ParamId {
        self.register(Param { role: Role::Adapter, ..Param::of(name, (rows, cols), Role::Adapter) })
    }

    fn register(&mut self, param: Param) -> ParamId {
        self.graph.params.push(param);
        self.graph.params.len() - 1
    }

    /// An operator with one output in the compute type.
    pub fn op(
        &mut self,
        module: &'static str,
        kind: OpKind,
        inputs: &[ValueId],
        params: &[ParamId],
        output: (&'static str, &'static [Axis]),
    ) -> ValueId {
        let dtype = self.compute;
        self.op_in(module, kind, inputs, params, output, dtype)
    }

    /// An operator with one output in a stated type.
    pub fn op_in(
        &mut self,
        module: &'static str,
        kind: OpKind,
        inputs: &[ValueId],
        params: &[ParamId],
        output: (&'static str, &'static [Axis]),
        dtype: DType,
    ) -> ValueId {
        let value = self.value_of(output.0, output.1, dtype);
        self.push(module, kind, inputs, params, vec![value]);
        value
    }

    /// An operator with several outputs, each with its type.
    pub fn op_many<const COUNT: usize>(
        &mut self,
        module: &'static str,
        kind: OpKind,
        inputs: &[ValueId],
        outputs: [(&'static str, &'static [Axis], DType); COUNT],
    ) -> [ValueId; COUNT] {
        self.op_all(module, kind, inputs, &[], outputs)
    }

    /// An operator with parameters and several outputs, each with its type.
    pub fn op_all<const COUNT: usize>(
        &mut self,
        module: &'static str,
        kind: OpKind,
        inputs: &[ValueId],
        params: &[ParamId],
        outputs: [(&'static str, &'static [Axis], DType); COUNT],
    ) -> [ValueId; COUNT] {
        let values = outputs.map(|(name, shape, dtype)| self.value_of(name, shape, dtype));
        self.push(module, kind, inputs, params, values.to_vec());
        values
    }

    /// The latest operator also reads a parameter.
    pub fn reads(&mut self, param: ParamId) {
        if let Some(op) = self.graph.ops.last_mut() {
            op.params.push(param);
        }
    }

    /// The kernels of an activation, one after the other, of which Python names no result but the last.
    pub fn activation(
        &mut self,
        module: &'static str,
        activation: Activation,
        input: ValueId,
        output: (&'static str, &'static [Axis]),
    ) -> ValueId {
        let mut value = input;
        for &kernel in activation.kernels() {
            let made = self.op(module, OpKind::Simple(kernel), &[value], &[], output);
            self.resize(made, self.elements(input));
            if value != input {
                self.drop_values(&[value]);
            }
            value = made;
        }
        value
    }

    /// Several views of one value.
    pub fn split<const COUNT: usize>(
        &mut self,
        module: &'static str,
        input: ValueId,
        outputs: [(&'static str, &'static [Axis]); COUNT],
    ) -> [ValueId; COUNT] {
        let dtype = self.graph.values[input].dtype;
        let values = outputs.map(|(name, shape)| self.value_of(name, shape, dtype));
        self.push(module, OpKind::Split, &[input], &[], values.to_vec());
        values
    }

    /// Views of one value as `count` parts of one name.
    pub fn split_many(
        &mut self,
        module: &'static str,
        input: ValueId,
        output: (&'static str, &'static [Axis]),
        count: usize,
    ) -> Vec<ValueId> {
        let dtype = self.graph.values[input].dtype;
        let values: Vec<ValueId> = (0..count).map(|_| self.value_of(output.0, output.1, dtype)).collect();
        self.push(module, OpKind::Split, &[input], &[], values.clone());
        values
    }

    /// Dimension 0 of a parameter.
    pub fn rows(&self, param: ParamId) -> u64 {
        self.graph.params[param].rows
    }

    /// Elements of a value.
    pub fn elements(&self, value: ValueId) -> u64 {
        self.graph.values[value].elements
    }

    /// Gives a value a number of elements other than its axes': a part of the tokens.
    pub fn resize(&mut self, value: ValueId, elements: u64) {
        self.graph.values[value].elements = elements;
    }

    /// Operators so far.
    pub fn ops(&self) -> usize {
        self.graph.ops.len()
    }

    fn push(
        &mut self,
        module: &'static str,
        kind: OpKind,
        inputs: &[ValueId],
        params: &[ParamId],
        outputs: Vec<ValueId>,
    ) {
        let (inputs, params, side_stream) = (inputs.to_vec(), params.to_vec(), self.side_stream);
        let op = Op { kind, module, inputs, outputs, params, drops: vec![], side_stream, owner: self.owner };
        self.graph.ops.push(op);
    }

    /// Python lets go of these values after the latest operator, in this order.
    pub fn drop_values(&mut self, values: &[ValueId]) {
        if let Some(op) = self.graph.ops.last_mut() {
            op.drops.extend_from_slice(values);
        }
    }

    /// All operators from `first` on are recomputed in backward.
    pub fn recompute_from(&mut self, first: usize) {
        self.graph.recomputed.push(Recomputed { ops: first..self.ops(), until: None });
    }

    /// These operators are recomputed in backward, and their results let go of now, until backward comes to the latest operator.
    pub fn let_go_of(&mut self, ops: std::ops::Range<usize>) {
        self.graph.recomputed.push(Recomputed { ops, until: Some(self.ops() - 1) });
    }

    /// What is written from here on belongs to a part of the model; the part before.
    pub fn belong(&mut self, owner: Owner) -> Owner {
        std::mem::replace(&mut self.owner, owner)
    }

    /// What is written runs on a side stream.
    pub fn on_side_stream<T>(&mut self, write: impl FnOnce(&mut GraphBuilder) -> T) -> T {
        let before = std::mem::replace(&mut self.side_stream, true);
        let made = write(self);
        self.side_stream = before;
        made
    }

    /// The latest operator's backward comes as soon as the gradient of its result is there (`Node._set_sequence_nr`).
    pub fn comes_early(&mut self) {
        self.early.extend(self.ops().checked_sub(1));
    }

    /// The finished graph.
    pub fn finish(mut self, output: ValueId) -> Graph {
        self.graph.output = output;
        if !self.early.is_empty() {
            self.graph.order = order::backward(&self.graph.ops, &self.early);
        }
        self.graph
    }
}
