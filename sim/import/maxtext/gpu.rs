//! MaxText on GPUs: axes within a node and between nodes.

use super::super::error::ImportError;
use super::super::imported::Imported;
use super::super::importer::Request;
use super::super::machine;
use super::super::settings::Settings;
use super::super::why::Why;

/// Axes of a scenario, with MaxText's axes within a node and between nodes.
const AXES: [(&str, &str, &str); 3] = [
    ("mesh.fsdp_transpose", "ici_fsdp_transpose_parallelism", "dcn_fsdp_transpose_parallelism"),
    ("mesh.tensor", "ici_tensor_parallelism", "dcn_tensor_parallelism"),
    ("mesh.fsdp", "ici_fsdp_parallelism", "dcn_fsdp_parallelism"),
];

/// Axes that are not simulated on GPUs where they are larger than one.
const OTHERS: [&str; 6] = [
    "ici_context_parallelism",
    "ici_expert_parallelism",
    "ici_pipeline_parallelism",
    "dcn_context_parallelism",
    "dcn_expert_parallelism",
    "dcn_pipeline_parallelism",
];

/// Writes `[mesh]`: each axis is its part within nodes times its part between them. What is -1 takes the ranks that are left.
pub(super) fn mesh(out: &mut Imported, settings: &Settings<'_>, request: &Request<'_>) -> Result<(), ImportError> {
    for source in OTHERS {
        if let Some(found) = settings.integer(source)?.filter(|found| found.value > 1) {
            let what = format!("{source} = {} on GPUs", found.value);
            return Err(settings.unsupported(source, what, &format!("add {source}=1")));
        }
    }
    let ranks = machine::ranks(request).unwrap_or(1);
    let mut known = 1i64;
    let mut open = vec![];
    for (key, within, between) in AXES {
        let mut size = 1i64;
        for source in [within, between] {
            let Some(found) = settings.integer(source)? else { continue };
            match found.value {
                -1 => open.push((key, found.why)),
                value if value >= 1 => size = size.saturating_mul(value),
                _ => return Err(settings.wrong(source, "-1, or a whole number of 1 or more", "1")),
            }
        }
        known = known.saturating_mul(size);
        if size > 1 {
            let why = Why::code(format!("{within} times {between}"));
            out.put(key, size, why);
        }
    }
    // base.yml leaves data between nodes open, and FSDP within them: the second is what one node has left.
    let data = settings.integer("ici_data_parallelism")?.map_or(1, |found| found.value).max(1);
    let replicas = settings.integer("dcn_data_parallelism")?.map_or(-1, |found| found.value);
    let left = ranks / known.max(1) / data;
    if let Some((key, why)) = open.into_iter().next() {
        let nodes = i64::from(request.machine.nodes.unwrap_or(1));
        let within = (left / if replicas == -1 { nodes } else { replicas.max(1) }).max(1);
        let size = out.degree(key) * within;
        out.put(key, size, why.so(&format!("the {ranks} GPUs that the other axes leave")));
    }
    let shards = out.degree("mesh.fsdp") * out.degree("mesh.fsdp_transpose") * out.degree("mesh.tensor");
    if ranks / shards.max(1) > 1 {
        out.put(
            "mesh.data",
            ranks / shards.max(1),
            Why::code("data parallelism takes the ranks that are left".to_owned()),
        );
    }
    Ok(())
}
