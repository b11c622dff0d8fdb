// Two products over a mesh of 4 x 4: the weights are split over both axes, the rows over "data".
module @matmul attributes {mhlo.num_partitions = 16 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=4, "model"=4]>
  func.func public @main(%x: tensor<4096x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<2048x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}, %v: tensor<8192x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>}) -> (tensor<4096x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x2048xbf16>, tensor<2048x8192xbf16>) -> tensor<4096x8192xbf16>
    %y = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<4096x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<4096x2048xbf16>
    return %y : tensor<4096x2048xbf16>
  }
}
