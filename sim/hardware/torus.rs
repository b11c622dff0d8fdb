//! How a group of ranks lies on slices of a torus: which axes it runs along, and who shares their links.
//!
//! JAX lays the logical axes of a mesh on the physical axes of a slice (`jax/_src/mesh_utils.py`,
//! `create_device_mesh`), and MaxText and torch_xla take its answer. The last logical axis talks most and chooses first:
//! whole physical axes if their sizes multiply to its own, as many as possible; if none do, physical axes are split
//! (`allow_split_physical_axes`) and the later logical axis lies inside. Small slices are one ring instead, walked around
//! the grid: 2x2 and 2x4 always, 4x4 where one logical axis holds all of it.
//!
//! JAX shows a chip of TPU7x as two devices. They are one more physical axis, the last and the fastest, which the last logical
//! axis chooses first (jax 0.12: `priority_map`). Slices of 2x2 by at most four have a ring of their four chips in each plane,
//! both devices of a chip side by side, and the mesh counts through them in this order (`_7x_create_device_mesh`).
//!
//! ```text
//! mesh on 4x4         group of           lines
//! 16                  16                 16 around
//! 4 x 4               last axis          4 (first physical axis)
//! 4 x 4               first axis         4 (second physical axis)
//! 2 x 2 x 4           middle axis        2, neighbours, half of an axis
//! 2 x 2 x 4           first axis         2, every second chip of an axis: two groups share its links
//! ```

use super::{Axis, Topology};

/// Physical axes of a slice at most, devices of a chip aside.
pub const AXES: usize = 3;

/// A slice as JAX sees it.
#[derive(Clone, Copy, Debug)]
pub struct Grid<'a> {
    /// Axes of chips.
    pub axes: &'a [Axis],
    /// Devices of a chip.
    pub devices: u32,
}

/// What a group occupies of one physical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    /// Members along it; 1 where the group does not extend along it.
    pub members: u32,
    /// Whether the last is joined to the first.
    pub wraps: bool,
    /// Groups that use the same links at once: the members are this far apart.
    pub sharing: u32,
}

/// How a group lies on slices of a torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OnTorus {
    /// Along each physical axis of one slice.
    pub lines: [Line; AXES],
    /// Members on one chip.
    pub on_chip: u32,
    /// Groups that a chip's devices belong to, which share its links.
    pub beside: u32,
    /// Slices that the group spans, with as many members in each.
    pub slices: u32,
}

impl Line {
    const NONE: Line = Line { members: 1, wraps: false, sharing: 1 };
}

impl OnTorus {
    /// Chips in one slice that have members.
    pub fn chips(&self) -> u32 {
        self.lines.iter().map(|line| line.members).product()
    }

    /// Members in one slice.
    pub fn members(&self) -> u32 {
        self.chips() * self.on_chip
    }

    /// Members side by side on one open line of each slice.
    pub fn chain(members: u32, slices: u32) -> OnTorus {
        let line = Line { members: members.max(1), ..Line::NONE };
        OnTorus { lines: [line, Line::NONE, Line::NONE], on_chip: 1, beside: 1, slices: slices.max(1) }
    }
}

/// How logical axes lie on physical ones: `sizes[physical][logical]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The physical axes as the mesh sees them: those of the slice, or rings walked around it; devices of a chip last.
    pub axes: Vec<Axis>,
    /// Devices of a chip.
    devices: u32,
    /// Devices of each physical axis, by row, that each logical axis has.
    pub sizes: Vec<Vec<u32>>,
    /// Whether a physical axis had to be split between logical ones, which JAX refuses unless told
    /// (`allow_split_physical_axes`).
    pub split: bool,
}

/// Lays a mesh, its sizes from the outermost axis to the innermost, on the axes of a slice; none if their products differ.
pub fn assign(grid: Grid<'_>, mesh: &[u32]) -> Option<Assignment> {
    let devices = grid.devices;
    if mesh.iter().try_fold(1_u32, |product, &size| product.checked_mul(size)) != Some(grid.ranks()) {
        return None;
    }
    if let Some(axes) = in_planes(grid) {
        return Some(Assignment { sizes: counted(&axes, mesh)?, axes, devices, split: false });
    }
    let axes = match devices {
        1 => walked(grid.axes, mesh),
        _ => grid.axes.iter().copied().chain([Axis { size: devices, wraps: false }]).collect(),
    };
    let first = (devices > 1).then(|| axes.len() - 1);
    let whole = whole_axes(&axes, mesh, first);
    let split = whole.is_none();
    let sizes = whole.or_else(|| split_axes(&axes, mesh))?;
    Some(Assignment { axes, devices, sizes, split })
}

impl Grid<'_> {
    /// Ranks of one slice.
    pub fn ranks(&self) -> u32 {
        self.axes.iter().map(|axis| axis.size).product::<u32>().saturating_mul(self.devices)
    }
}

/// Planes of 2x2 chips of several devices as the rings that JAX walks around them, and how these are stacked; none of others.
fn in_planes(grid: Grid<'_>) -> Option<Vec<Axis>> {
    let [Axis { size: 2, .. }, Axis { size: 2, .. }, planes] = *grid.axes else { return None };
    let ring = Axis { size: 4, wraps: true };
    (grid.devices > 1 && grid.ranks() <= 32).then(|| vec![planes, ring, Axis { size: grid.devices, wraps: false }])
}

/// Parts of physical axes for each logical one where the mesh just counts through them, the last first; none where a logical axis
/// ends inside of a part.
fn counted(axes: &[Axis], mesh: &[u32]) -> Option<Vec<Vec<u32>>> {
    let mut sizes = vec![vec![1; mesh.len()]; axes.len()];
    let mut left: Vec<u32> = axes.iter().map(|axis| axis.size).collect();
    for (logical, &size) in mesh.iter().enumerate().rev() {
        let mut more = size;
        for (row, left) in sizes.iter_mut().zip(&mut left).rev() {
            let part = (*left).min(more);
            if !(left.is_multiple_of(part) && more.is_multiple_of(part)) {
                return None;
            }
            (row[logical], *left, more) = (part, *left / part, more / part);
        }
    }
    Some(sizes)
}

/// Small slices as the ring that JAX walks around them.
fn walked(axes: &[Axis], mesh: &[u32]) -> Vec<Axis> {
    let mut shape: Vec<u32> = axes.iter().map(|axis| axis.size).filter(|&size| size > 1).collect();
    shape.sort_unstable();
    let chips: u32 = shape.iter().product();
    let all_in_one = mesh.contains(&chips);
    match shape.as_slice() {
        [2, 2] | [2, 4] | [2, 2, 2] => vec![Axis { size: chips, wraps: true }],
        [4, 4] if all_in_one => vec![Axis { size: chips, wraps: true }],
        _ => axes.to_vec(),
    }
}

/// Whole physical axes for each logical one, the last first; none if some logical axis finds none. Sets with the physical axis
/// `first`, which is faster than the others, come before those without.
fn whole_axes(axes: &[Axis], mesh: &[u32], first: Option<usize>) -> Option<Vec<Vec<u32>>> {
    let mut sizes = vec![vec![1; mesh.len()]; axes.len()];
    let mut free: Vec<bool> = vec![true; axes.len()];
    for (logical, &size) in mesh.iter().enumerate().rev() {
        if size == 1 {
            continue;
        }
        // Subsets of physical axes, the larger first, then in the order in which they are counted.
        let mut subsets: Vec<u32> = (1..1_u32 << axes.len()).collect();
        let members = |set: u32| (0..axes.len()).filter(move |axis| set & (1 << axis) != 0);
        // The fast axis ranks 0, the others 1, 2, 3: the best of a set decides, then their sum, then the order.
        let rank = |axis: usize| first.map_or(0, |first| if axis == first { 0 } else { axis + 1 });
        let ranks = |set: u32| (members(set).map(rank).min(), members(set).map(rank).sum::<usize>());
        let key = |&set: &u32| (usize::MAX - set.count_ones() as usize, ranks(set), members(set).collect::<Vec<_>>());
        subsets.sort_by_key(key);
        let fits = |&set: &u32| {
            members(set).all(|axis| free[axis]) && members(set).map(|axis| axes[axis].size).product::<u32>() == size
        };
        let chosen = subsets.into_iter().find(fits)?;
        for axis in members(chosen) {
            sizes[axis][logical] = axes[axis].size;
            free[axis] = false;
        }
    }
    Some(sizes)
}

/// Parts of physical axes for each logical one, the last first, by JAX's order of preference: more of whole axes, more
/// whole axes, more of axes already begun (its code says so, its comment the opposite), more of the first axis.
fn split_axes(axes: &[Axis], mesh: &[u32]) -> Option<Vec<Vec<u32>>> {
    let mut sizes = vec![vec![1; mesh.len()]; axes.len()];
    for (logical, &size) in mesh.iter().enumerate().rev() {
        let taken: Vec<u32> = sizes.iter().map(|row| row.iter().product()).collect();
        let left: Vec<u32> = axes.iter().zip(&taken).map(|(axis, taken)| axis.size / taken).collect();
        let mut feasible = vec![];
        factor(&left, size, &mut vec![], &mut feasible);
        let preference = |parts: &Vec<u32>| {
            let whole = |axis: &usize| parts[*axis] == axes[*axis].size;
            let of_whole: u32 = (0..axes.len()).filter(whole).map(|axis| parts[axis]).product();
            let wholes = (0..axes.len()).filter(whole).filter(|&axis| parts[axis] > 1).count();
            let begun: u32 = (0..axes.len()).filter(|&axis| taken[axis] > 1).map(|axis| parts[axis]).product();
            (of_whole, wholes, begun, parts.clone())
        };
        let best = feasible.into_iter().max_by_key(preference)?;
        for (row, part) in sizes.iter_mut().zip(best) {
            row[logical] = part;
        }
    }
    Some(sizes)
}

/// All ways to write `size` as a product of one divisor of each of `left`.
fn factor(left: &[u32], size: u32, parts: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
    let Some((&first, rest)) = left.split_first() else {
        if size == 1 {
            found.push(parts.clone());
        }
        return;
    };
    for part in (1..=first).filter(|part| first.is_multiple_of(*part) && size.is_multiple_of(*part)) {
        parts.push(part);
        factor(rest, size / part, parts, found);
        parts.pop();
    }
}

impl Assignment {
    /// What the group of logical axes `from..to` occupies.
    fn on(&self, from: usize, to: usize) -> OnTorus {
        let mut lines = [Line::NONE; AXES];
        let own = self.axes.len() - usize::from(self.devices > 1);
        let on_chip = self.sizes.get(own).map_or(1, |row| row[from..to].iter().product());
        for ((line, axis), row) in lines.iter_mut().zip(&self.axes[..own]).zip(&self.sizes) {
            let members: u32 = row[from..to].iter().product();
            let sharing: u32 = row[to..].iter().product();
            let wraps = axis.wraps && members * sharing == axis.size && members > 2;
            if members > 1 {
                *line = Line { members, wraps, sharing };
            }
        }
        OnTorus { lines, on_chip, beside: self.devices / on_chip, slices: 1 }
    }
}

impl Topology {
    /// How a group of `size` ranks, `stride` apart, lies on the slices; none where the machine is no torus. `mesh` holds
    /// the sizes of the logical axes within one slice, outermost first; without the right ones the group itself is taken
    /// as one axis between two others.
    #[doc(hidden)]
    pub fn on_torus(&self, size: u32, stride: u32, mesh: &[u32]) -> Option<OnTorus> {
        let grid = self.grid()?;
        let ranks = grid.ranks();
        let (size, stride) = (size.max(1), stride.max(1));
        // Ranks count through a slice before they go on to the next.
        let span = size.saturating_mul(stride);
        let (inside, slices) = match (stride >= ranks, span > ranks) {
            (true, _) => (1, size),
            (false, false) => (size, 1),
            (false, true) => ((ranks / stride).max(1), span.div_ceil(ranks)),
        };
        let on = on_slice(grid, mesh, inside, stride);
        Some(OnTorus { slices, ..on.unwrap_or(OnTorus { beside: grid.devices, ..OnTorus::chain(inside, 1) }) })
    }

    /// A slice as JAX sees it, where the machine is a torus.
    pub fn grid(&self) -> Option<Grid<'_>> {
        self.axes().map(|axes| Grid { axes, devices: self.chip.devices })
    }
}

/// What a group of `size` ranks, `stride` apart, occupies of one slice.
fn on_slice(grid: Grid<'_>, mesh: &[u32], size: u32, stride: u32) -> Option<OnTorus> {
    if size == 1 {
        return Some(OnTorus { beside: grid.devices, ..OnTorus::chain(1, 1) });
    }
    // The logical axes inside the group multiply to its stride, its own to its size.
    let product = |from: usize, to: usize| mesh[from..to].iter().product::<u32>();
    let to = (0..=mesh.len()).find(|&to| product(to, mesh.len()) == stride);
    let from = to.and_then(|to| (0..to).rev().find(|&from| product(from, to) == size));
    if let (Some(from), Some(to)) = (from, to)
        && let Some(assignment) = assign(grid, mesh)
    {
        return Some(assignment.on(from, to));
    }
    let outside = grid.ranks().checked_div(size.checked_mul(stride)?)?;
    Some(assign(grid, &[outside, size, stride])?.on(1, 2))
}

#[cfg(test)]
mod tests;
