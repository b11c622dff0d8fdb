//! The planner: it ranks what `windtunnel run` would say, and leaves out nothing that could have been ranked.

use proptest::prelude::*;
use serde_json::Value;
use windtunnel::explore::goodput::{self, Length};
use windtunnel::explore::plan::{Answer, Request, json, plan, text};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

use crate::command::Folder;

fn ask(text: &str, exhaustive: bool) -> Answer {
    let request = Request::parse("request.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    plan(request, exhaustive, &|_| ()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> String {
    match Request::parse("request.toml", text) {
        Err(error) => error.to_string(),
        Ok(request) => plan(request, false, &|_| ()).expect_err(text).to_string(),
    }
}

/// A small model on two nodes.
const SMALL: &str = "model = \"llama-3.1-8b\"\nsequence = 2048\nglobal_batch = 64\ntokens = \"10B\"\ntop = 4\n\
    [[machine]]\nname = \"h100-sxm-80gb\"\nsize = 2\nprice = \"2.5 USD\"\n[set]\n\"model.layers\" = 4\n";

/// Every ranked plan's file, run by itself, says what the ranking says.
#[test]
fn a_ranked_plan_is_what_its_scenario_file_predicts() {
    let answer = ask(SMALL, false);
    let on = &answer.sites[0];
    assert_eq!(on.ranked.len(), 4);
    for (rank, ranked) in on.ranked.iter().enumerate() {
        let scenario = answer.draft(0, rank).expect("ranked").scenario().expect("it was simulated");
        let alone = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
        assert_eq!((alone.step, alone.memory.device_total()), (ranked.plan.step, ranked.plan.memory));
        assert_eq!(alone.tokens, 64 * 2048, "the global batch is the one that was asked for");
    }
    assert!(on.ranked.is_sorted_by_key(|ranked| ranked.plan.step));
}

/// Days are tokens over tokens a second, chip-hours are days of all chips, money is chip-hours at the price.
#[test]
fn days_and_money_are_their_closed_forms() {
    let answer = ask(SMALL, false);
    for ranked in &answer.sites[0].ranked {
        let (plan, bill) = (&ranked.plan, &ranked.bill);
        let days = 10e9 / (plan.rate * 16.0) / 86_400.0;
        let close = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-9, "{one} {other}");
        close(bill.days.unwrap().value, days);
        close(bill.chip_hours.unwrap().value, days * 24.0 * 16.0);
        close(bill.money.unwrap().value, days * 24.0 * 16.0 * 2.5);
        close(bill.per_billion_tokens.unwrap().value, days * 24.0 * 16.0 * 2.5 / 10.0);
        let days = bill.days.unwrap();
        assert!(days.low <= days.value && days.value <= days.high);
    }
}

/// With interruptions days and money are longer by the goodput, which is what `run --for` says of the plan; the ranking stays.
#[test]
fn interruptions_lengthen_days_and_money_and_change_no_step() {
    let plain = ask(SMALL, false);
    let often = SMALL.replace("[set]", "[set]\n\"failures.mean_time_between\" = \"5 h\"");
    let answer = ask(&often, false);
    assert!(answer.request.interrupted && !plain.request.interrupted);
    let pairs = plain.sites[0].ranked.iter().zip(&answer.sites[0].ranked);
    for (rank, (one, other)) in pairs.enumerate() {
        let goodput = other.plan.goodput;
        assert_eq!(one.plan.step, other.plan.step);
        assert!((0.8..0.99).contains(&goodput), "{goodput}");
        let days = [one, other].map(|ranked| ranked.bill.days.unwrap().value);
        assert!((days[0] / days[1] / goodput - 1.0).abs() < 1e-9, "{days:?} {goodput}");
        let scenario = answer.draft(0, rank).expect("ranked").scenario().expect("it was simulated");
        let alone = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap();
        let training = goodput::goodput(&scenario, &alone, Length::Tokens(200e9), &|| ()).unwrap();
        assert!((training.goodput.p5..=training.goodput.p95).contains(&goodput), "{goodput} {:?}", training.goodput);
    }
    let (plain, interrupted) = (json::report(&plain), json::report(&answer));
    assert!(plain["machines"][0]["plans"][0].get("goodput").is_none());
    assert!(interrupted["machines"][0]["plans"][0]["goodput"].as_f64().is_some());
}

/// The ranked plans of an answer, by what they are.
fn ranking(answer: &Answer) -> Vec<(String, u64)> {
    let of = |rank: usize| (answer.draft(0, rank).unwrap().text(), answer.sites[0].ranked[rank].plan.step.0);
    (0..answer.sites[0].ranked.len()).map(of).collect()
}

/// A random request that is small enough to be searched exhaustively.
fn any_request() -> impl Strategy<Value = String> {
    let machines = ["h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb"];
    let models = ["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt3-5b-nemo"];
    let frameworks = ["megatron", "fsdp2", "deepspeed-zero"];
    let parts = (0..models.len(), 0..machines.len(), 1..3_u32, 0..3_usize, 2..5_u32, 0..3_u32, 0..3_usize);
    parts.prop_map(move |(model, machine, nodes, batch, layers, length, framework)| {
        let (sequence, batch) = (1024 << length, [16, 32, 48][batch]);
        format!(
            "model = {:?}\nsequence = {sequence}\nglobal_batch = {batch}\nframeworks = [{:?}]\n[[machine]]\nname = {:?}\n\
             size = {nodes}\n[set]\n\"model.layers\" = {layers}\n[vary]\n\"batch.micro\" = [1, 2]\n",
            models[model], frameworks[framework], machines[machine]
        )
    })
}

/// How many random requests are searched both ways; `PLAN_REQUESTS` takes another number.
fn cases() -> u32 {
    std::env::var("PLAN_REQUESTS").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_pruned_search_ranks_what_an_exhaustive_one_ranks(text in any_request()) {
        let request = || Request::parse("request.toml", &text).unwrap();
        let [pruned, exhaustive] = [false, true].map(|exhaustive| plan(request(), exhaustive, &|_| ()));
        match (pruned, exhaustive) {
            (Ok(pruned), Ok(exhaustive)) => {
                prop_assert_eq!(ranking(&pruned), ranking(&exhaustive), "{}", text);
                let counts = pruned.sites[0].counts;
                prop_assert_eq!(counts.legal, counts.too_large + counts.too_slow + counts.simulated);
                prop_assert_eq!(exhaustive.sites[0].counts.simulated, exhaustive.sites[0].counts.legal);
            }
            (pruned, exhaustive) => prop_assert!(pruned.is_err() && exhaustive.is_err(), "{}", text),
        }
    }
}

#[test]
fn the_answer_is_the_same_bytes_on_any_number_of_threads() {
    let folder = Folder::new("plan-threads");
    folder.write("request.toml", SMALL);
    let on = |threads: &str| {
        let mut command = folder.command();
        command.args(["plan", "request.toml", "--json", "-"]).env("RAYON_NUM_THREADS", threads);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let [one, two, seven] = ["1", "2", "7"].map(on);
    assert!(one == two && two == seven);
    let value: Value = serde_json::from_slice(&one).unwrap();
    assert_eq!(value["schema"], "windtunnel-plan-1");
}

/// A key that the request sets is in every plan; one that it varies takes those values and no other.
#[test]
fn what_is_set_and_varied_is_what_plans_have() {
    let text = format!("{SMALL}\"mesh.tp\" = 2\n[vary]\n\"mesh.pp\" = [1, 2]\n");
    let answer = ask(&text, false);
    for rank in 0..answer.sites[0].ranked.len() {
        let draft = answer.draft(0, rank).unwrap();
        assert_eq!(draft.get("mesh.tp").and_then(toml::Value::as_integer), Some(2));
        let pipeline = draft.get("mesh.pp").and_then(toml::Value::as_integer);
        assert!(matches!(pipeline, None | Some(1 | 2)), "{}", draft.text());
    }
}

#[test]
fn memory_that_must_stay_free_stays_free() {
    let text = SMALL.replace("[[machine]]", "limits.headroom = \"60 GB\"\n[[machine]]");
    let (all, roomy) = (ask(SMALL, false), ask(&text, false));
    assert!(roomy.sites[0].ranked.iter().all(|ranked| ranked.plan.headroom().0 >= 60_000_000_000));
    assert!(all.sites[0].ranked[0].plan.step <= roomy.sites[0].ranked[0].plan.step);
}

/// Nothing is simulated for a request whose limits nobody can keep, or mean.
#[test]
fn limits_beyond_every_machine_are_refused_before_anything_is_simulated() {
    let of =
        |limit: &str| Request::parse("request.toml", &SMALL.replace("[[machine]]", &format!("{limit}\n[[machine]]")));
    let said = |limit: &str| of(limit).map(drop).expect_err(limit).to_string();
    assert!(said("limits.headroom = \"200 GB\"").contains("is all that a chip has"));
    assert!(said("limits.chips = 1000000000").contains("more than any job has"));
    assert!(of("limits.chips = 131072").is_ok() && of("limits.headroom = \"70 GB\"").is_ok());
}

/// A price that is of no machine of the request changes nothing, and the answer says so.
#[test]
fn a_price_of_another_machine_is_named() {
    let folder = Folder::new("a_price_of_another_machine_is_named");
    let price = |machine: &str| {
        let rest = "per_chip_hour = 2.49\ncurrency = \"USD\"\ndate = \"2026-11-01\"\nsource = \"our contract\"\n";
        format!("[[price]]\nmachine = {machine:?}\n{rest}")
    };
    folder.write("prices.toml", &(price("h100-smx-80gb") + &price("h200-sxm-141gb")));
    let text =
        format!("prices = {:?}\n{}", folder.path.join("prices.toml"), SMALL.replace("price = \"2.5 USD\"\n", ""));
    let request = Request::parse("request.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let named: Vec<_> = request.notes.iter().filter(|note| note.contains("the price of")).collect();
    assert!(named.len() == 1 && named[0].contains("h100-smx-80gb") && named[0].contains("did you mean"), "{named:?}");
    let limited = text.replace("[[machine]]", "limits.money = \"1M USD\"\n[[machine]]");
    let refused = Request::parse("request.toml", &limited).map(drop).expect_err("no price").to_string();
    assert!(refused.contains("it has no price") && refused.contains("h100-smx-80gb"), "{refused}");
}

/// Amounts of tokens are decimal, unless only the binary ones are whole sequences: then the answer says so.
#[test]
fn four_mega_tokens_are_whole_sequences_and_the_answer_says_which() {
    let text = SMALL.replace("global_batch = 64", "global_batch = \"128ktok\"");
    let answer = ask(&text, false);
    assert_eq!(answer.request.sequences, 64);
    assert!(answer.request.notes.iter().any(|note| note.contains("131072 tokens, 64 sequences")));
    assert!(text::report(&answer, 100).contains("131072"));
}

#[test]
fn requests_that_contradict_themselves_are_explained() {
    let with = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        SMALL.replace(from, to)
    };
    for (text, words) in [
        (with("llama-3.1-8b", "llama-3.1-8"), "did you mean \"llama-3.1-8b\""),
        (with("h100-sxm-80gb", "h300"), "h300"),
        (with("size = 2", "size = \"two\""), "two"),
        (with("global_batch = 64", "global_batch = \"101ktok\""), "no whole number of sequences of 2048 tokens"),
        (with("tokens = \"10B\"", "tokens = \"many\""), "no amount of tokens"),
        (with("top = 4", "topp = 4"), "topp"),
        (with("2.5 USD", "cheap"), "no amount of money"),
        (with("\"model.layers\"", "\"model.layerz\""), "did you mean \"model.layers\""),
        (with("\"model.layers\" = 4", "\"batch.sequence\" = 4"), "what the request itself says"),
        (with("tokens = \"10B\"\n", "limits.days = 3\n"), "does not say how many"),
        (with("top = 4", "frameworks = [\"nanotron\"]"), "plans are not searched for under nanotron"),
        (with("top = 4", "frameworks = [\"xla\"]"), "runs on none of the machines"),
        (
            with("top = 4", "frameworks = [\"deepspeed-zero\"]").replace("= 64", "= 7"),
            "with global_batch = 16, in sequences",
        ),
    ] {
        let said = refused(&text);
        assert!(said.contains(words), "{words:?} is not in:\n{said}");
    }
}

/// What fits nowhere is answered with the nearest request that has an answer.
#[test]
fn a_model_that_does_not_fit_is_told_how_many_nodes_it_takes() {
    let text = "model = \"llama-3.1-70b\"\nsequence = 4096\nglobal_batch = 64\nframeworks = [\"fsdp2\"]\n[[machine]]\n\
                name = \"a100-sxm-40gb\"\nsize = 1\n[vary]\n\"batch.micro\" = [1]\n";
    let said = refused(text);
    assert!(said.contains("none of the") && said.contains("needs at least"), "{said}");
    assert!(said.contains("nodes of a100-sxm-40gb"), "{said}");
}

#[test]
fn a_budget_that_is_too_small_ends_with_one() {
    let folder = Folder::new("plan-budget");
    folder.write("request.toml", &SMALL.replace("[[machine]]", "limits.money = \"1 USD\"\n[[machine]]"));
    let out = folder.windtunnel(&["plan", "request.toml"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stdout).contains("No plan keeps to the limits"));
}

/// Flags say what a file says.
#[test]
fn flags_are_a_request_without_a_file() {
    let folder = Folder::new("plan-flags");
    folder.write("request.toml", SMALL);
    let run = |arguments: &[&str]| {
        let out = folder.windtunnel(arguments);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()["machines"].clone()
    };
    let file = run(&["plan", "request.toml", "--json", "-"]);
    let flags = run(&[
        "plan",
        "--model",
        "llama-3.1-8b",
        "--on",
        "h100-sxm-80gb:2",
        "--sequence",
        "2048",
        "--global-batch",
        "64",
        "--tokens",
        "10B",
        "--top",
        "4",
        "--price",
        "2.5 USD",
        "--set",
        "model.layers=4",
        "--json",
        "-",
    ]);
    assert_eq!(file, flags);
}

/// The page holds the whole answer and loads nothing.
#[test]
fn the_page_has_every_ranked_plan_and_loads_nothing() {
    let answer = ask(SMALL, false);
    let page = windtunnel::explore::plan::html::page(&answer);
    assert!(page.contains("default-src 'none'") && !page.contains("src=") && !page.contains("href="));
    assert_eq!(page.matches("class=\"shares\"").count(), 2 * answer.sites[0].ranked.len());
    let dots = answer.sites[0].all().count();
    assert_eq!(page.matches("<circle").count(), dots);
    assert!(json::report(&answer)["front"].as_array().is_some_and(|front| !front.is_empty()));
}
