//! Meshes of devices, and how arrays lie on them, in Shardy's notation.

use super::Type;

/// Devices along named axes; they are numbered with the last axis fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    axes: Vec<(String, u64)>,
}

impl Mesh {
    /// Axes, slowest first.
    pub fn new(axes: impl IntoIterator<Item = (impl Into<String>, u64)>) -> Self {
        Self { axes: axes.into_iter().map(|(name, size)| (name.into(), size)).collect() }
    }

    /// All devices.
    pub fn devices(&self) -> u64 {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Devices along an axis; 1 for one that is not there.
    pub fn size(&self, axis: &str) -> u64 {
        self.axes.iter().find(|(name, _)| name == axis).map_or(1, |(_, size)| *size)
    }

    /// Names of the axes, slowest first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|(name, _)| name.as_str())
    }

    /// Devices in groups, each along these axes.
    pub(super) fn groups(&self, along: &[String]) -> Vec<Vec<u64>> {
        let mut groups: std::collections::BTreeMap<Vec<u64>, Vec<u64>> = Default::default();
        for device in 0..self.devices() {
            let (mut rest, mut others) = (device, vec![]);
            for (name, size) in self.axes.iter().rev() {
                if !along.contains(name) {
                    others.push(rest % size);
                }
                rest /= size;
            }
            others.reverse();
            groups.entry(others).or_default().push(device);
        }
        groups.into_values().collect()
    }

    /// The line that declares it.
    pub(super) fn declaration(&self) -> String {
        let axes: Vec<String> = self.axes.iter().map(|(name, size)| format!("{name:?}={size}")).collect();
        format!("sdy.mesh @mesh = <[{}]>", axes.join(", "))
    }
}

/// How an array is split: for each of its axes the mesh axes that share it, the slowest first; none for a whole one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec(pub Vec<Vec<String>>);

impl Spec {
    /// Of at most one mesh axis for each axis; an empty name leaves it whole.
    pub fn new(axes: &[&str]) -> Self {
        Self(axes.iter().map(|axis| if axis.is_empty() { vec![] } else { vec![(*axis).to_owned()] }).collect())
    }

    /// Whole on every device.
    pub fn replicated(axes: usize) -> Self {
        Self(vec![vec![]; axes])
    }

    /// What a device has of an array.
    pub fn piece(&self, whole: &Type, mesh: &Mesh) -> Type {
        let cut = |(length, axes): (&u64, &Vec<String>)| length / Self::parts(axes, mesh);
        Type::new(whole.element, whole.dims.iter().zip(&self.0).map(cut).collect::<Vec<_>>())
    }

    /// The array that devices have such pieces of.
    pub fn whole(&self, piece: &Type, mesh: &Mesh) -> Type {
        let all = |(length, axes): (&u64, &Vec<String>)| length * Self::parts(axes, mesh);
        Type::new(piece.element, piece.dims.iter().zip(&self.0).map(all).collect::<Vec<_>>())
    }

    fn parts(axes: &[String], mesh: &Mesh) -> u64 {
        axes.iter().map(|axis| mesh.size(axis)).product()
    }

    /// The same with a whole axis before the others: of arrays that are stacked.
    pub fn stacked(&self) -> Self {
        Self([&[vec![]], &self.0[..]].concat())
    }

    /// As Shardy writes it; it says where the array lies and leaves nothing to the compiler.
    pub(super) fn text(&self) -> String {
        let quoted = |axes: &Vec<String>| axes.iter().map(|axis| format!("{axis:?}")).collect::<Vec<_>>().join(", ");
        let axes: Vec<String> = self.0.iter().map(|axes| format!("{{{}}}", quoted(axes))).collect();
        format!("<@mesh, [{}]>", axes.join(", "))
    }
}
