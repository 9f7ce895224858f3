#include "attention/saved.h"

#include <cstring>

namespace rueda::attention {
namespace {

// Room as forward makes it.
Saved room_for(const AttentionPlan& plan) {
  const AttentionSpec& spec = plan.spec;
  const int64_t q_heads = plan.heads.q_end - plan.heads.q_begin;
  const int64_t kv_heads = plan.heads.kv_end - plan.heads.kv_begin;
  const int64_t row = spec.head_dim * static_cast<int64_t>(size_of(spec.dtype));
  const int64_t queries = spec.batch * plan.group_tokens() * q_heads;
  const int64_t keys = spec.batch * plan.group_keys() * kv_heads;
  Saved saved;
  if (spec.ulysses > 1) {
    saved.filled = true;
    saved.q.resize(static_cast<size_t>(queries * row));
    saved.k.resize(static_cast<size_t>(keys * row));
    saved.v.resize(static_cast<size_t>(keys * row));
    saved.lse.resize(static_cast<size_t>(queries));
  }
  if (spec.dtype == DType::kFloat32) saved.lse_low.resize(static_cast<size_t>(queries));
  return saved;
}

// visit(data, bytes) for each part of an entry of the batch.
template <typename Of, typename Visit>
void each_part(Of& saved, int64_t batch, int64_t entry, Visit visit) {
  const auto part = [&](auto& of) {
    const size_t count = of.size() / static_cast<size_t>(batch);
    if (count > 0)
      visit(of.data() + static_cast<size_t>(entry) * count, count * sizeof(of.front()));
  };
  part(saved.q);
  part(saved.k);
  part(saved.v);
  part(saved.lse);
  part(saved.lse_low);
}

}  // namespace

int64_t saved_bytes_of_entry(const AttentionPlan& plan) {
  const int64_t q_heads = plan.heads.q_end - plan.heads.q_begin;
  const int64_t kv_heads = plan.heads.kv_end - plan.heads.kv_begin;
  const int64_t row = plan.spec.head_dim * static_cast<int64_t>(size_of(plan.spec.dtype));
  const int64_t queries = plan.group_tokens() * q_heads;
  const int64_t exchanged = queries * (row + 4) + 2 * plan.group_keys() * kv_heads * row;
  const int64_t low = plan.spec.dtype == DType::kFloat32 ? queries * 4 : 0;
  return low + (plan.spec.ulysses > 1 ? exchanged : 0);
}

void write_saved(const AttentionPlan& plan, const Saved& saved, std::byte* bytes) {
  for (int64_t entry = 0; entry < plan.spec.batch; ++entry) {
    each_part(saved, plan.spec.batch, entry, [&](const void* data, size_t size) {
      std::memcpy(bytes, data, size);
      bytes += size;
    });
  }
}

Saved read_saved(const AttentionPlan& plan, const std::byte* bytes) {
  Saved saved = room_for(plan);
  for (int64_t entry = 0; entry < plan.spec.batch; ++entry) {
    each_part(saved, plan.spec.batch, entry, [&](void* data, size_t size) {
      std::memcpy(data, bytes, size);
      bytes += size;
    });
  }
  return saved;
}

}  // namespace rueda::attention
