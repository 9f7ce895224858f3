// Runs the local kernel over tiles: finds for each batch and head where rows lie, spreads the work
// over threads.
#pragma once

#include <memory>
#include <span>

#include "attention/geometry.h"
#include "attention/local_kernel.h"
#include "attention/means.h"

namespace rueda::attention {

// The queries of a tile. wide has head_dim elements per row and head, narrow one.
struct QuerySide {
  const Geometry* wide = nullptr;
  const Geometry* narrow = nullptr;
  const std::byte* q = nullptr;
  float* acc = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  const std::byte* dout = nullptr;
  const float* lse = nullptr;
  const float* delta = nullptr;
  float* dq = nullptr;
  const float* lse_low = nullptr;  // may be null
};
struct KeySide {
  const Geometry* wide = nullptr;
  DType dtype = DType::kFloat32;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
};

void compute(const AttentionPlan& plan, bool backward, std::span<const Tile> tiles,
             const QuerySide& queries, const KeySide& keys, const Means& means);

// Scratch for one kernel call at a time, out of what earlier calls have left.
struct Scratch;
class KernelScratch {
 public:
  KernelScratch();
  ~KernelScratch();
  KernelScratch(const KernelScratch&) = delete;
  KernelScratch& operator=(const KernelScratch&) = delete;
  Scratch& operator*() const { return *scratch_; }
  float* floats() const;

 private:
  std::unique_ptr<Scratch> scratch_;
};

// Pairs x head_dim: below, threads that share the work cost more than they save.
inline constexpr int64_t kFewestProducts = int64_t{1} << 21;

}  // namespace rueda::attention
