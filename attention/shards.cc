#include "attention/shards.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/compute.h"
#include "attention/ring.h"
#include "attention/wire.h"
#include "attention/workspace.h"
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

// acc / l and m + log l, in place (acc may be out itself); rows x width. low, if any, gets what the
// latter loses by rounding.
void finish(float* acc, float* m, const float* l, int64_t rows, int64_t width, float* low) {
  for (int64_t i = 0; i < rows; ++i) {
    if (low != nullptr) low[i] = 0;
    if (l[i] == 0) continue;  // saw no key: zeros and -infinity
    const float factor = 1.0f / l[i];
    for (int64_t x = 0; x < width; ++x) acc[i * width + x] *= factor;
    const double lse = static_cast<double>(m[i]) + std::log(static_cast<double>(l[i]));
    m[i] = static_cast<float>(lse);
    if (low != nullptr) low[i] = static_cast<float>(lse - static_cast<double>(m[i]));
  }
}

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
  if (dtype == DType::kFloat32) return;  // was computed in place
  kernels::convert_from_f32(dtype, from, to, static_cast<size_t>(count));
}

class Shard {
 public:
  Shard(const AttentionPlan& plan, Link* link, int threads)
      : plan_(plan),
        spec_(plan.spec),
        link_(link),
        threads_(threads),
        wide_(Geometry::local(plan, Side::kQueries, spec_.head_dim)),
        narrow_(Geometry::local(plan, Side::kQueries, 1)),
        keys_(Geometry::local(plan, Side::kKeys, spec_.head_dim)),
        element_(static_cast<int64_t>(size_of(spec_.dtype))) {}

 protected:
  // float32 sums of what has `count` elements: the result itself if it is float32.
  float* sums(std::byte* result, int64_t count, bool is_wide) {
    float* to = is_wide ? reinterpret_cast<float*>(result) : link_->take_array<float>(count);
    std::fill_n(to, count, 0.0f);
    return to;
  }
  bool is_wide() const { return spec_.dtype == DType::kFloat32; }
  // Where int8 becomes float32.
  float* wide_keys(const RingPlan& ring) {
    return link_->take_array<float>(widened_floats(plan_, ring));
  }

  const AttentionPlan& plan_;
  const AttentionSpec& spec_;
  Link* link_;
  const int threads_;
  const Geometry wide_, narrow_, keys_;
  const int64_t element_;
};

class Forward : Shard {
 public:
  using Shard::Shard;
  Status run(const ShardForward& t) {
    const int64_t rows = narrow_.elements();
    float* acc = sums(t.out, wide_.elements(), is_wide());
    float* m = t.lse;
    float* l = link_->take_array<float>(rows);
    std::fill_n(m, rows, kNone);
    std::fill_n(l, rows, 0.0f);
    const QuerySide queries{&wide_, &narrow_, t.q, acc, m, l, nullptr, nullptr, nullptr, nullptr};
    const KeySide keys{&keys_, spec_.dtype, t.k, t.v, nullptr, nullptr};
    RingCalls calls;
    calls.local = [&](int64_t key) {
      compute(plan_, false, plan_.local_tiles(plan_.forward, key), queries, keys, threads_);
    };
    if (plan_.forward.rotate == Rotate::kKeysAndValues) {
      keys_travel(t, queries, &calls);
    } else {
      queries_travel(t, queries, keys, &calls);
    }
    RUEDA_RETURN_IF_ERROR(run_ring(plan_, false, link_, calls));
    finish(acc, m, l, rows, spec_.head_dim, t.lse_low);
    narrow(spec_.dtype, acc, t.out, wide_.elements());
    return {};
  }

 private:
  void keys_travel(const ShardForward& t, const QuerySide& queries, RingCalls* calls) {
    calls->pack = [this, &t](const Hop& hop, std::byte* message) {
      pack_keys(spec_, Geometry::message(plan_, hop.rows, Side::kKeys, spec_.head_dim), keys_, t.k,
                t.v, message);
    };
    calls->serve = [this, &queries, wide = wide_keys(plan_.forward)](
                       const Hop& hop, const std::byte* message, std::byte*) {
      const Geometry here = Geometry::message(plan_, hop.rows, Side::kKeys, spec_.head_dim);
      const ReceivedKeys came = unpack_keys(spec_, here.elements(), message, wide);
      const KeySide theirs{&here, came.dtype, came.k, came.v, nullptr, nullptr};
      compute(plan_, false, hop.tiles, queries, theirs, threads_);
    };
  }

  // The answer: acc, then m, then l.
  void queries_travel(const ShardForward& t, const QuerySide& mine, const KeySide& keys,
                      RingCalls* calls) {
    calls->pack = [this, &t](const Hop& hop, std::byte* message) {
      Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim)
          .each_row(wide_, Copy{t.q, message, element_});
    };
    calls->serve = [this, &keys](const Hop& hop, const std::byte* message, std::byte* answer) {
      const Geometry wide = Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim);
      const Geometry thin = Geometry::message(plan_, hop.rows, Side::kQueries, 1);
      auto* acc = reinterpret_cast<float*>(answer);
      float* m = acc + wide.elements();
      float* l = m + thin.elements();
      std::fill_n(acc, wide.elements(), 0.0f);
      std::fill_n(m, thin.elements(), kNone);
      std::fill_n(l, thin.elements(), 0.0f);
      const QuerySide theirs{&wide, &thin, message, acc, m, l, nullptr, nullptr, nullptr, nullptr};
      compute(plan_, false, hop.tiles, theirs, keys, threads_);
    };
    calls->absorb = [this, &mine](const Hop& hop, const std::byte* answer) {
      const Geometry wide = Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim);
      const auto* sums = reinterpret_cast<const float*>(answer);
      const float* largest = sums + wide.elements();
      const float* weights = largest + wide.elements() / spec_.head_dim;
      const int64_t d = spec_.head_dim;
      const auto merge = [&](int64_t at, int64_t into, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const float theirs = largest[into + i];
          if (theirs == kNone) continue;
          float& m = mine.m[at + i];
          float& l = mine.l[at + i];
          float* acc = mine.acc + (at + i) * d;
          const float* add = sums + (into + i) * d;
          const float now = std::max(m, theirs);
          const float keep = std::exp(m - now), take = std::exp(theirs - now);
          for (int64_t x = 0; x < d; ++x) acc[x] = acc[x] * keep + add[x] * take;
          l = l * keep + weights[into + i] * take;
          m = now;
        }
      };
      Geometry::message(plan_, hop.rows, Side::kQueries, 1).each_row(narrow_, merge);
    };
  }
};

class Backward : Shard {
 public:
  using Shard::Shard;
  Status run(const ShardBackward& t) {
    const bool wide_kv = is_wide() || t.wide_kv_gradients;
    float* dq = sums(t.dq, wide_.elements(), is_wide());
    float* dk = sums(t.dk, keys_.elements(), wide_kv);
    float* dv = sums(t.dv, keys_.elements(), wide_kv);
    const QuerySide queries{&wide_, &narrow_, t.q,     nullptr, nullptr,  nullptr,
                            t.dout, t.lse,    t.delta, dq,      t.lse_low};
    const KeySide keys{&keys_, spec_.dtype, t.k, t.v, dk, dv};
    RingCalls calls;
    calls.local = [&](int64_t key) {
      compute(plan_, true, plan_.local_tiles(plan_.backward, key), queries, keys, threads_);
    };
    if (plan_.backward.rotate == Rotate::kKeysAndValues) {
      keys_travel(queries, keys, &calls);
    } else {
      queries_travel(queries, keys, &calls);
    }
    RUEDA_RETURN_IF_ERROR(run_ring(plan_, true, link_, calls));
    narrow(spec_.dtype, dq, t.dq, wide_.elements());
    if (wide_kv) return {};
    narrow(spec_.dtype, dk, t.dk, keys_.elements());
    narrow(spec_.dtype, dv, t.dv, keys_.elements());
    return {};
  }

 private:
  // The answer: dk, then dv.
  void keys_travel(const QuerySide& queries, const KeySide& keys, RingCalls* calls) {
    calls->pack = [this, &keys](const Hop& hop, std::byte* message) {
      pack_keys(spec_, Geometry::message(plan_, hop.rows, Side::kKeys, spec_.head_dim), keys_,
                keys.k, keys.v, message);
    };
    calls->serve = [this, &queries, wide = wide_keys(plan_.backward)](
                       const Hop& hop, const std::byte* message, std::byte* answer) {
      const Geometry here = Geometry::message(plan_, hop.rows, Side::kKeys, spec_.head_dim);
      const ReceivedKeys came = unpack_keys(spec_, here.elements(), message, wide);
      auto* dk = reinterpret_cast<float*>(answer);
      std::fill_n(dk, 2 * here.elements(), 0.0f);
      const KeySide theirs{&here, came.dtype, came.k, came.v, dk, dk + here.elements()};
      compute(plan_, true, hop.tiles, queries, theirs, threads_);
    };
    calls->absorb = [this, &keys](const Hop& hop, const std::byte* answer) {
      const Geometry there = Geometry::message(plan_, hop.rows, Side::kKeys, spec_.head_dim);
      const auto* dk = reinterpret_cast<const float*>(answer);
      there.each_row(keys_, Add{dk, keys.dk});
      there.each_row(keys_, Add{dk + there.elements(), keys.dv});
    };
  }

  // The message: lse and delta, q, dout. The answer: dq.
  void queries_travel(const QuerySide& mine, const KeySide& keys, RingCalls* calls) {
    calls->pack = [this, &mine](const Hop& hop, std::byte* message) {
      const Geometry wide = Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim);
      const Geometry thin = Geometry::message(plan_, hop.rows, Side::kQueries, 1);
      const auto bytes = [](const float* floats) {
        return reinterpret_cast<const std::byte*>(floats);
      };
      std::byte* after = message + 8 * thin.elements();
      thin.each_row(narrow_, Copy{bytes(mine.lse), message, 4});
      wide.each_row(wide_, Copy{mine.q, after, element_});
      std::byte* deltas = message + 4 * thin.elements();
      std::byte* douts = after + wide.elements() * element_;
      if (mine.lse_low == nullptr) {
        thin.each_row(narrow_, Copy{bytes(mine.delta), deltas, 4});
        wide.each_row(wide_, Copy{mine.dout, douts, element_});
        return;
      }
      const auto floats = [](std::byte* memory) { return reinterpret_cast<float*>(memory); };
      thin.each_row(narrow_, CopyFolded{mine.delta, floats(deltas), mine.lse_low, 1});
      wide.each_row(wide_, CopyFolded{reinterpret_cast<const float*>(mine.dout), floats(douts),
                                      mine.lse_low, spec_.head_dim});
    };
    calls->serve = [this, &keys](const Hop& hop, const std::byte* message, std::byte* answer) {
      const Geometry wide = Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim);
      const Geometry thin = Geometry::message(plan_, hop.rows, Side::kQueries, 1);
      const auto* lse = reinterpret_cast<const float*>(message);
      const std::byte* q = message + 8 * thin.elements();
      auto* dq = reinterpret_cast<float*>(answer);
      std::fill_n(dq, wide.elements(), 0.0f);
      const QuerySide theirs{&wide,
                             &thin,
                             q,
                             nullptr,
                             nullptr,
                             nullptr,
                             q + wide.elements() * element_,
                             lse,
                             lse + thin.elements(),
                             dq};
      compute(plan_, true, hop.tiles, theirs, keys, threads_);
    };
    calls->absorb = [this, &mine](const Hop& hop, const std::byte* answer) {
      Geometry::message(plan_, hop.rows, Side::kQueries, spec_.head_dim)
          .each_row(wide_, Add{reinterpret_cast<const float*>(answer), mine.dq});
    };
  }
};

}  // namespace

Status forward_shard(const AttentionPlan& plan, Link* link, int threads, const ShardForward& t) {
  return Forward(plan, link, threads).run(t);
}

Status backward_shard(const AttentionPlan& plan, Link* link, int threads, const ShardBackward& t) {
  return Backward(plan, link, threads).run(t);
}

}  // namespace rueda::attention
