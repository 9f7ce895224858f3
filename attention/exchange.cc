#include "attention/exchange.h"

#include <cstring>

namespace rueda::attention {
namespace {

// Rows [row, row + rows) and heads [head, head + heads) of a tensor.
struct Rectangle {
  std::byte* base;
  int64_t tensor_rows, tensor_heads;
  int64_t row, rows, head, heads;
};

// Calls copy(address in the tensor, offset in the message, bytes) for each row of the part.
template <typename Fn>
void each_row(const Rectangle& part, int64_t batch, int64_t head_bytes, Fn copy) {
  int64_t at = 0;
  const int64_t bytes = part.heads * head_bytes;
  if (bytes == 0) return;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < part.rows; ++r, at += bytes) {
      const int64_t row = b * part.tensor_rows + part.row + r;
      copy(part.base + (row * part.tensor_heads + part.head) * head_bytes, at, bytes);
    }
  }
}

class Group {
 public:
  explicit Group(const AttentionPlan& plan) : plan_(plan) {
    int64_t row = 0, key = 0;
    for (Rank u = 0; u < plan.spec.ulysses; ++u) {
      first_row_.push_back(row);
      first_key_.push_back(key);
      row += token_count(plan.spec, plan.group_begin() + u);
      key += key_count(plan.spec, plan.group_begin() + u);
    }
    first_row_.push_back(row);
    first_key_.push_back(key);
  }

  // This rank's part in what it and place u exchange: of `own`, my tokens and u's heads; of
  // `group`, u's tokens and my heads.
  Rectangle part(const Exchanged& t, Rank u, bool of_own, std::byte* base) const {
    const auto heads = [&](const HeadShare& share) {
      return t.keys ? std::pair(share.kv_begin, share.kv_end)
                    : std::pair(share.q_begin, share.q_end);
    };
    if (of_own) {
      const auto [begin, end] = heads(heads_of(plan_.spec, u));
      const int64_t rows = t.keys ? plan_.own_keys() : plan_.own_tokens();
      return {base,  rows,       t.keys ? plan_.spec.kv_heads : plan_.spec.heads, 0, rows,
              begin, end - begin};
    }
    const auto [begin, end] = heads(plan_.heads);
    const auto place = static_cast<size_t>(u);
    const std::vector<int64_t>& first = t.keys ? first_key_ : first_row_;
    return {base, first.back(), end - begin, first[place], first[place + 1] - first[place],
            0,    end - begin};
  }
  int64_t bytes(const Exchanged& t, const Rectangle& part) const {
    return part.rows * part.heads * plan_.spec.batch * t.width * t.bytes;
  }

 private:
  const AttentionPlan& plan_;
  std::vector<int64_t> first_row_, first_key_;
};

std::byte* memory_of(const Program& program, std::span<std::byte* const> memory, Role role) {
  return memory[static_cast<size_t>(program.find(role))];
}

}  // namespace

std::vector<Exchanged> exchanged(const AttentionPlan& plan, bool backward, bool inward) {
  const int64_t d = plan.spec.head_dim, e = static_cast<int64_t>(size_of(plan.spec.dtype));
  if (!backward && inward) {
    return {{Role::kQ, Role::kGroupQ, false, d, e},
            {Role::kK, Role::kGroupK, true, d, e},
            {Role::kV, Role::kGroupV, true, d, e}};
  }
  if (!backward) {
    return {{Role::kLseRows, Role::kGroupLse, false, 1, 4},
            {Role::kOut, Role::kGroupOut, false, d, e}};
  }
  if (inward) {
    return {{Role::kDelta, Role::kGroupDelta, false, 1, 4},
            {Role::kDout, Role::kGroupDout, false, d, e}};
  }
  // A head that several ranks have computed with: its gradients are added, in float32.
  const bool add = replicates_kv(plan.spec);
  const bool apart = add && e != 4;
  return {{apart ? Role::kOwnSumDk : Role::kDk, Role::kGroupDk, true, d, add ? 4 : e, add},
          {apart ? Role::kOwnSumDv : Role::kDv, Role::kGroupDv, true, d, add ? 4 : e, add},
          {Role::kDq, Role::kGroupDq, false, d, e}};
}

int64_t exchange_bytes(const AttentionPlan& plan, bool backward, bool inward, Rank u, bool sent) {
  const Group group(plan);
  int64_t sum = 0;
  for (const Exchanged& t : exchanged(plan, backward, inward))
    sum += group.bytes(t, group.part(t, u, inward == sent, nullptr));
  return sum;
}

std::vector<HeadsPart> heads_parts(const AttentionPlan& plan, bool backward, bool inward, Rank u,
                                   bool packs) {
  const Group group(plan);
  std::vector<HeadsPart> parts;
  const bool of_own = inward == packs;
  for (const Exchanged& t : exchanged(plan, backward, inward)) {
    const Rectangle p = group.part(t, u, of_own, nullptr);
    parts.push_back({of_own ? t.own : t.group, p.row, p.rows, p.head, p.heads, group.bytes(t, p),
                     t.add && !packs});
  }
  return parts;
}

void pack_heads(const AttentionPlan& plan, const Program& program, bool inward, Rank u,
                std::span<std::byte* const> memory, std::byte* to) {
  const Group group(plan);
  for (const Exchanged& t : exchanged(plan, program.backward, inward)) {
    const Rectangle p =
        group.part(t, u, inward, memory_of(program, memory, inward ? t.own : t.group));
    each_row(p, plan.spec.batch, t.width * t.bytes,
             [&](const std::byte* at, int64_t in, int64_t n) {
               std::memcpy(to + in, at, static_cast<size_t>(n));
             });
    to += group.bytes(t, p);
  }
}

void unpack_heads(const AttentionPlan& plan, const Program& program, bool inward, Rank u,
                  std::span<std::byte* const> memory, const std::byte* from) {
  const Group group(plan);
  for (const Exchanged& t : exchanged(plan, program.backward, inward)) {
    const Rectangle p =
        group.part(t, u, !inward, memory_of(program, memory, inward ? t.group : t.own));
    each_row(p, plan.spec.batch, t.width * t.bytes, [&](std::byte* at, int64_t in, int64_t n) {
      if (!t.add) {
        std::memcpy(at, from + in, static_cast<size_t>(n));
        return;
      }
      auto* sum = reinterpret_cast<float*>(at);
      const auto* more = reinterpret_cast<const float*>(from + in);
      for (int64_t i = 0; i < n / 4; ++i) sum[i] += more[i];
    });
    from += group.bytes(t, p);
  }
}

}  // namespace rueda::attention
