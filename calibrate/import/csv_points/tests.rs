//! A row of each table, and tables that are not what they should be.

use super::*;
use crate::points::{Points, What, parse};

fn import(text: &str, chip: Option<&str>) -> Result<(Points, Vec<String>), String> {
    let mut imported = Imported::default();
    let table = Table::parse("some.csv", text.as_bytes()).map_err(|why| why.to_string())?;
    one("some.csv", &table, chip, &mut imported).map_err(|why| why.to_string())?;
    let points = parse("points", &imported.text).map_err(|why| why.to_string())?;
    assert_eq!(points.points.len(), imported.points);
    Ok((points, imported.remarks))
}

const LOGS: &str = "op,gpu,nodes,num_gpus,bytes,dtype,time_us,algbw_GBps,busbw_GBps,time_us_inplace,busbw_inplace_GBps,\
                    nccl_version,fabric,site,config,source\n";

#[test]
fn a_row_of_a_log_is_two_points() {
    let row = "alltoall,H100 80GB HBM3,1.0,8.0,1024,float,13.67,0.0,0.0,13.03,0.0,2.18.3,NVSwitch,DGX,,a/b@c:d\n";
    let (points, remarks) = import(&(LOGS.to_owned() + row), None).expect("a table");
    assert_eq!((points.machines.len(), points.points.len(), remarks.len()), (1, 2, 0));
    let machine = &points.machines[0];
    assert_eq!((machine.chip.as_str(), machine.gpus, machine.source.as_str()), ("H100 80GB HBM3", 8, "a/b@c:d"));
    let (_, point) = &points.points[1];
    let expected = What::Collective {
        kind: "all_to_all".to_owned(),
        ranks: 8,
        nodes: 1,
        bytes: 1024,
        in_place: true,
        dtype: "float".to_owned(),
    };
    assert_eq!((&point.what, point.median.to_bits()), (&expected, 13.03_f64.to_bits()));
}

#[test]
fn rows_that_nothing_could_use_are_left_out_and_counted() {
    let rows = "alltoall_v2,B200,1,8,1024,,13.67,,,,,,,,,x\nall_reduce,B200,,8,1024,,13.67,,,,,,,,,x\n\
                all_reduce,B200,1,8,1024,,,9.0,,,,,,,,x\n";
    let (points, remarks) = import(&(LOGS.to_owned() + rows), None).expect("a table");
    assert!(points.points.is_empty());
    assert_eq!(remarks.len(), 3);
    assert!(remarks.iter().all(|remark| remark.starts_with("some.csv: 1 rows are left out")), "{remarks:?}");
}

#[test]
fn rows_that_the_table_doubts_are_left_out_and_counted_by_reason() {
    let row = |quality: &str| format!("all_reduce,H100,1,8,1024,19.2,0.1,0.1,,,{quality},,x\n");
    let head = "op,gpu,nodes,num_gpus,bytes,time_us,algbw_GBps,busbw_GBps,algo,fabric,quality,note,source\n";
    let text = ["user log", "torch-level timing", "torch-level timing", "user log (mis-tuned?)"].map(row).concat();
    let (points, remarks) = import(&(head.to_owned() + &text), None).expect("a table");
    assert_eq!(points.points.len(), 1);
    assert_eq!(
        remarks,
        [
            "some.csv: 1 rows are left out: doubted by who collected them (quality `user log (mis-tuned?)`)",
            "some.csv: 2 rows are left out: timed through a framework, which adds its own calls (quality `torch-level timing`)",
        ]
    );
    // The site's worth is in the README of the tables.
    let row = "all_gather,H200,2,16,1024,float,30,,,,,2.21,IB,xxrjun example-cluster00,pairwise,x\n";
    let (points, remarks) = import(&(LOGS.to_owned() + row), None).expect("a table");
    assert!(points.points.is_empty() && remarks[0].contains("slow network cards"), "{remarks:?}");
}

#[test]
fn matmuls_need_a_chip_and_leave_fp8_out() {
    let text = "dtype,m,n,k,time_us,tflops,eff,kernel_source,source\nbfloat16,4096,4096,4096,190.1,,,torch_flow,aic:x\n\
                fp8,4096,4096,4096,120.0,,,torch_flow,aic:x\n";
    let why = import(text, None).expect_err("no chip");
    assert!(why.starts_with("some.csv:2: column `source`") && why.contains("--chip"), "{why}");
    let (points, remarks) = import(text, Some("NVIDIA H200")).expect("a table");
    assert_eq!((points.points.len(), points.machines[0].chip.as_str()), (1, "NVIDIA H200"));
    assert!(remarks[0].contains("quantising"), "{remarks:?}");
}

#[test]
fn attention_says_its_passes_masks_and_windows() {
    let head = "gpu,backend,dtype,mask,batch,q_len,kv_len,q_heads,kv_heads,d_qk,d_vo,deterministic_bwd,window,success,\
                cudnn,model,source,pas,time_ms,tflops\n";
    let row =
        "NVIDIA H200,cudnn,bfloat16,top_left,2,8192,8192,64,8,128,128,False,1024.0,True,91901.0,x,a@b:c,bwd,1.5,600\n";
    let (points, _) = import(&(head.to_owned() + row), None).expect("a table");
    let What::Attention { backward, causal, window, .. } = points.points[0].1.what else { panic!("attention") };
    assert_eq!((backward, causal, window, points.points[0].1.median as u64), (true, true, Some(1024), 1500));
    assert_eq!(points.machines[0].versions.get("cudnn").map(String::as_str), Some("9.19.1"));
}

#[test]
fn what_a_table_does_not_have_is_named_with_file_line_and_column() {
    let row = "all_reduce,B200,1,8,1024,float,13.67,,,,,,,,,x\n";
    for (text, says) in [
        (LOGS.replace("fabric", "fabrik") + row, "some.csv:1: column `fabrik`: collectives_nccltests_logs has no such"),
        (LOGS.replace("bytes,", "size,") + row, "some.csv:1: column `size`"),
        (LOGS.replace(",time_us_inplace", "") + &row.replacen(",,", ",", 1), "column `time_us_inplace`: is missing"),
        (LOGS.to_owned() + row + &row.replace("1024", "1k"), "some.csv:3: column `bytes`: `1k` is no whole number"),
        (LOGS.to_owned() + &row.replace("13.67", "-1"), "some.csv:2: column `time_us`: `-1` is no number above zero"),
        (LOGS.to_owned() + &row.replace("1,8", "9,8"), "some.csv:2: column `num_gpus`: 8 ranks on 9 nodes"),
        ("device,field,value\nx,y,z\n".to_owned(), "column `device`: no published table"),
    ] {
        let why = import(&text, None).expect_err(says);
        assert!(why.contains(says), "{says}: {why}");
    }
}
