//! torchtitan's job configurations: TOML files of releases up to 0.2.2, their overrides, and command lines of 0.3 ([`recipes`]).
//!
//! Source: pytorch/torchtitan, `torchtitan/config/job_config.py`, `train.py`, `models/*/__init__.py`, `distributed/pipeline_parallel.py`.

mod common;
mod flavors;
mod recipes;

use std::sync::LazyLock;

use common::OLD;
use toml::Value;

use super::error::ImportError;
use super::imported::Imported;
use super::importer::{Importer, Request};
use super::machine::{self, Kind};
use super::settings::Settings;
use super::syntax::{overrides, toml_file};
use super::table::{Table, matches};
use super::why::Why;
use crate::scenario::release_defaults;
use crate::tables;

/// Reads torchtitan's configurations.
pub const IMPORTER: Importer = Importer {
    name: "torchtitan",
    reads: "job configurations in TOML up to 0.2.2, command lines of 0.3",
    marks: "a TOML of [model] with a flavor, and [training], [job] or [parallelism]; or a command with --module and --config",
    sniff,
    read,
    tables: None,
};

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("tables/torchtitan.toml")).expect("a test reads every table"));

/// The release whose code the defaults beside the configuration are of.
const RELEASE: &str = "torchtitan 0.2.2";

fn sniff(text: &str) -> bool {
    if recipes::is_one(text) {
        return true;
    }
    let Some(table) = tables::Node::parse(text).ok().and_then(|node| node.table()) else { return false };
    let has = |name: &str| table.get(name).is_some_and(Value::is_table);
    let flavor = table.get("model").and_then(|model| model.get("flavor")).is_some();
    flavor && (has("training") || has("job") || has("parallelism"))
}

fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    if recipes::is_one(request.text) {
        return recipes::read(request);
    }
    let mut raw = toml_file::read(request.file, request.text)?;
    raw.extend(overrides::read(request.overrides));
    let early = raw.iter().any(|raw| EARLY.iter().any(|pattern| matches(pattern, &raw.key)));
    let settings = Settings::new(request.file, &TABLE, raw, request.version);
    let mut out = Imported::of(&settings);
    out.put("runtime", "fsdp2", Why::code("torchtitan shards with fully_shard (FSDP2)"));
    machine::put(&mut out, request, IMPORTER.name, Kind::Gpus)?;
    code(&mut out, &settings)?;
    flavors::model(&mut out, &settings)?;
    common::mesh(&mut out, &settings)?;
    common::pipeline(&mut out, &settings)?;
    common::batch(&mut out, &settings)?;
    common::precision(&mut out, &settings)?;
    unsharded(&mut out, &settings, request);
    common::sharding(&mut out, &settings)?;
    common::compiled(&mut out, &settings)?;
    recompute(&mut out, &settings)?;
    common::optimizer(&mut out, &settings)?;
    if early && !settings.states("optimizer.implementation") {
        early_optimizer(&mut out, &settings)?;
    }
    description(&mut out, &settings)?;
    Ok(out.finish(&settings))
}

/// Keys that releases before 0.1.0 have, and it has not.
const EARLY: [&str; 6] = [
    "training.tensor_parallel_degree",
    "training.data_parallel_*",
    "experimental.pipeline_parallel_*",
    "experimental.context_parallel_*",
    "optimizer.fused",
    "model.norm_type",
];

/// Writes how a release before 0.1.0 steps: for each tensor in one kernel only where `optimizer.fused` says so. The default became true
/// on 27 February 2025 (069bae286).
fn early_optimizer(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let key = "optimizer.implementation";
    let of = |fused: bool| if fused { "fused" } else { "foreach" };
    match settings.flag("optimizer.fused")? {
        Some(found) => out.put(key, of(found.value), found.why),
        None => {
            out.put(key, of(false), Why::code("torchtitan before 27 February 2025: optimizer.py, foreach by default"));
            out.note("Keys of a release before 0.1.0: from 27 February 2025 on its optimizer is fused where nothing is said. Set optimizer.fused to what your checkout has.");
        }
    }
    Ok(())
}

/// What the release's code does, whatever its configuration says.
fn code(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    for (key, value, source) in release_defaults(RELEASE, "fsdp2") {
        out.put(&key, value, Why::code(source));
    }
    if settings.version() == OLD {
        let at = |place: &str| Why::code(format!("torchtitan {OLD}: {place}"));
        out.remove("loop.host_syncs_per_step");
        out.put("fsdp.wrap", "block", at("torchtitan/models/llama3/infra/parallelize.py, blocks and one root group"));
        out.put("framework.repeat_kv", true, at("torchtitan/models/llama3/model/model.py:185"));
        out.put("framework.fused_rms_norm", false, at("torch of June 2025 composes nn.RMSNorm"));
        let blackwell = out.get("topology.name").and_then(Value::as_str).is_some_and(|name| name.contains("b200"));
        let backend = if blackwell { "cudnn" } else { "flash2" };
        out.put("attention.backend", backend, at("torchtitan/models/attention.py:201, cuDNN first on B200 alone"));
    }
    let norms = [("fused_rmsnorm", true), ("rmsnorm", false), ("compiled_rmsnorm", false)];
    if let Some(found) = settings.choice("model.norm_type", &norms)? {
        out.put("framework.fused_rms_norm", found.value, found.why);
    }
    Ok(())
}

/// Parameters are sharded, and cast, only where data or context parallelism is: `parallelize_llama` and `maybe_enable_amp`, until 0.3.
fn unsharded(out: &mut Imported, settings: &Settings<'_>, request: &Request<'_>) {
    let others = ["mesh.tp", "mesh.cp", "mesh.pp", "mesh.dp_replicate"].map(|axis| out.degree(axis));
    let left = machine::ranks(request).unwrap_or(1) / others.iter().product::<i64>().max(1);
    let stated = out.get("mesh.dp_shard").and_then(Value::as_integer);
    if stated.unwrap_or(left) * out.degree("mesh.cp") > 1 {
        return;
    }
    if out.degree("mesh.tp") * out.degree("mesh.pp") > 1 {
        let storage = out.get("precision.storage").cloned().unwrap_or_else(|| Value::from("fp32"));
        let at =
            "distributed/utils.py, maybe_enable_amp: without data or context parallelism mixed precision is disabled";
        for key in ["precision.param", "precision.reduce"] {
            out.put(key, storage.clone(), Why::code(format!("{}: {at}", settings.of())));
        }
        out.note("Without data or context parallelism torchtitan up to 0.2.2 applies no fully_shard and no mixed precision, whatever training.mixed_precision_param says: the step computes in the parameters' own type.");
    } else {
        let changes = "one GPU alone computes under autocast, and not under fully_shard: which copies of parameters are made, and when";
        out.without("training.mixed_precision_param", "bfloat16", "distributed/utils.py, maybe_enable_amp", changes);
    }
}

fn description(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    if let Some(found) = settings.word("job.description")? {
        if found.stated {
            out.put("description", found.value, found.why);
        } else {
            let flavor = settings.word("model.flavor")?.map(|found| found.value).unwrap_or_default();
            let name = settings.word("model.name")?.map(|found| found.value).unwrap_or_default();
            out.put("description", format!("{name} {flavor}, torchtitan"), Why::code("model.name and model.flavor"));
        }
    }
    Ok(())
}

fn recompute(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let option = settings.word("activation_checkpoint.selective_ac_option")?;
    let early = settings.flag("activation_checkpoint.early_stop")?;
    let budget = settings.number("activation_checkpoint.memory_budget")?;
    let modes = ["none", "full", "selective", "memory_budget"].map(|mode| (mode, mode));
    let Some(mode) = settings.choice("activation_checkpoint.mode", &modes)? else { return Ok(()) };
    let key = "activation_checkpointing.policy";
    match (mode.value, option) {
        ("selective", Some(option)) if option.value == "op" => {
            out.put(key, "selective_op", mode.why.clone().and(&option.why));
        }
        ("selective", Some(option)) => {
            let expected = "\"op\", or a whole number of 1 or more as text";
            let wrong = || settings.wrong("activation_checkpoint.selective_ac_option", expected, "\"op\" or \"2\"");
            let every: i64 = option.value.parse().ok().filter(|every| *every >= 1).ok_or_else(wrong)?;
            let mut policy = toml::Table::new();
            policy.insert("every".to_owned(), Value::Integer(every));
            let policy = if every == 1 { Value::from("full") } else { Value::Table(policy) };
            out.put(key, policy, mode.why.clone().and(&option.why));
        }
        ("memory_budget", _) => {
            out.put(key, "none", mode.why.clone().so("not modelled, see below"));
            let changes =
                "the compiler recomputes until activations fit into a share of their memory: less memory, more time";
            let share = budget.map_or(0.5, |found| found.value).to_string();
            out.without("activation_checkpoint.memory_budget", &share, &mode.why.to_string(), changes);
        }
        (policy, _) => out.put(key, policy, mode.why.clone()),
    }
    if out.get(key).and_then(Value::as_str) == Some("none") {
        out.remove("activation_checkpointing.early_stop");
    } else if let Some(found) = early {
        out.put("activation_checkpointing.early_stop", found.value, found.why);
    }
    Ok(())
}
