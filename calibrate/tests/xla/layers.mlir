// Eight layers in a loop, each a product whose weights are gathered from 16 devices.
module @loop attributes {mhlo.num_partitions = 16 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=16]>
  func.func public @main(%x: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<8x1024x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>}) -> (tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %zero, %a = %x, %b = %w) : tensor<i32>, tensor<4096x1024xbf16>, tensor<8x1024x1024xbf16>
     cond {
      %n = stablehlo.constant dense<8> : tensor<i32>
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %s = stablehlo.dynamic_slice %b, %i, %z, %z, sizes = [1, 1024, 1024] : (tensor<8x1024x1024xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x1024xbf16>
      %m = stablehlo.reshape %s : (tensor<1x1024x1024xbf16>) -> tensor<1024x1024xbf16>
      %y = stablehlo.dot_general %a, %m, contracting_dims = [1] x [0] : (tensor<4096x1024xbf16>, tensor<1024x1024xbf16>) -> tensor<4096x1024xbf16>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %y, %b : tensor<i32>, tensor<4096x1024xbf16>, tensor<8x1024x1024xbf16>
    }
    return %r#1 : tensor<4096x1024xbf16>
  }
}
