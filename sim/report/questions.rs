//! The five questions every report answers about itself.

use crate::model::ModelConfig;
use crate::program::DType;
use crate::runtime::{Parts, Plan};
use crate::scenario::{Prediction, Scenario};

/// The five questions every report answers about itself.
pub fn questions(scenario: &Scenario, answer: &Prediction) -> [(&'static str, String); 5] {
    let topology = &scenario.topology;
    let job = &scenario.job;
    [
        ("topology", format!("{} ({})", topology.name, topology.size_in_words())),
        ("start-up", start_up(job)),
        ("workload", format!("{}, pre-training, sequences of {} tokens, no padding", kind(job.model()), job.seq())),
        ("path", path(scenario, answer)),
        ("target shape", shape(answer)),
    ]
}

/// Which kind of model it is: results of different kinds do not compare.
fn kind(model: &ModelConfig) -> String {
    match model.experts() {
        None => "dense decoder".to_owned(),
        Some(experts) => {
            let (chosen, all, load) = (experts.top_k, experts.count, experts.load.words());
            format!("decoder with experts ({chosen} of {all} for each token, tokens over experts: {load})")
        }
    }
}

fn start_up(job: &Plan) -> String {
    if let Parts::Compiled(_) = job.parts() {
        return "steady state; the whole step is compiled before the first one, and again for every other shape: see cold \
                against steady state"
            .to_owned();
    }
    match job.train().map_or((false, false), |job| (job.compile, job.loss.compiled())) {
        (false, false) => {
            "steady state; eager, so nothing is compiled and no start-up is spread over the run".to_owned()
        }
        (blocks, loss) => format!(
            "steady state; {} compiled once before the first step, and how long that takes is not predicted",
            match (blocks, loss) {
                (true, true) => "blocks and the loss are",
                (true, false) => "blocks are",
                _ => "the loss is",
            }
        ),
    }
}

fn shape(answer: &Prediction) -> String {
    let ranks = answer.class_of.len();
    let lengths = || answer.classes.iter().map(|class| class.program.step.len());
    let (least, most) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
    match answer.classes.len() {
        1 => format!("simulated at the shape asked for: {ranks} of {ranks} ranks alike, {most} instructions each"),
        stages => format!(
            "simulated at the shape asked for: {ranks} ranks, those of each of {stages} stages alike, {least} to {most} \
             instructions each"
        ),
    }
}

/// Which kernels run, and whether they are those the scenario means.
fn path(scenario: &Scenario, answer: &Prediction) -> String {
    let dtype = scenario.job.dtype();
    let mut matmuls = if dtype == DType::Fp32 && scenario.software.tf32 { "tf32" } else { dtype.name() }.to_owned();
    let attention = format!("{:?}", scenario.software.attention).to_lowercase();
    let modules = scenario.job.modules();
    if let Some(linears) = modules.linears {
        matmuls = format!("{linears} (head: {})", dtype.name());
    }
    let blocks = modules.blocks;
    let kernels = modules.attention.map_or_else(|| format!("{attention} attention kernels"), str::to_owned);
    let mut doubts = vec![];
    let mut kernels_run = answer.classes.iter().flat_map(|class| &class.program.kernels);
    if kernels_run.any(|kernel| kernel.name.contains("efficient_attention")) {
        doubts.push(format!(
            "attention falls back to the memory-efficient kernel (fp32, or a bias on the scores), whose rate nobody \
             measured: {attention}'s is taken, or fp32 matmul's if slower"
        ));
    }
    if scenario.job.model().caps_scores() {
        doubts.push("the soft cap on attention scores is not in PyTorch's fused kernels, and is left out".to_owned());
    }
    doubts.extend(modules.doubts.into_iter().map(str::to_owned));
    if let Some(release) = &scenario.unknown_release {
        doubts.push(format!(
            "the file has the defaults of another release than {release}, which ran: the step's interval is wider by what releases \
             differ by"
        ));
    }
    if doubts.is_empty() {
        format!("as intended: {blocks} blocks, {kernels}, {matmuls} matmuls, no fallback")
    } else {
        format!("{blocks} blocks, {matmuls} matmuls, but {}", doubts.join("; "))
    }
}
