//! `framework.modules`: whose classes a model's modules are, and how those compute attention.

use super::change::Change;
use super::error::ScenarioError;
use super::reader::Reader;
use super::written;
use super::written::{AttentionStyle, Framework, ModulesStyle, RopeStyle, Scenario};
use crate::model::style::{AttentionCode, Linears, Modules, Rope, Style};
use crate::model::transformers;
use crate::model::{ModelConfig, Position};

/// What the rest of a job says of its blocks' code.
pub(super) struct Beside {
    pub linears: Linears,
    pub float8: bool,
    pub context: bool,
}

/// How a model's modules are written.
pub(super) fn style(
    reader: &mut Reader<'_>,
    scenario: &Scenario,
    model: &ModelConfig,
    beside: &Beside,
) -> Result<Style, ScenarioError> {
    let asked = scenario.framework.modules.as_ref().filter(|at| *at.get_ref() == ModulesStyle::Transformers);
    let Some(at) = asked else {
        if let Some(at) = &scenario.attention.implementation {
            let problem = "attention.implementation is how transformers' classes compute attention, and no file says that the model's are those";
            let remedy = reader.remedy(&[
                (Change::remove("attention.implementation"), "remove it"),
                (Change::set("framework.modules", "transformers"), "write framework.modules = \"transformers\""),
            ]);
            return Err(reader.plan(at, problem, remedy));
        }
        if model.dropout.any() {
            reader.note(format!(
                "{} has dropout, which is simulated under framework.modules = \"transformers\" alone",
                model.name
            ));
        }
        if scenario.framework.modules.is_none() && transformers::known(model.model_type).is_some() {
            reader.assume_for("framework.modules", (), "plain", "modules as torchtitan writes them");
        }
        return Ok(plain(reader, &scenario.framework, model));
    };
    let Some(class) = transformers::known(model.model_type) else {
        let why = format!(
            "transformers' classes of {} have no rules here (those of {} have), and its blocks are written as torchtitan's, \
             with what else [framework] says",
            model.name,
            transformers::names()
        );
        reader.idle("framework.modules", why);
        return Ok(plain(reader, &scenario.framework, model));
    };
    let framework = &scenario.framework;
    let clashes = [
        (!matches!(framework.rope, None | Some(RopeStyle::RotateHalf)), "framework.rope"),
        (framework.repeat_kv.is_some(), "framework.repeat_kv"),
        (framework.fused_qkv.is_some(), "framework.fused_qkv"),
        (beside.linears != Linears::Torch, "framework.linears"),
        (beside.float8, "[float8]"),
        (beside.context, "mesh.cp"),
        (scenario.attention.unpad.as_ref().is_some_and(|at| *at.get_ref()), "attention.unpad"),
        (scenario.attention.alibi_tensor.is_some(), "attention.alibi_tensor"),
    ];
    if let Some((_, key)) = clashes.iter().find(|(clashes, _)| *clashes) {
        let problem = format!("transformers' classes and {key} are not simulated together");
        return Err(reader.plan(at, problem, format!("remove {key}, or write framework.modules = \"plain\"")));
    }
    let name = model.model_type;
    let written = scenario.attention.implementation.as_ref();
    let attention = match written.map(|at| *at.get_ref()) {
        None if class.sdpa => AttentionCode::Sdpa,
        None => AttentionCode::Eager,
        Some(AttentionStyle::Eager) => AttentionCode::Eager,
        Some(AttentionStyle::Sdpa) => AttentionCode::Sdpa,
        Some(AttentionStyle::Flash) => AttentionCode::Flash,
    };
    if let Some(at) = written.filter(|_| attention != AttentionCode::Eager && !class.sdpa) {
        let problem = format!("transformers' {name} computes attention itself (_supports_sdpa = False)");
        return Err(reader.plan(at, problem, "write attention.implementation = \"eager\", or remove the key"));
    }
    if written.is_none() {
        let word = if class.sdpa { "sdpa" } else { "eager" };
        let why = format!("transformers' default for {name}");
        reader.assume_for("attention.implementation", (), word, why);
    }
    let compiled = scenario.compile.blocks.unwrap_or(false);
    let rope = Rope::RotateHalf;
    Ok(Style { modules: Modules::Transformers, attention, compiled, rope, ..Style::default() })
}

/// How the keys beside `framework.modules` say the code is written.
pub(super) fn plain(reader: &mut Reader<'_>, written: &Framework, model: &ModelConfig) -> Style {
    let rope = match written.rope {
        None if matches!(model.position, Position::Rope { .. }) => {
            reader.assume("framework.rope", Rope::Complex, "complex")
        }
        None | Some(RopeStyle::Complex) => Rope::Complex,
        Some(RopeStyle::ComplexByPosition) => Rope::ComplexByPosition,
        Some(RopeStyle::RotateHalf) => Rope::RotateHalf,
        Some(RopeStyle::Stacked) => Rope::Stacked,
    };
    let repeat_kv = reader.flag(&written::Framework::repeat_kv, written.repeat_kv);
    let fused_qkv = written.fused_qkv.unwrap_or(false);
    Style { rope, repeat_kv, fused_qkv, ..Style::default() }
}
