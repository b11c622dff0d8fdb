//! Names of machines in the spellings that receipts use, matched to the shipped topologies.
//!
//! What counts is the chip and its memory: `NVIDIA H100 80GB HBM3`, `H100-SXM5-80GB` and `8xH100 SXM` are one machine. A PCIe card
//! or an NVL pair is another machine than the SXM board of the same chip, and has no topology.

/// A chip, and the topologies that have it with their memory \[GB\]; the first stands where no memory is stated.
struct Chip {
    words: &'static [&'static str],
    memory: &'static [(f64, &'static str)],
}

const CHIPS: &[Chip] = &[
    Chip { words: &["a100"], memory: &[(80.0, "a100-sxm-80gb"), (40.0, "a100-sxm-40gb")] },
    Chip { words: &["a800"], memory: &[(80.0, "a800-sxm-80gb")] },
    Chip { words: &["h100"], memory: &[(80.0, "h100-sxm-80gb"), (96.0, "h100-hbm2e-96gb-500w")] },
    Chip { words: &["h800"], memory: &[(80.0, "h800-sxm-80gb")] },
    Chip { words: &["h200"], memory: &[(141.0, "h200-sxm-141gb")] },
    Chip { words: &["b200"], memory: &[(180.0, "b200-sxm")] },
    Chip { words: &["b300"], memory: &[(288.0, "b300-sxm")] },
    Chip { words: &["gb200"], memory: &[(186.0, "gb200-nvl72")] },
    Chip { words: &["gb300"], memory: &[(288.0, "gb300-nvl72")] },
    Chip { words: &["a6000"], memory: &[(48.0, "rtx-a6000")] },
    Chip { words: &["v4"], memory: &[(32.0, "tpu-v4")] },
    Chip { words: &["v5e", "v5litepod", "v5lite"], memory: &[(16.0, "tpu-v5e")] },
    Chip { words: &["v5p"], memory: &[(95.0, "tpu-v5p")] },
    Chip { words: &["v6e", "trillium"], memory: &[(32.0, "tpu-v6e")] },
    Chip { words: &["v7x", "tpu7x", "ironwood"], memory: &[(192.0, "tpu-v7x")] },
];

/// How far a stated memory may be from a topology's: what a vendor prints on the box and what a driver shows differ by so much.
const SAME_MEMORY: f64 = 0.1;

/// A machine that a name means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The shipped topology.
    pub topology: &'static str,
    /// Whether the memory, which tells topologies of this chip apart, was not stated.
    pub assumed: bool,
}

/// The machine that a name means, with the memory that is stated beside it \[GB\].
pub fn machine(name: &str, memory: Option<f64>) -> Option<Machine> {
    let words = words(name);
    let has = |word: &str| words.iter().any(|own| own == word);
    if has("pcie") || has("nvl") || has("nvlink2") {
        return None;
    }
    let chip = CHIPS.iter().find(|chip| chip.words.iter().any(|word| has(word)))?;
    let stated = words.iter().find_map(|word| in_gb(word)).or(memory);
    match (chip.memory, stated) {
        ([(_, topology)], _) => Some(Machine { topology, assumed: false }),
        (variants, Some(stated)) => {
            let near = |(own, _): &&(f64, &str)| (stated / own - 1.0).abs() <= SAME_MEMORY;
            variants.iter().find(near).map(|(_, topology)| Machine { topology, assumed: false })
        }
        (variants, None) => variants.first().map(|(_, topology)| Machine { topology, assumed: true }),
    }
}

/// A name's words in small letters, without a count before the chip (`8xh100`), and `v5 lite` as one.
fn words(name: &str) -> Vec<String> {
    let lower = name.to_lowercase().replace("v5 lite", "v5lite");
    let parts = lower.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    let chip = |part: &str| match part.split_once('x') {
        Some((count, chip)) if !chip.is_empty() && count.parse::<u32>().is_ok() => chip.to_owned(),
        _ => part.to_owned(),
    };
    parts.map(chip).collect()
}

/// `80gb` and `80g` as a number.
fn in_gb(word: &str) -> Option<f64> {
    word.strip_suffix("gb").or(word.strip_suffix('g'))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{Size, Topology};

    #[test]
    fn a_machine_is_known_under_the_spellings_that_receipts_use() {
        for (spelling, memory, topology) in [
            ("NVIDIA H100 80GB HBM3", None, "h100-sxm-80gb"),
            ("H100-SXM5-80GB (DGX H100)", Some(80.0), "h100-sxm-80gb"),
            ("8xH100 SXM", None, "h100-sxm-80gb"),
            ("H100-SXM-96GB-HBM2e (Meta Grand Teton)", Some(96.0), "h100-hbm2e-96gb-500w"),
            ("NVIDIA A100-SXM4-40GB", None, "a100-sxm-40gb"),
            ("A100", Some(79.3), "a100-sxm-80gb"),
            ("not stated in table (A100 class)", None, "a100-sxm-80gb"),
            ("A800", None, "a800-sxm-80gb"),
            ("NVIDIA B200", None, "b200-sxm"),
            ("B200-SXM-192GB", None, "b200-sxm"),
            ("GB200 (DGX GB200)", None, "gb200-nvl72"),
            ("NVIDIA GB300 NVL72", None, "gb300-nvl72"),
            ("TPU v6e (Trillium)", Some(32.0), "tpu-v6e"),
            ("TPU v5 lite", None, "tpu-v5e"),
            ("TPU7x (Ironwood)", None, "tpu-v7x"),
        ] {
            assert_eq!(machine(spelling, memory).map(|machine| machine.topology), Some(topology), "{spelling}");
        }
    }

    #[test]
    fn a_card_that_is_no_board_has_no_topology_and_a_memory_that_no_chip_has_is_none() {
        for (spelling, memory) in [
            ("H100 PCIe", None),
            ("H100 NVL", Some(94.0)),
            ("A100-PCIE-40GB", None),
            ("A100", Some(64.0)),
            ("MI300X", None),
            ("", None),
        ] {
            assert_eq!(machine(spelling, memory), None, "{spelling}");
        }
    }

    #[test]
    fn where_memory_tells_machines_apart_and_is_not_stated_it_is_assumed() {
        assert!(machine("A100", None).is_some_and(|machine| machine.assumed));
        assert!(machine("H200", None).is_some_and(|machine| !machine.assumed));
    }

    #[test]
    fn every_machine_is_a_shipped_topology() {
        for (_, topology) in CHIPS.iter().flat_map(|chip| chip.memory) {
            assert!(Topology::load(topology, &Size::Smallest).is_ok(), "{topology}");
        }
    }
}
