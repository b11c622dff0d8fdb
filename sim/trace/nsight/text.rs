//! Texts of NVTX ranges. PyTorch's `emit_nvtx` writes "aten::linear, seq = 12, op_id = 7, sizes = [[8, 4]], input_op_ids = […]".

/// What a range's text says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range<'a> {
    /// Its name, without numbers that differ from call to call.
    pub name: &'a str,
    /// Autograd's number.
    pub sequence: Option<u32>,
    /// Sizes of arguments, as JSON.
    pub sizes: Option<&'a str>,
    /// Whether it is an operator of PyTorch.
    pub is_operator: bool,
    /// Whether it belongs to a backward pass.
    pub is_backward: bool,
}

impl<'a> Range<'a> {
    /// Reads a text.
    pub(super) fn parse(text: &'a str) -> Range<'a> {
        let marks = [", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "];
        let end = marks.iter().filter_map(|mark| text.find(mark)).min();
        let name = &text[..end.unwrap_or(text.len())];
        let after = |mark: &str| text.find(mark).map(|at| &text[at + mark.len()..]);
        let until =
            |rest: &'a str| marks.iter().filter_map(|mark| rest.find(mark)).min().map_or(rest, |at| &rest[..at]);
        let is_backward = name.starts_with("autograd::engine::evaluate_function") || name.contains("Backward");
        Range {
            name,
            sequence: after(marks[0]).and_then(|rest| until(rest).trim().parse().ok()),
            sizes: after(marks[2]).map(|rest| until(rest).trim()),
            is_operator: end.is_some() || name.starts_with("aten::"),
            is_backward: is_backward && end.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_pytorch_are_told_from_ranges_of_users() {
        let range = Range::parse("aten::linear, seq = 12, op_id = 7, sizes = [[8, 4], []], input_op_ids = [[1,0]]");
        let expected = Range {
            name: "aten::linear",
            sequence: Some(12),
            sizes: Some("[[8, 4], []]"),
            is_operator: true,
            is_backward: false,
        };
        assert_eq!(range, expected);
        let range = Range::parse("Forward, the first");
        assert_eq!((range.name, range.is_operator), ("Forward, the first", false));
        assert!(Range::parse("MmBackward0, seq = 3").is_backward);
    }
}
