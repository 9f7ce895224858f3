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
  Group(const AttentionPlan& plan, bool inward) : plan_(plan), inward_(inward) {
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
  Rectangle part(const Exchanged& t, Rank u, bool of_own) const {
    const auto heads = [&](const HeadShare& share) {
      return t.keys ? std::pair(share.kv_begin, share.kv_end)
                    : std::pair(share.q_begin, share.q_end);
    };
    if (of_own) {
      const auto [begin, end] = heads(heads_of(plan_.spec, u));
      const int64_t rows = t.keys ? plan_.own_keys() : plan_.own_tokens();
      return {t.own, rows,       t.keys ? plan_.spec.kv_heads : plan_.spec.heads, 0, rows,
              begin, end - begin};
    }
    const auto [begin, end] = heads(plan_.heads);
    const auto place = static_cast<size_t>(u);
    const std::vector<int64_t>& first = t.keys ? first_key_ : first_row_;
    return {t.group, first.back(), end - begin, first[place], first[place + 1] - first[place],
            0,       end - begin};
  }
  int64_t bytes(const std::vector<Exchanged>& tensors, Rank u, bool of_own) const {
    int64_t sum = 0;
    for (const Exchanged& t : tensors) {
      const Rectangle p = part(t, u, of_own);
      sum += p.rows * p.heads * plan_.spec.batch * t.width * t.bytes;
    }
    return sum;
  }
  void pack(const std::vector<Exchanged>& tensors, Rank u, std::byte* to) const {
    for (const Exchanged& t : tensors) {
      const Rectangle p = part(t, u, inward_);
      each_row(p, plan_.spec.batch, t.width * t.bytes,
               [&](const std::byte* at, int64_t in, int64_t n) {
                 std::memcpy(to + in, at, static_cast<size_t>(n));
               });
      to += p.rows * p.heads * plan_.spec.batch * t.width * t.bytes;
    }
  }
  void unpack(const std::vector<Exchanged>& tensors, Rank u, const std::byte* from) const {
    for (const Exchanged& t : tensors) {
      const Rectangle p = part(t, u, !inward_);
      each_row(p, plan_.spec.batch, t.width * t.bytes, [&](std::byte* at, int64_t in, int64_t n) {
        if (!t.add) {
          std::memcpy(at, from + in, static_cast<size_t>(n));
          return;
        }
        auto* sum = reinterpret_cast<float*>(at);
        const auto* more = reinterpret_cast<const float*>(from + in);
        for (int64_t i = 0; i < n / 4; ++i) sum[i] += more[i];
      });
      from += p.rows * p.heads * plan_.spec.batch * t.width * t.bytes;
    }
  }

 private:
  const AttentionPlan& plan_;
  const bool inward_;
  std::vector<int64_t> first_row_, first_key_;
};

}  // namespace

Status exchange(const AttentionPlan& plan, Link* link, bool inward,
                const std::vector<Exchanged>& tensors, const char* what) {
  const Group group(plan, inward);
  const size_t mark = link->mark();
  const Rank size = plan.spec.ulysses, mine = plan.rank % size;
  std::vector<std::byte*> came(static_cast<size_t>(size), nullptr);
  std::vector<Link::Message> receives(static_cast<size_t>(size)), sends(static_cast<size_t>(size));
  for (Rank u = 0; u < size; ++u) {
    if (u == mine) continue;
    const int64_t bytes = group.bytes(tensors, u, !inward);
    const Rank peer = plan.group_begin() + u;
    came[static_cast<size_t>(u)] = link->take(bytes);
    auto message = link->recv(peer, came[static_cast<size_t>(u)], bytes);
    if (!message.ok()) return link->named(message.status(), what, "receiving from", peer);
    receives[static_cast<size_t>(u)] = std::move(message).value();
  }
  for (Rank u = 0; u < size; ++u) {
    if (u == mine) continue;
    const int64_t bytes = group.bytes(tensors, u, inward);
    const Rank peer = plan.group_begin() + u;
    std::byte* memory = link->take(bytes);
    group.pack(tensors, u, memory);
    auto message = link->send(peer, memory, bytes);
    if (!message.ok()) return link->named(message.status(), what, "sending to", peer);
    sends[static_cast<size_t>(u)] = std::move(message).value();
  }
  for (Rank u = 0; u < size; ++u) {
    const Rank peer = plan.group_begin() + u;
    if (u == mine) {
      std::byte* memory = link->take(group.bytes(tensors, u, inward));
      group.pack(tensors, u, memory);
      group.unpack(tensors, u, memory);
      continue;
    }
    const auto place = static_cast<size_t>(u);
    RUEDA_RETURN_IF_ERROR(link->named(link->wait(receives[place]), what, "receiving from", peer));
    group.unpack(tensors, u, came[place]);
  }
  for (Rank u = 0; u < size; ++u) {
    RUEDA_RETURN_IF_ERROR(link->named(link->wait(sends[static_cast<size_t>(u)]), what, "sending to",
                                      plan.group_begin() + u));
  }
  link->release_to(mark);
  return {};
}

}  // namespace rueda::attention
