#include "attention/leaves.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/compute.h"
#include "attention/exchange.h"
#include "attention/sums.h"
#include "attention/wire.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Copy {
  const std::byte* from;
  std::byte* to;
  int64_t bytes;  // of an element
  void operator()(int64_t at, int64_t into, int64_t count) const {
    std::memcpy(to + into * bytes, from + at * bytes, static_cast<size_t>(count * bytes));
  }
};

struct Add {
  const float* from;  // the message
  float* to;
  void operator()(int64_t at, int64_t into, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[at + i] += from[into + i];
  }
};

// Rows of float32 into a message, times exp(-low) of each row and head: who computes with them then
// needs no low (see KernelTile). `width` elements to a row and head.
struct CopyFolded {
  const float* from;
  float* to;
  const float* low;
  int64_t width;
  void operator()(int64_t at, int64_t into, int64_t count) const {
    for (int64_t i = 0; i < count; ++i)
      to[into + i] = from[at + i] * std::exp(-low[(at + i) / width]);
  }
};

void narrow(DType dtype, const float* from, std::byte* to, int64_t count) {
  kernels::convert_from_f32(dtype, from, to, static_cast<size_t>(count));
}
float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }

}  // namespace

// What is attended to: the group's tensors where there is a group, else the rank's own.
class Leaves::Shard {
 public:
  Shard(const AttentionPlan& plan, const Program& program, const Means& means)
      : plan_(plan),
        spec_(plan.spec),
        program_(program),
        ring_(program.backward ? plan.backward : plan.forward),
        means_(means),
        wide_(Geometry::local(plan, Side::kQueries, spec_.head_dim)),
        narrow_(Geometry::local(plan, Side::kQueries, 1)),
        keys_(Geometry::local(plan, Side::kKeys, spec_.head_dim)),
        element_(static_cast<int64_t>(size_of(spec_.dtype))) {}

  std::byte* of(Role role) const {
    const int buffer = program_.find(role);
    return buffer < 0 ? nullptr : memory_[static_cast<size_t>(buffer)];
  }
  // Where the memory lies from now on.
  void look(std::span<std::byte* const> memory) {
    memory_ = memory;
    const bool group = spec_.ulysses > 1;
    const auto at = [&](Role grouped, Role own) { return of(group ? grouped : own); };
    const auto sums = [&](Role apart, std::byte* result) {
      return floats(program_.find(apart) < 0 ? result : of(apart));
    };
    float* lse = floats(at(Role::kGroupLse, Role::kLseRows));
    float* low = floats(of(Role::kLseLow));
    const std::byte* q = at(Role::kGroupQ, Role::kQ);
    const std::byte* k = at(Role::kGroupK, Role::kK);
    const std::byte* v = at(Role::kGroupV, Role::kV);
    if (program_.backward) {
      dq_ = at(Role::kGroupDq, Role::kDq);
      dk_ = at(Role::kGroupDk, Role::kDk);
      dv_ = at(Role::kGroupDv, Role::kDv);
      mine_ = {&wide_,
               &narrow_,
               q,
               nullptr,
               nullptr,
               nullptr,
               at(Role::kGroupDout, Role::kDout),
               lse,
               floats(at(Role::kGroupDelta, Role::kDelta)),
               sums(Role::kSumDq, dq_),
               low};
      mine_keys_ = {&keys_, spec_.dtype, k, v, sums(Role::kSumDk, dk_), sums(Role::kSumDv, dv_)};
    } else {
      out_ = at(Role::kGroupOut, Role::kOut);
      low_ = low;
      mine_ = {&wide_,  &narrow_,
               q,       sums(Role::kSumOut, out_),
               lse,     floats(of(Role::kSumWeights)),
               nullptr, nullptr,
               nullptr, nullptr};
      mine_keys_ = {&keys_, spec_.dtype, k, v, nullptr, nullptr};
    }
  }

  void clear() const {
    if (program_.backward) {
      std::fill_n(mine_.dq, wide_.elements(), 0.0f);
      std::fill_n(mine_keys_.dk, keys_.elements(), 0.0f);
      std::fill_n(mine_keys_.dv, keys_.elements(), 0.0f);
      return;
    }
    std::fill_n(mine_.acc, wide_.elements(), 0.0f);
    std::fill_n(mine_.m, narrow_.elements(), kNone);
    std::fill_n(mine_.l, narrow_.elements(), 0.0f);
  }

  void finish_sums() const {
    if (!program_.backward) {
      finish(mine_.acc, mine_.m, mine_.l, narrow_.elements(), spec_.head_dim, low_);
      if (program_.find(Role::kSumOut) >= 0) narrow(spec_.dtype, mine_.acc, out_, wide_.elements());
      return;
    }
    narrow(spec_.dtype, mine_.dq, dq_, wide_.elements());
    if (program_.find(Role::kSumDk) < 0) return;
    narrow(spec_.dtype, mine_keys_.dk, dk_, keys_.elements());
    narrow(spec_.dtype, mine_keys_.dv, dv_, keys_.elements());
  }

  void pack(const Hop& hop, std::byte* message) const {
    if (ring_.rotate == Rotate::kKeysAndValues) {
      pack_keys(spec_, keys_in(hop), keys_, mine_keys_.k, mine_keys_.v, message);
    } else if (program_.backward) {
      pack_queries(hop, message);
    } else {
      queries_in(hop).each_row(wide_, Copy{mine_.q, message, element_});
    }
  }

  void attend_at_home(int64_t key) const {
    compute(plan_, program_.backward, plan_.local_tiles(ring_, key), mine_, mine_keys_, means_);
  }

  void attend(const Hop& hop, std::byte* message, std::byte* answer) const {
    if (ring_.rotate == Rotate::kKeysAndValues) {
      const Geometry here = keys_in(hop);
      const ReceivedKeys came =
          unpack_keys(spec_, here.elements(), message, floats(of(Role::kWidened)));
      KeySide theirs{&here, came.dtype, came.k, came.v, nullptr, nullptr};
      if (program_.backward) {  // the answer: dk, then dv
        theirs.dk = floats(answer);
        theirs.dv = theirs.dk + here.elements();
        std::fill_n(theirs.dk, 2 * here.elements(), 0.0f);
      }
      compute(plan_, program_.backward, hop.tiles, mine_, theirs, means_);
      return;
    }
    const Geometry wide = queries_in(hop), thin = rows_in(hop);
    QuerySide theirs{&wide, &thin};
    if (program_.backward) {  // the answer: dq
      theirs.lse = floats(message);
      theirs.delta = theirs.lse + thin.elements();
      theirs.q = message + 8 * thin.elements();
      theirs.dout = theirs.q + wide.elements() * element_;
      theirs.dq = floats(answer);
      std::fill_n(theirs.dq, wide.elements(), 0.0f);
    } else {  // the answer: acc, then m, then l
      theirs.q = message;
      theirs.acc = floats(answer);
      theirs.m = theirs.acc + wide.elements();
      theirs.l = theirs.m + thin.elements();
      std::fill_n(theirs.acc, wide.elements(), 0.0f);
      std::fill_n(theirs.m, thin.elements(), kNone);
      std::fill_n(theirs.l, thin.elements(), 0.0f);
    }
    compute(plan_, program_.backward, hop.tiles, theirs, mine_keys_, means_);
  }

  void merge_answer(const Hop& hop, const std::byte* answer) const {
    const auto* sums = reinterpret_cast<const float*>(answer);
    if (ring_.rotate == Rotate::kKeysAndValues) {
      const Geometry there = keys_in(hop);
      there.each_row(keys_, Add{sums, mine_keys_.dk});
      there.each_row(keys_, Add{sums + there.elements(), mine_keys_.dv});
      return;
    }
    const Geometry wide = queries_in(hop);
    if (program_.backward) {
      wide.each_row(wide_, Add{sums, mine_.dq});
      return;
    }
    const int64_t d = spec_.head_dim;
    const float* largest = sums + wide.elements();
    const float* weights = largest + wide.elements() / d;
    rows_in(hop).each_row(narrow_, [&](int64_t at, int64_t into, int64_t count) {
      merge(sums + into * d, largest + into, weights + into, count, d, mine_.acc + at * d,
            mine_.m + at, mine_.l + at);
    });
  }

 private:
  Geometry keys_in(const Hop& hop) const {
    return Geometry::message(plan_, hop.rows, Side::kKeys, spec_.head_dim);
  }
  Geometry queries_in(const Hop& hop) const {
    return Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim);
  }
  Geometry rows_in(const Hop& hop) const {
    return Geometry::message(plan_, hop.rows, Side::kQueries, 1);
  }

  // The message: lse and delta, q, dout.
  void pack_queries(const Hop& hop, std::byte* message) const {
    const Geometry wide = queries_in(hop), thin = rows_in(hop);
    const auto bytes = [](const float* memory) {
      return reinterpret_cast<const std::byte*>(memory);
    };
    std::byte* after = message + 8 * thin.elements();
    thin.each_row(narrow_, Copy{bytes(mine_.lse), message, 4});
    wide.each_row(wide_, Copy{mine_.q, after, element_});
    std::byte* deltas = message + 4 * thin.elements();
    std::byte* douts = after + wide.elements() * element_;
    if (mine_.lse_low == nullptr) {
      thin.each_row(narrow_, Copy{bytes(mine_.delta), deltas, 4});
      wide.each_row(wide_, Copy{mine_.dout, douts, element_});
      return;
    }
    thin.each_row(narrow_, CopyFolded{mine_.delta, floats(deltas), mine_.lse_low, 1});
    wide.each_row(wide_, CopyFolded{reinterpret_cast<const float*>(mine_.dout), floats(douts),
                                    mine_.lse_low, spec_.head_dim});
  }

  const AttentionPlan& plan_;
  const AttentionSpec& spec_;
  const Program& program_;
  const RingPlan& ring_;
  const Means means_;
  const Geometry wide_, narrow_, keys_;
  const int64_t element_;
  std::span<std::byte* const> memory_;
  QuerySide mine_;
  KeySide mine_keys_;
  std::byte *out_ = nullptr, *dq_ = nullptr, *dk_ = nullptr, *dv_ = nullptr;
  float* low_ = nullptr;
};

Leaves::Leaves(const AttentionPlan& plan, const Program& program, const Means& means)
    : plan_(plan), program_(program), shard_(std::make_unique<Shard>(plan, program, means)) {}
Leaves::~Leaves() = default;

void Leaves::perform(const Instruction& one, std::span<std::byte* const> memory) {
  Shard& shard = *shard_;
  shard.look(memory);
  const RingPlan& ring = program_.backward ? plan_.backward : plan_.forward;
  const auto message = [&](int buffer) {
    return buffer < 0 ? nullptr : memory[static_cast<size_t>(buffer)];
  };
  const auto of = [&](Role role) { return floats(shard.of(role)); };
  const auto hop = static_cast<size_t>(std::max(one.hop, 0));
  const int64_t batch = plan_.spec.batch, rows = plan_.own_tokens(), heads = plan_.spec.heads;
  const bool inward = one.stage == Stage::kInward;
  const Rank place = one.peer - plan_.group_begin();
  switch (one.op) {
    case Op::kTranspose:
      if (!one.last) {
        transpose(of(Role::kLse), batch, heads, rows, of(Role::kLseRows));
      } else if (of(Role::kLse) != nullptr) {
        transpose(of(Role::kLseRows), batch, rows, heads, of(Role::kLse));
      }
      break;
    case Op::kDelta: {
      const float* dlse = nullptr;
      if (of(Role::kDlse) != nullptr) {
        transpose(of(Role::kDlse), batch, heads, rows, of(Role::kLseRows));
        dlse = of(Role::kLseRows);
      }
      make_delta(plan_.spec, shard.of(Role::kDout), shard.of(Role::kOut), dlse,
                 batch * rows * heads, of(Role::kDelta));
      break;
    }
    case Op::kClear: shard.clear(); break;
    case Op::kPack:
      if (one.stage == Stage::kRing) {
        shard.pack(ring.sends[hop], message(one.message));
      } else {
        pack_heads(plan_, program_, inward, place, memory, message(one.message));
      }
      break;
    case Op::kUnpack:
      unpack_heads(plan_, program_, inward, place, memory, message(one.message));
      break;
    case Op::kAttend:
      if (one.hop < 0) {
        shard.attend_at_home(one.key);
      } else {
        shard.attend(ring.receives[hop], message(one.message), message(one.reply));
      }
      break;
    case Op::kMerge: shard.merge_answer(ring.sends[hop], message(one.message)); break;
    case Op::kFinish: shard.finish_sums(); break;
    case Op::kSumHeads: {
      const int64_t count = batch * plan_.own_keys() * plan_.spec.kv_heads * plan_.spec.head_dim;
      const bool apart = program_.find(Role::kOwnSumDk) >= 0;
      float* dk = of(apart ? Role::kOwnSumDk : Role::kDk);
      float* dv = of(apart ? Role::kOwnSumDv : Role::kDv);
      if (one.last) {
        narrow(plan_.spec.dtype, dk, shard.of(Role::kDk), count);
        narrow(plan_.spec.dtype, dv, shard.of(Role::kDv), count);
      } else {
        std::fill_n(dk, count, 0.0f);
        std::fill_n(dv, count, 0.0f);
      }
      break;
    }
    case Op::kSend:
    case Op::kReceive:
    case Op::kFree: break;  // the executor's
  }
}

}  // namespace rueda::attention
