//! The shipped profiles, by name. A new one is one file in `sim/cost/profiles/` and one line here.

/// Name and text of each.
pub(super) const SHIPPED: [(&str, &str); 15] = [
    ("a100-sxm-80gb", include_str!("profiles/a100-sxm-80gb.toml")),
    ("a100-sxm-40gb", include_str!("profiles/a100-sxm-40gb.toml")),
    ("h100-sxm-80gb", include_str!("profiles/h100-sxm-80gb.toml")),
    ("h100-hbm2e-96gb-500w", include_str!("profiles/h100-hbm2e-96gb-500w.toml")),
    ("h200-sxm-141gb", include_str!("profiles/h200-sxm-141gb.toml")),
    ("b200-sxm", include_str!("profiles/b200-sxm.toml")),
    ("b200-sxm-throttled", include_str!("profiles/b200-sxm-throttled.toml")),
    ("b300-sxm", include_str!("profiles/b300-sxm.toml")),
    ("gb200-nvl72", include_str!("profiles/gb200-nvl72.toml")),
    ("gb300-nvl72", include_str!("profiles/gb300-nvl72.toml")),
    ("tpu-v6e", include_str!("profiles/tpu-v6e.toml")),
    ("tpu-v5e", include_str!("profiles/tpu-v5e.toml")),
    ("tpu-v4", include_str!("profiles/tpu-v4.toml")),
    ("tpu-v5p", include_str!("profiles/tpu-v5p.toml")),
    ("tpu-v7x", include_str!("profiles/tpu-v7x.toml")),
];
