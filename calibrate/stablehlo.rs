//! Writes StableHLO, as text that XLA's compilers read.
//!
//! A [`Function`] grows line by line: each method writes one operation and gives its result, whose shape it works out. Where
//! arrays lie is said by Shardy's annotations: a [`Mesh`] of named axes, and for each axis of an array the mesh axes that it
//! is split over. Shapes that do not fit together are our mistake, not a user's, and panic with both shapes. Operations and
//! their syntax: <https://openxla.org/stablehlo/spec>; shardings: <https://openxla.org/shardy/sharding_representation>. To
//! add an operation: a method.

mod arrays;
mod calls;
mod choices;
mod collectives;
mod function;
mod sharding;
#[cfg(test)]
mod tests;
mod types;

pub use calls::Memory;
pub use choices::Meeting;
pub use collectives::Collective;
pub use function::{Comparison, Function, Reduction, Value};
pub use sharding::{Mesh, Spec};
pub use types::{Element, Type};

/// A module with one function, `main`, that the compiler partitions over `mesh`.
pub fn module(name: &str, mesh: Option<&Mesh>, main: &Function) -> String {
    let (devices, declared) = match mesh {
        Some(mesh) => (mesh.devices(), format!("  {}\n", mesh.declaration())),
        None => (1, String::new()),
    };
    format!(
        "module @{name} attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{\n{declared}{}}}\n",
        main.text()
    )
}
