//! Shapes in the text of an HLO instruction: "%dot.3 = bf16[8,128]{1,0} dot(bf16[8,64]{1,0} %a, bf16[64,128]{1,0} %b), …".

use super::super::draft::Draft;
use super::super::id::Id;
use super::super::parts::{Arg, Signature, Tensor};

/// Element types of HLO and their bits.
const TYPES: [(&str, u64); 20] = [
    ("pred", 8),
    ("s4", 4),
    ("u4", 4),
    ("s8", 8),
    ("u8", 8),
    ("s16", 16),
    ("u16", 16),
    ("s32", 32),
    ("u32", 32),
    ("s64", 64),
    ("u64", 64),
    ("f8e4m3fn", 8),
    ("f8e5m2", 8),
    ("f8e4m3b11fnuz", 8),
    ("f16", 16),
    ("bf16", 16),
    ("f32", 32),
    ("f64", 64),
    ("c64", 64),
    ("c128", 128),
];

/// Shapes of what an instruction writes and reads.
pub(super) fn shapes(draft: &mut Draft, text: &str) -> (Option<Id<Signature>>, Option<Id<Signature>>) {
    let Some((_, rest)) = text.split_once(" = ") else { return (None, None) };
    // The operation's name stands before the bracket that follows a word; those of tuples and layouts follow other things.
    let mut depth = 0i32;
    let mut open = None;
    let bytes = rest.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'(' if depth == 0 && at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'-') => {
                open = Some(at);
                break;
            }
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    let Some(open) = open else { return (None, None) };
    let (results, operands) = rest.split_at(open);
    let mut depth = 0i32;
    let end = operands.bytes().position(|byte| {
        depth += i32::from(byte == b'(') - i32::from(byte == b')');
        depth == 0
    });
    let operands = &operands[..end.unwrap_or(operands.len())];
    (signature(draft, results), signature(draft, operands))
}

/// All shapes in a text, as a signature.
fn signature(draft: &mut Draft, text: &str) -> Option<Id<Signature>> {
    let mut args = vec![];
    for (at, _) in text.match_indices('[') {
        let start = text[..at].rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |before| before + 1);
        let kind = &text[start..at];
        let Some(end) = text[at..].find(']') else { break };
        if !TYPES.iter().any(|&(name, _)| name == kind) {
            continue;
        }
        let dims = &text[at + 1..at + end];
        let sizes: Result<Vec<u64>, _> =
            dims.split(',').filter(|size| !size.is_empty()).map(|size| size.trim_start_matches("<=").parse()).collect();
        let Ok(dims) = sizes else { continue };
        let kind = Some(draft.names.id(kind));
        args.push(Arg { kind, tensors: vec![Tensor { dims, strides: vec![] }], is_list: false, value: None });
    }
    if args.is_empty() {
        return None;
    }
    draft.trace.signatures.push(Signature { args });
    Some(Id::new(draft.trace.signatures.len() - 1))
}

/// Bytes of all tensors of a signature.
pub(super) fn bytes(draft: &Draft, id: Id<Signature>) -> u64 {
    let bits = |kind: &str| TYPES.iter().find(|&&(name, _)| name == kind).map_or(0, |&(_, bits)| bits);
    let mut all = 0u64;
    for arg in &draft.trace.signatures[id.at()].args {
        let bits = arg.kind.map_or(0, |kind| bits(draft.names.get(kind)));
        for tensor in &arg.tensors {
            let size = tensor.dims.iter().fold(bits, |all, &size| all.saturating_mul(size)).div_ceil(8);
            all = all.saturating_add(size);
        }
    }
    all
}

/// Ranks of a group: 2 in `replica_groups=[4,2]<=[8]`, 3 in `replica_groups={{0,1,2},{3,4,5}}`.
pub(super) fn group_size(text: &str) -> Option<u32> {
    let rest = text.split("replica_groups=").nth(1)?;
    if let Some(groups) = rest.strip_prefix('[') {
        return groups.split(']').next()?.rsplit(',').next()?.parse().ok();
    }
    let first = rest.strip_prefix("{{")?.split('}').next()?;
    u32::try_from(first.split(',').count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_tells_what_it_reads_and_writes() {
        let mut draft = Draft::default();
        let text = "%all-gather.1 = (f32[4,2]{1,0:T(8,128)}, bf16[8]{0}) all-gather(f32[2,2]{1,0:T(8,128)} %bitcast, bf16[4]{0} %p), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}";
        let (results, operands) = shapes(&mut draft, text);
        let (results, operands) = (results.expect("it has results"), operands.expect("it has operands"));
        assert_eq!((bytes(&draft, results), bytes(&draft, operands)), (32 + 16, 16 + 8));
        assert_eq!(group_size(text), Some(2));
        assert_eq!(group_size("replica_groups={{0,1,2},{3,4,5}}"), Some(3));
        assert_eq!(group_size("replica_groups={}"), None);
        assert_eq!(shapes(&mut draft, "%x = f32[] constant"), (None, None));
    }
}
