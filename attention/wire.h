// Keys and values in a message: as they are, as bfloat16, or as int8 with one scale for each block.
//
// A block is the head_dim elements of one row and KV head. int8: x becomes round(x / s) with s =
// largest |x| of the block / 127, so that each element is off by at most s / 2, 1/254 of the
// largest of its block. The message: all of K, all of V; then, of int8, K's scales and V's,
// float32.
#pragma once

#include "attention/geometry.h"

namespace rueda::attention {

// Bytes of one row and KV head, K and V together.
int64_t wire_bytes(const AttentionSpec& spec);
// What the receiver computes with: the type on the wire, or float32 made from int8.
DType computed_as(const AttentionSpec& spec);

// The rows of `there` out of the local tensors.
void pack_keys(const AttentionSpec& spec, const Geometry& there, const Geometry& local,
               const std::byte* k, const std::byte* v, std::byte* message);

struct ReceivedKeys {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  DType dtype = DType::kFloat32;
};
// scratch: 2 x elements floats, used for int8 only.
ReceivedKeys unpack_keys(const AttentionSpec& spec, int64_t elements, const std::byte* message,
                         float* scratch);

}  // namespace rueda::attention
