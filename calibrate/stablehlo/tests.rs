//! What is written, held against the specification's syntax.

use super::*;

#[test]
fn a_sharded_product_reads_as_the_specification_writes_it() {
    let mesh = Mesh::new([("data", 2), ("model", 4)]);
    let mut main = Function::new();
    let x = main.parameter(Type::new(Element::Bf16, [8, 16]), Some(&Spec::new(&["data", ""])));
    let w = main.parameter(Type::new(Element::Bf16, [16, 32]), Some(&Spec::new(&["", "model"])));
    let y = main.dot(&x, &w, (&[], &[]), (&[1], &[0]), Element::F32);
    main.result(&y, None);
    let expected = r#"module @step attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  func.func public @main(%arg0: tensor<8x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %arg1: tensor<16x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}) -> (tensor<8x32xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xbf16>, tensor<16x32xbf16>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
"#;
    assert_eq!(module("step", Some(&mesh), &main), expected);
}

#[test]
fn a_batched_product_puts_the_batch_first() {
    let mut main = Function::new();
    let queries = main.parameter(Type::new(Element::Bf16, [2, 64, 8, 128]), None);
    let keys = main.parameter(Type::new(Element::Bf16, [2, 32, 8, 128]), None);
    let scores = main.dot(&queries, &keys, (&[0, 2], &[0, 2]), (&[3], &[3]), Element::F32);
    assert_eq!(scores.of, Type::new(Element::F32, [2, 8, 64, 32]));
}

#[test]
fn numbers_have_a_point() {
    let mut main = Function::new();
    for (number, text) in [(1.0, "1.0e0"), (1e-5, "1.0e-5"), (0.125, "1.25e-1"), (-3.0, "-3.0e0")] {
        let _ = main.constant(number, Type::scalar(Element::F32));
        assert!(main.text().contains(&format!("dense<{text}>")), "{number}: {}", main.text());
    }
    let _ = main.constant(f64::NEG_INFINITY, Type::scalar(Element::Bf16));
    assert!(main.text().contains("dense<0xFF80> : tensor<bf16>"), "{}", main.text());
}

#[test]
#[should_panic(expected = "tensor<4x8xf32>")]
fn shapes_that_do_not_fit_are_named() {
    let mut main = Function::new();
    let a = main.parameter(Type::new(Element::F32, [4, 8]), None);
    let b = main.parameter(Type::new(Element::F32, [4, 8]), None);
    let _ = main.dot(&a, &b, (&[], &[]), (&[1], &[0]), Element::F32);
}
