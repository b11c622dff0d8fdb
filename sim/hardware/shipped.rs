//! The topology files that ship with the program, one line each, and the search for a file by name or path.

use super::HardwareError;
use crate::near::nearest;

/// A shipped topology.
pub(super) struct Shipped {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal $(also $alias:literal)*;)*) => {
        &[$(Shipped {
            name: $name,
            aliases: &[$($alias),*],
            text: include_str!(concat!("../../topologies/", $name, ".toml")),
        }),*]
    };
}

pub(super) const SHIPPED: &[Shipped] = shipped! {
    "a100-sxm-80gb";
    "a100-sxm-40gb";
    "h100-sxm-80gb";
    "h100-hbm2e-96gb-500w";
    "h200-sxm-141gb" also "h200-sxm";
    "b200-sxm";
    "b300-sxm";
    "gb200-nvl72";
    "gb300-nvl72";
    "a800-sxm-80gb";
    "h800-sxm-80gb";
    "rtx-a6000";
    "tpu-v6e";
    "tpu-v5e";
    "tpu-v4";
    "tpu-v5p";
    "tpu-v7x" also "tpu7x";
};

/// The shipped topology that is asked for.
pub(super) fn shipped_as(name_or_path: &str) -> Option<&'static Shipped> {
    let asked = name_or_path.trim();
    SHIPPED.iter().find(|shipped| shipped.name == asked || shipped.aliases.contains(&asked))
}

/// What errors call the file, and its text.
pub(super) fn find(name_or_path: &str) -> Result<(String, String), HardwareError> {
    let asked = name_or_path.trim();
    if let Some(shipped) = shipped_as(asked) {
        return Ok((format!("topologies/{}.toml", shipped.name), shipped.text.to_owned()));
    }
    if !(asked.ends_with(".toml") || asked.contains(['/', '\\'])) {
        let known = SHIPPED.iter().map(|shipped| shipped.name).collect::<Vec<_>>().join(", ");
        // A name is nearer than an alias of another.
        let names = SHIPPED.iter().map(|shipped| shipped.name);
        let closest = nearest(asked, names.chain(SHIPPED.iter().flat_map(|shipped| shipped.aliases.iter().copied())));
        return Err(HardwareError::Unknown { name: asked.to_owned(), closest, known });
    }
    match crate::files::text(asked.as_ref()) {
        Ok(text) => Ok((asked.to_owned(), text)),
        Err(error) => Err(HardwareError::Unreadable { path: asked.to_owned(), reason: error.to_string() }),
    }
}
