// The table of functions that one instruction set fills in, and the list of those compiled in.
//
// Only kernels.cc and the per-target code see this header. It uses no std:: templates: the
// per-target code is compiled for instruction sets that the running CPU may not have, and a
// template instantiated there could be the copy that the linker keeps for the whole program.
#pragma once

#include <cstddef>

namespace rueda::kernels {

// Combines elements [begin, begin + count) of inputs[0..n) into the same elements of out. The
// factor (floating types only) is applied before the one rounding. n >= 1.
using ReduceFunction = void (*)(const std::byte* const* inputs, size_t n, std::byte* out,
                                size_t begin, size_t count, double factor);
using ConvertFunction = void (*)(const std::byte* in, std::byte* out, size_t count);

// The bitwise ones: of bytes and bool alone, since they do not care how wide an element is.
enum Combine {
  kCombineSum,
  kCombineProduct,
  kCombineMin,
  kCombineMax,
  kCombineAnd,
  kCombineOr,
  kCombineXor,
  kCombineCount
};
inline constexpr int kDTypeSlots = 16;  // the numbers of DTypes that are not complex are below this

struct TargetTable {
  ReduceFunction reduce[kDTypeSlots][kCombineCount];
  ConvertFunction f16_to_f32;
  ConvertFunction bf16_to_f32;
  ConvertFunction f32_to_f16;
  ConvertFunction f32_to_bf16;
};

struct Target {
  const char* name;
  bool (*supported)();  // by this CPU and its operating system
  const TargetTable* table;
};

// Best last. The first, "portable", is what the build's own flags allow and always runs.
extern const Target kCompiledTargets[];
extern const size_t kCompiledTargetCount;

}  // namespace rueda::kernels
