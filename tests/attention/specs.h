// Random specs for the tests: every mask, layout, scheme and odd size, from a seed.
#pragma once

#include <catch2/catch.hpp>
#include <random>

#include "attention/plan.h"

namespace rueda::testing {

// Of a spec that is right.
inline attention::AttentionPlan plan_of(const attention::AttentionSpec& spec, Rank rank) {
  auto plan = attention::make_plan(spec, rank);
  REQUIRE(plan.ok());
  return std::move(plan).value();
}

struct SpecMaker {
  std::mt19937_64 engine;
  explicit SpecMaker(uint64_t seed) : engine(seed) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low + 1));
  }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }

  attention::Mask mask(int64_t n, int64_t kv_heads) {
    attention::Mask mask;
    mask.causal = between(0, 1) != 0;
    if (between(0, 3) == 0) mask.left = between(0, n);
    if (between(0, 3) == 0) mask.right = between(0, n);
    switch (between(0, 4)) {
      case 0: {
        mask.cu_seqlens = {0};
        while (mask.cu_seqlens.back() < n)
          mask.cu_seqlens.push_back(std::min(n, mask.cu_seqlens.back() + between(0, n / 2 + 1)));
        break;
      }
      case 1: {
        const int64_t pairs = between(1, 3);
        for (int64_t p = 0; p < pairs; ++p) {
          mask.segment_lengths.push_back(between(1, n + 4));
          mask.dilation_rates.push_back(between(1, 4));
        }
        mask.split_heads = kv_heads >= pairs && between(0, 2) == 0;
        mask.head_offset = one_of({attention::HeadOffset::kModulo, attention::HeadOffset::kBlock});
        if (between(0, 2) != 0) break;
        [[fallthrough]];  // both together
      }
      case 2: {
        mask.block = between(1, n);
        mask.block_heads = one_of<int64_t>({1, kv_heads});
        const int64_t rows = (n + mask.block - 1) / mask.block;
        const int64_t density = between(0, 100);
        for (int64_t i = 0; i < mask.block_heads * rows * rows; ++i)
          mask.blocks.push_back(between(0, 99) < density ? 1 : 0);
        break;
      }
      default: break;
    }
    return mask;
  }

  // As many keys as it happens, packed ones for each sequence.
  void other_keys(attention::AttentionSpec* spec, int64_t longest) {
    attention::Mask& mask = spec->mask;
    if (mask.cu_seqlens.empty()) {
      spec->key_length = between(1, longest);
      return;
    }
    mask.cu_seqlens_k = {0};
    while (mask.cu_seqlens_k.size() < mask.cu_seqlens.size())
      mask.cu_seqlens_k.push_back(mask.cu_seqlens_k.back() + between(0, longest / 2));
    if (mask.cu_seqlens_k.back() == 0) mask.cu_seqlens_k.back() = 1;
    spec->key_length = mask.cu_seqlens_k.back();
  }

  // Softcap, ALiBi or both, of each head or of each entry of the batch.
  void change_scores(attention::AttentionSpec* spec) {
    const int64_t kind = between(1, 3);
    if (kind % 2 != 0) spec->softcap = one_of({0.5, 2.0, 30.0});
    if (kind < 2) return;
    const int64_t count = spec->heads * (between(0, 1) != 0 ? spec->batch : 1);
    for (int64_t i = 0; i < count; ++i)
      spec->alibi_slopes.push_back(static_cast<float>(between(-10, 60)) / 64);
  }

  attention::AttentionSpec spec(int64_t longest, Rank most_ranks) {
    attention::AttentionSpec spec;
    spec.length = between(1, longest);
    spec.kv_heads = between(1, 4);
    spec.heads = spec.kv_heads * between(1, 3);
    spec.head_dim = one_of<int64_t>({1, 8, 16, 32});
    spec.batch = between(1, 2);
    spec.ranks = static_cast<Rank>(between(1, most_ranks));
    std::vector<Rank> divisors;
    for (Rank u = 1; u <= spec.ranks; ++u) {
      if (spec.ranks % u == 0) divisors.push_back(u);
    }
    spec.ulysses = divisors[static_cast<size_t>(between(0, std::ssize(divisors) - 1))];
    spec.layout = one_of(
        {attention::Layout::kContiguous, attention::Layout::kZigzag, attention::Layout::kStriped});
    spec.rotate_forward = one_of(
        {attention::Rotate::kAuto, attention::Rotate::kKeysAndValues, attention::Rotate::kQueries});
    spec.rotate_backward = one_of(
        {attention::Rotate::kAuto, attention::Rotate::kKeysAndValues, attention::Rotate::kQueries});
    spec.chunk_tokens = one_of<int64_t>({0, 0, 1, 5, 16});
    spec.gather_first = between(0, 5) == 0;
    spec.mask = mask(spec.length, spec.kv_heads);
    spec.layout_per_sequence = !spec.mask.cu_seqlens.empty() && between(0, 1) != 0;
    if (spec.mask.segment_lengths.empty() && spec.mask.block == 0 && between(0, 2) == 0)
      other_keys(&spec, longest);
    return spec;
  }
};

}  // namespace rueda::testing
