// Attention over ranks as threads, against the oracle.
#pragma once

#include <cmath>
#include <cstring>

#include "attention/engine.h"
#include "attention/saved.h"
#include "collectives/kernels/kernels.h"
#include "tests/attention/oracle.h"
#include "tests/attention/specs.h"
#include "tests/support/thread_world.h"

namespace rueda::testing {

using Floats = std::vector<float>;

struct Problem {
  attention::AttentionSpec spec;
  Floats q, k, v, dout, dlse;  // whole sequence; values that the dtype holds
  int threads = 1;             // of each rank
};

struct Answer {
  Floats out, lse, dq, dk, dv;  // whole sequence
};

inline std::vector<std::byte> narrowed(DType dtype, const Floats& values) {
  std::vector<std::byte> result(values.size() * size_of(dtype));
  if (dtype == DType::kFloat32) {
    if (!values.empty()) std::memcpy(result.data(), values.data(), result.size());
  } else {
    kernels::convert_from_f32(dtype, values.data(), result.data(), values.size());
  }
  return result;
}
inline Floats widened(DType dtype, const std::vector<std::byte>& bytes) {
  Floats values(bytes.size() / size_of(dtype));
  if (dtype == DType::kFloat32) {
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    kernels::convert_to_f32(dtype, bytes.data(), values.data(), values.size());
  }
  return values;
}

inline Problem make_problem(const attention::AttentionSpec& spec, uint64_t seed, float size = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, size);
  Problem problem{spec, {}, {}, {}, {}, {}, 1};
  const auto fill = [&](Floats* values, int64_t count) {
    values->resize(static_cast<size_t>(count));
    for (float& x : *values) x = normal(engine);
    *values = widened(spec.dtype, narrowed(spec.dtype, *values));
  };
  const int64_t rows = spec.batch * spec.length;
  fill(&problem.q, rows * spec.heads * spec.head_dim);
  const int64_t keys = spec.batch * spec.keys();
  fill(&problem.k, keys * spec.kv_heads * spec.head_dim);
  fill(&problem.v, keys * spec.kv_heads * spec.head_dim);
  fill(&problem.dout, rows * spec.heads * spec.head_dim);
  fill(&problem.dlse, rows * spec.heads);
  return problem;
}

// The rows of a rank, batch by batch, out of the whole sequence; and back.
using attention::key_tokens_of;
using attention::tokens_of;

inline Floats shard(const attention::AttentionSpec& spec, Rank rank, const Floats& whole,
                    int64_t width, bool keys = false) {
  Floats part;
  const int64_t length = keys ? spec.keys() : spec.length;
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (const auto& run : keys ? key_tokens_of(spec, rank) : tokens_of(spec, rank)) {
      for (int64_t i = 0; i < run.count; ++i) {
        const float* row = whole.data() + (b * length + run.at(i)) * width;
        part.insert(part.end(), row, row + width);
      }
    }
  }
  return part;
}
inline void unshard(const attention::AttentionSpec& spec, Rank rank, const Floats& part,
                    int64_t width, Floats* whole, bool keys = false) {
  const int64_t length = keys ? spec.keys() : spec.length;
  whole->resize(static_cast<size_t>(spec.batch * length * width));
  const float* row = part.data();
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (const auto& run : keys ? key_tokens_of(spec, rank) : tokens_of(spec, rank)) {
      for (int64_t i = 0; i < run.count; ++i, row += width) {
        std::copy_n(row, width, whole->data() + (b * length + run.at(i)) * width);
      }
    }
  }
}

struct RankAnswer {
  Floats out, lse, dq, dk, dv;
  int64_t workspace_forward = 0, workspace_backward = 0;
};

// Forward and backward of one rank. Throws Failure on an error.
inline RankAnswer run_rank(attention::Engine* engine, const Problem& problem, Rank rank,
                           uint32_t process_set = 0, bool backward = true,
                           bool inline_calls = true) {
  using namespace attention;
  const AttentionSpec& spec = problem.spec;
  const auto plan = std::make_shared<AttentionPlan>(must(engine->plan(spec, process_set)));
  const int64_t d = spec.head_dim;
  const auto in = [&](const Floats& whole, int64_t heads, bool keys) {
    return narrowed(spec.dtype, shard(spec, rank, whole, heads * d, keys));
  };
  const auto q = in(problem.q, spec.heads, false), k = in(problem.k, spec.kv_heads, true),
             v = in(problem.v, spec.kv_heads, true), dout = in(problem.dout, spec.heads, false);
  // (batch, rows, heads) -> (batch, heads, rows)
  const int64_t rows = plan->own_tokens();
  const Floats by_row = shard(spec, rank, problem.dlse, spec.heads);
  Floats dlse(by_row.size()), lse(by_row.size());
  const auto swapped = [&](int64_t b, int64_t i, int64_t h) {
    return static_cast<size_t>((b * spec.heads + h) * rows + i);
  };
  size_t at = 0;
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t h = 0; h < spec.heads; ++h) dlse[swapped(b, i, h)] = by_row[at++];
    }
  }
  std::vector<std::byte> out(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
  const auto saved = std::make_shared<Saved>();
  const auto call = must(engine->forward(plan, process_set, problem.threads,
                                         {q.data(), k.data(), v.data(), out.data(), lse.data()},
                                         saved, inline_calls));
  must(call->wait(std::chrono::nanoseconds(-1)));
  RankAnswer answer;
  answer.workspace_forward = call->workspace();
  answer.out = widened(spec.dtype, out);
  answer.lse.resize(lse.size());
  at = 0;
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t h = 0; h < spec.heads; ++h) answer.lse[at++] = lse[swapped(b, i, h)];
    }
  }
  if (!backward) return answer;
  // A query without keys has no lse to have a gradient of.
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i])) dlse[i] = 0;
  }
  // Through bytes, as frameworks hand it on that know no objects.
  std::vector<std::byte> bytes(
      static_cast<size_t>(attention::saved_bytes_of_entry(*plan) * spec.batch));
  attention::write_saved(*plan, *saved, bytes.data());
  const auto kept = std::make_shared<Saved>(attention::read_saved(*plan, bytes.data()));
  const auto back = must(engine->backward(plan, process_set, problem.threads,
                                          {dout.data(), dlse.data(), q.data(), k.data(), v.data(),
                                           out.data(), lse.data(), dq.data(), dk.data(), dv.data()},
                                          kept, inline_calls));
  must(back->wait(std::chrono::nanoseconds(-1)));
  answer.workspace_backward = back->workspace();
  answer.dq = widened(spec.dtype, dq);
  answer.dk = widened(spec.dtype, dk);
  answer.dv = widened(spec.dtype, dv);
  return answer;
}

inline Answer put_together(const attention::AttentionSpec& spec,
                           const std::vector<RankAnswer>& parts) {
  Answer answer;
  for (Rank r = 0; r < spec.ranks; ++r) {
    const RankAnswer& part = parts[static_cast<size_t>(r)];
    unshard(spec, r, part.out, spec.heads * spec.head_dim, &answer.out);
    unshard(spec, r, part.lse, spec.heads, &answer.lse);
    if (part.dq.empty() && part.dk.empty() && !part.out.empty()) continue;  // no backward
    unshard(spec, r, part.dq, spec.heads * spec.head_dim, &answer.dq);
    unshard(spec, r, part.dk, spec.kv_heads * spec.head_dim, &answer.dk, true);
    unshard(spec, r, part.dv, spec.kv_heads * spec.head_dim, &answer.dv, true);
  }
  return answer;
}

// A world with an engine for each rank. Each plan's programs are checked before they run.
class AttentionWorld {
 public:
  explicit AttentionWorld(Rank size, Kind kind = Kind::kShm) : world_(kind, size) {
    for (Rank r = 0; r < size; ++r)
      engines_.push_back(std::make_unique<attention::Engine>(&world_[r], &kernels_, true));
  }
  RuntimeWorld& runtimes() { return world_; }
  attention::Kernels& kernels() { return kernels_; }
  attention::Engine& engine(Rank rank) { return *engines_[static_cast<size_t>(rank)]; }
  Answer solve(const Problem& problem) {
    return put_together(problem.spec, world_.run([&](Rank rank, engine::Runtime&) {
      return run_rank(&engine(rank), problem, rank);
    }));
  }

 private:
  attention::Kernels kernels_;
  std::vector<std::unique_ptr<attention::Engine>> engines_;  // end when the runtimes have ended
  RuntimeWorld world_;
};

struct Errors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
  double gradients() const { return std::max({dq, dk, dv}); }
};

inline double relative_error(const Floats& got, const Doubles& wanted) {
  double error = 0, norm = 0;
  if (got.size() != wanted.size()) return INFINITY;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return INFINITY;
    error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return norm == 0 ? (error == 0 ? 0 : INFINITY) : std::sqrt(error / norm);
}

inline Errors errors_of(const Problem& problem, const Answer& got) {
  using namespace attention;
  const AttentionSpec& spec = problem.spec;
  const auto wide = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
  const Doubles q = wide(problem.q), k = wide(problem.k), v = wide(problem.v);
  const OracleResult exact = oracle_forward(spec, q, k, v);
  Errors errors;
  errors.out = relative_error(got.out, exact.out);
  Doubles dlse(problem.dlse.size());
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t i = 0; i < spec.length; ++i) {
      for (int64_t h = 0; h < spec.heads; ++h) {
        const auto here = static_cast<size_t>((b * spec.length + i) * spec.heads + h);
        const auto there = static_cast<size_t>((b * spec.heads + h) * spec.length + i);
        const double wanted = exact.lse[there];
        const double mine = static_cast<double>(got.lse[here]);
        const double error = std::isinf(wanted) || std::isinf(mine)
                                 ? (wanted == mine ? 0 : INFINITY)
                                 : std::abs(mine - wanted) / std::max(1.0, std::abs(wanted));
        errors.lse = std::isnan(error) ? INFINITY : std::max(errors.lse, error);
        dlse[there] = std::isinf(wanted) ? 0 : static_cast<double>(problem.dlse[here]);
      }
    }
  }
  const OracleGradients g = oracle_backward(spec, q, k, v, exact, wide(problem.dout), dlse);
  errors.dq = relative_error(got.dq, g.dq);
  errors.dk = relative_error(got.dk, g.dk);
  errors.dv = relative_error(got.dv, g.dv);
  return errors;
}

}  // namespace rueda::testing
