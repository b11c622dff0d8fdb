// The gradient of a weight, summed over rows that are split over 16 devices, and kept split itself.
module @grad attributes {mhlo.num_partitions = 16 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=16]>
  func.func public @main(%x: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %g: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<1024x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %h = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<4096x1024xbf16>, tensor<4096x1024xbf16>) -> tensor<1024x1024xbf16>
    return %h : tensor<1024x1024xbf16>
  }
}
