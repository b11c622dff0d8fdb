//! Which public runs of experts under Megatron-Core predictions are held against, fixed before experts had tables of their own.

use std::collections::BTreeMap;

use serde_json::Value;

/// What a row does not state of its chips, its mesh and its batch; `None` if it is no run of experts under Megatron-Core with a time.
fn unstated(row: &Value) -> Option<String> {
    let text = |path: &str| row.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let there = |path: &str| row.pointer(path).is_some_and(|value| !value.is_null());
    let framework = text("/framework/name");
    let megatron = (framework.contains("Mega") || framework.contains("NeMo")) && !framework.contains("AutoModel");
    let experts = text("/model/arch").contains("moe") || there("/model/n_experts") || there("/model/moe");
    let times =
        ["step_time_s", "tok_s_total", "tok_s_gpu", "tflops_gpu", "seq_s", "samples_s_gpu", "mfu_pct", "pflops_total"];
    let timed = times.iter().any(|time| there(&format!("/measured/{time}")));
    if !megatron || !experts || !timed || text("/quality/scale") == "ci-tiny" {
        return None;
    }
    let [parallel, batch] = [&["tp", "pp", "ep"], &["micro_batch", "global_batch", "seq_len"]];
    let missing = |folder: &str, names: &[&'static str; 3]| {
        names.iter().copied().filter(|name| !there(&format!("/{folder}/{name}"))).collect::<Vec<_>>()
    };
    let count = if there("/hardware/count") { vec![] } else { vec!["count"] };
    Some([missing("parallel", parallel), missing("batch", batch), count].concat().join(","))
}

#[test]
fn the_list_of_runs_with_experts_is_what_their_rows_state() {
    let rows = include_str!("receipts/public.jsonl").lines();
    let rows = rows.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found: BTreeMap<String, String> =
        rows.filter_map(|row| Some((row["id"].as_str()?.to_owned(), unstated(&row)?))).collect();
    let lines = include_str!("receipts/experts.tsv").lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeMap<String, String> = lines
        .map(|line| line.split_once('\t').unwrap_or((line, "")))
        .map(|(id, missing)| (id.to_owned(), missing.to_owned()))
        .collect();
    assert_eq!(found, listed);
}
