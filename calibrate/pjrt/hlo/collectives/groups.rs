//! Who takes part in a collective, written out.
//!
//! Compilers say it in four ways: as a list; as numbers counted up in one shape, transposed and cut into rows; as axes of a
//! mesh; and not at all, which means everybody.

use super::super::{Along, Group, Instruction, Iota};

/// The groups, or a permutation's pairs. Empty if they are said in a way that is not known here.
pub fn of(instruction: &Instruction, devices: u64) -> Vec<Vec<u64>> {
    let number = |id: &i64| id.cast_unsigned();
    if !instruction.pairs.is_empty() {
        return instruction.pairs.iter().map(|pair| vec![number(&pair.source), number(&pair.target)]).collect();
    }
    let listed = |groups: &[Group]| -> Vec<Vec<u64>> {
        groups.iter().map(|group| group.ids.iter().map(number).collect()).collect()
    };
    let listing = instruction.devices.as_ref();
    let rule = instruction.iota.as_ref().or_else(|| listing?.iota.as_ref());
    let groups = match (rule, &instruction.along) {
        (Some(rule), _) => spread(rule),
        (None, Some(along)) => lines(along),
        (None, None) => listed(listing.map_or(&instruction.groups, |listing| &listing.groups)),
    };
    if groups.is_empty() && !instruction.by_device { vec![(0..devices).collect()] } else { groups }
}

/// Numbers counted up in one shape, transposed, and cut into rows.
fn spread(iota: &Iota) -> Vec<Vec<u64>> {
    let shape: Vec<u64> = iota.reshape.iter().map(|length| length.cast_unsigned().max(1)).collect();
    let order: Vec<usize> = match iota.transpose.is_empty() {
        true => (0..shape.len()).collect(),
        false => iota.transpose.iter().filter_map(|axis| usize::try_from(*axis).ok()).collect(),
    };
    rows(&transposed(&shape, &order), iota.devices.cast_unsigned())
}

/// Devices that differ along some axes of a mesh only.
fn lines(along: &Along) -> Vec<Vec<u64>> {
    let Some(mesh) = &along.mesh else { return vec![] };
    // Each axis becomes several: what lies before a part that is referred to, the part, and what is left.
    let mut shape = vec![];
    let mut chosen = vec![];
    for (index, axis) in mesh.axes.iter().enumerate() {
        let size = axis.size.cast_unsigned();
        let mut parts: Vec<(u64, u64, usize)> = vec![];
        for (place, refers) in along.axes.iter().enumerate().filter(|(_, refers)| refers.index == index as i64) {
            let (before, length) =
                refers.part.as_ref().map_or((1, size), |part| (part.before.cast_unsigned(), part.size.cast_unsigned()));
            parts.push((before.max(1), length.max(1), place));
        }
        parts.sort_unstable();
        let mut done = 1;
        for (before, length, place) in parts {
            shape.push(before / done);
            chosen.push((place, shape.len()));
            shape.push(length);
            done = before * length;
        }
        shape.push(size / done.max(1));
    }
    chosen.sort_unstable();
    let last: Vec<usize> = chosen.iter().map(|(_, axis)| *axis).collect();
    let first = (0..shape.len()).filter(|axis| !last.contains(axis));
    let order: Vec<usize> = first.chain(last.iter().copied()).collect();
    let members = last.iter().map(|axis| shape[*axis]).product();
    let device = |at: u64| {
        let named = usize::try_from(at).ok().and_then(|at| mesh.devices.get(at));
        named.map_or(at, |device| device.cast_unsigned())
    };
    rows(&transposed(&shape, &order).into_iter().map(device).collect::<Vec<_>>(), members)
}

/// Numbers counted up in a shape, in the order that they have when its axes stand in another.
fn transposed(shape: &[u64], order: &[usize]) -> Vec<u64> {
    let stride = |axis: usize| shape.iter().skip(axis + 1).product::<u64>();
    let number = |at: u64| {
        let mut rest = at;
        order.iter().rev().fold(0, |sum, axis| {
            let length = shape.get(*axis).copied().unwrap_or(1).max(1);
            let place = rest % length;
            rest /= length;
            sum + place * stride(*axis)
        })
    };
    (0..shape.iter().product()).map(number).collect()
}

fn rows(ids: &[u64], length: u64) -> Vec<Vec<u64>> {
    ids.chunks(usize::try_from(length).unwrap_or(1).max(1)).map(<[u64]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::{Axis, AxisRef, Mesh, Part};
    use super::*;

    #[test]
    fn a_rule_writes_out_the_groups_that_hlo_text_means_by_it() {
        let iota = |groups, devices, reshape: &[i64], transpose: &[i32]| {
            spread(&Iota { groups, devices, reshape: reshape.to_vec(), transpose: transpose.to_vec() })
        };
        // [2,4]<=[8]
        assert_eq!(iota(2, 4, &[8], &[0]), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        // [4,2]<=[2,4]T(1,0): columns of a 2x4 grid.
        assert_eq!(iota(4, 2, &[2, 4], &[1, 0]), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    }

    fn along(sizes: &[i64], axes: &[(i64, Option<(i64, i64)>)]) -> Vec<Vec<u64>> {
        let part = |(before, size): (i64, i64)| Part { before, size };
        lines(&Along {
            mesh: Some(Mesh { axes: sizes.iter().map(|size| Axis { size: *size }).collect(), devices: vec![] }),
            axes: axes.iter().map(|(index, of)| AxisRef { index: *index, part: of.map(part) }).collect(),
        })
    }

    #[test]
    fn along_an_axis_are_those_that_differ_in_it_alone() {
        assert_eq!(along(&[2, 3], &[(1, None)]), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(along(&[2, 3], &[(0, None)]), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(along(&[2, 2], &[(0, None), (1, None)]), [[0, 1, 2, 3]]);
        assert_eq!(along(&[2, 2], &[(1, None), (0, None)]), [[0, 2, 1, 3]]);
    }

    #[test]
    fn a_part_of_an_axis_is_an_axis() {
        // Of eight as (2)x4: the slow half, and the fast rest.
        assert_eq!(along(&[8], &[(0, Some((2, 4)))]), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(along(&[8], &[(0, Some((1, 2)))]), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    }
}
