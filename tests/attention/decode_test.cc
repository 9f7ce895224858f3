// decode(): ranks as threads, each with its part of the cache, against the oracle of each sequence.
#include <catch2/catch.hpp>
#include <numeric>

#include "attention/decode.h"
#include "tests/attention/attention_world.h"

namespace rueda::testing {
using namespace attention;
namespace {

struct DecodeProblem {
  DecodeSpec spec;
  Floats q;
  std::vector<Floats> k, v;  // of each sequence, whole
};

DecodeProblem make_decode(uint64_t seed) {
  SpecMaker maker(seed);
  DecodeProblem p;
  DecodeSpec& s = p.spec;
  s.batch = maker.between(1, 4);
  s.queries = maker.between(1, 3);
  s.kv_heads = maker.between(1, 3);
  s.heads = s.kv_heads * maker.between(1, 3);
  s.head_dim = maker.one_of<int64_t>({7, 16, 33});
  s.dtype = maker.one_of({DType::kFloat32, DType::kBFloat16});
  s.causal = maker.between(0, 1) != 0;
  if (maker.between(0, 1) != 0) s.left = maker.between(0, 20);
  if (maker.between(0, 1) != 0) {
    AttentionSpec changed;
    changed.batch = s.batch;
    changed.heads = s.heads;
    maker.change_scores(&changed);
    s.softcap = changed.softcap;
    s.alibi_slopes = changed.alibi_slopes;
  }
  s.own = maker.between(0, 1) != 0;
  std::normal_distribution<float> normal(0, 1);
  const auto filled = [&](int64_t count) {
    Floats values(static_cast<size_t>(count));
    for (float& x : values) x = normal(maker.engine);
    return widened(s.dtype, narrowed(s.dtype, values));
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t length = maker.between(0, 5) == 0 ? 0 : s.queries + maker.between(0, 60);
    s.lengths.push_back(length);
    p.k.push_back(filled(length * s.kv_heads * s.head_dim));
    p.v.push_back(filled(length * s.kv_heads * s.head_dim));
  }
  p.q = filled(s.batch * s.queries * s.heads * s.head_dim);
  return p;
}

// A rank's cache in blocks at random places, and where they are.
struct Cache {
  std::vector<std::byte> k, v;
};
Cache make_cache(const DecodeProblem& p, Rank rank, Rank ranks, uint64_t seed, DecodeSpec* s) {
  SpecMaker maker(seed + static_cast<uint64_t>(rank));
  s->block_tokens = maker.between(1, 9);
  s->table_blocks = (70 / ranks + 1) / s->block_tokens + 1;
  s->blocks = s->batch * s->table_blocks;
  s->block_table.resize(static_cast<size_t>(s->blocks));
  std::iota(s->block_table.begin(), s->block_table.end(), 0);
  std::shuffle(s->block_table.begin(), s->block_table.end(), maker.engine);
  const int64_t width = s->kv_heads * s->head_dim;
  Floats k(static_cast<size_t>(s->blocks * s->block_tokens * width), NAN), v = k;
  for (int64_t b = 0; b < s->batch; ++b) {
    for (int64_t t = rank; t < s->lengths[static_cast<size_t>(b)]; t += ranks) {
      const int64_t place = t / ranks;
      const int64_t block =
          s->block_table[static_cast<size_t>(b * s->table_blocks + place / s->block_tokens)];
      const int64_t to = (block * s->block_tokens + place % s->block_tokens) * width;
      std::copy_n(p.k[static_cast<size_t>(b)].data() + t * width, width, k.data() + to);
      std::copy_n(p.v[static_cast<size_t>(b)].data() + t * width, width, v.data() + to);
    }
  }
  return {narrowed(s->dtype, k), narrowed(s->dtype, v)};
}

struct DecodeAnswer {
  Floats out, lse;
};

DecodeAnswer exact(const DecodeProblem& p, int64_t begin, int64_t end) {
  DecodeAnswer answer;
  const DecodeSpec& s = p.spec;
  const int64_t row = s.queries * s.heads * s.head_dim;
  for (int64_t b = begin; b < end; ++b) {
    if (s.lengths[static_cast<size_t>(b)] == 0) {
      answer.out.insert(answer.out.end(), static_cast<size_t>(row), 0.0f);
      answer.lse.insert(answer.lse.end(), static_cast<size_t>(s.queries * s.heads), -INFINITY);
      continue;
    }
    AttentionSpec one;
    one.length = s.queries;
    one.key_length = s.lengths[static_cast<size_t>(b)];
    one.heads = s.heads;
    one.kv_heads = s.kv_heads;
    one.head_dim = s.head_dim;
    one.mask.causal = s.causal;
    one.mask.left = s.left;
    one.softcap = s.softcap;
    one.alibi_slopes = s.alibi_slopes;
    if (std::ssize(s.alibi_slopes) > s.heads)
      one.alibi_slopes.assign(s.alibi_slopes.begin() + b * s.heads,
                              s.alibi_slopes.begin() + (b + 1) * s.heads);
    const auto wide = [](const Floats& x, int64_t from, int64_t count) {
      return Doubles(x.begin() + from, x.begin() + from + count);
    };
    const Floats &k = p.k[static_cast<size_t>(b)], &v = p.v[static_cast<size_t>(b)];
    const OracleResult result = oracle_forward(
        one, wide(p.q, b * row, row), wide(k, 0, std::ssize(k)), wide(v, 0, std::ssize(v)));
    for (const double x : result.out) answer.out.push_back(static_cast<float>(x));
    for (const double x : result.lse) answer.lse.push_back(static_cast<float>(x));
  }
  return answer;
}

std::string difference(const Floats& got, const Floats& wanted, float tolerance) {
  if (got.size() != wanted.size()) return "sizes";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i]) continue;  // -infinity too
    if (!(std::abs(got[i] - wanted[i]) <= tolerance * std::max(1.0f, std::abs(wanted[i]))))
      return "[" + std::to_string(i) + "] " + std::to_string(got[i]) + " for " +
             std::to_string(wanted[i]);
  }
  return "";
}

}  // namespace

TEST_CASE("decoding over shared caches is exact", "[attention][decode]") {
  for (const Rank ranks : {1, 2, 3}) {
    AttentionWorld world(ranks);
    for (int trial = 0; trial < (is_short() ? 8 : 60); ++trial) {
      const auto seed = static_cast<uint64_t>(ranks * 1000 + trial);
      const DecodeProblem problem = make_decode(seed);
      const auto differences = world.runtimes().run([&](Rank rank, engine::Runtime&) {
        DecodeSpec spec = problem.spec;
        const Cache cache = make_cache(problem, rank, ranks, seed, &spec);
        const int64_t begin = spec.own ? split_begin(spec.batch, rank, ranks) : 0;
        const int64_t end = spec.own ? split_begin(spec.batch, rank + 1, ranks) : spec.batch;
        spec.sequences = end - begin;
        const int64_t row = spec.queries * spec.heads * spec.head_dim;
        const auto q = narrowed(
            spec.dtype, Floats(problem.q.begin() + begin * row, problem.q.begin() + end * row));
        std::vector<std::byte> out(q.size());
        Floats lse(static_cast<size_t>(spec.sequences * spec.queries * spec.heads));
        const DType dtype = spec.dtype;
        const auto call = must(world.engine(rank).decode(
            std::move(spec), 0, 2,
            {q.data(), cache.k.data(), cache.v.data(), out.data(), lse.data()}));
        must(call->wait(std::chrono::nanoseconds(-1)));
        const DecodeAnswer wanted = exact(problem, begin, end);
        std::string text = difference(lse, wanted.lse, 2e-6f);
        if (text.empty())
          text =
              difference(widened(dtype, out), wanted.out, dtype == DType::kFloat32 ? 3e-6f : 8e-3f);
        return text;
      });
      INFO("ranks " << ranks << " seed " << seed);
      for (const std::string& text : differences) CHECK(text == "");
    }
  }
}

TEST_CASE("decoding sends queries and partial results, and nothing of the cache",
          "[attention][decode]") {
  for (const bool own : {false, true}) {
    AttentionWorld world(4);
    DecodeSpec spec;
    spec.batch = spec.sequences = own ? 5 : 1;
    spec.heads = 8;
    spec.kv_heads = 2;
    spec.head_dim = 64;
    spec.dtype = DType::kBFloat16;
    spec.own = own;
    spec.lengths.assign(static_cast<size_t>(spec.batch), 4000);
    spec.blocks = spec.batch;
    spec.block_tokens = 1000;
    const int64_t d = spec.head_dim;
    const std::vector<std::byte> cache(
        static_cast<size_t>(spec.blocks * spec.block_tokens * spec.kv_heads * d * 2));
    const auto trouble = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
      DecodeSpec mine = spec;
      if (own) mine.sequences = split_rows(spec.batch, rank, 4);
      const int64_t all = spec.batch * spec.heads;
      const int64_t rows = own ? mine.sequences * spec.heads : split_rows(all, rank, 4);
      const std::vector<std::byte> q(static_cast<size_t>(mine.sequences * spec.heads * d * 2));
      std::vector<std::byte> out(q.size());
      const int64_t before = runtime.counter("shm_bytes");
      const auto call = must(world.engine(rank).decode(
          std::move(mine), 0, 1, {q.data(), cache.data(), cache.data(), out.data(), nullptr}));
      must(call->wait(std::chrono::nanoseconds(-1)));
      const int64_t partial = (all - rows) * (d + 2) * 4;
      const int64_t beside = own ? rows * d * 2 : rows * (d * 2 + 4);  // queries, or results
      return runtime.counter("shm_bytes") - before - partial - 3 * beside;
    });
    for (const int64_t more : trouble) CHECK(more == 0);
  }
}

TEST_CASE("one query against a million cached keys sends partial results alone",
          "[attention][decode]") {
  constexpr Rank kRanks = 4;
  constexpr int64_t kLength = 1'000'000, kDim = 16;
  DecodeSpec spec;
  spec.head_dim = kDim;
  spec.lengths = {kLength};
  spec.blocks = 1;
  spec.block_tokens = kLength / kRanks;
  // Of a period, so that no cache need be kept twice.
  Floats wave(1009);
  for (size_t i = 0; i < wave.size(); ++i) wave[i] = std::sin(static_cast<float>(i * i));
  const auto key = [&](int64_t token, int64_t i) {
    return wave[static_cast<size_t>((token * 7 + i * 31) % std::ssize(wave))];
  };
  Floats q(kDim);
  for (int64_t i = 0; i < kDim; ++i) q[static_cast<size_t>(i)] = key(3, i) * 4;
  AttentionWorld world(kRanks);
  std::vector<Floats> outs(kRanks);
  const auto sent = world.runtimes().run([&](Rank rank, engine::Runtime& runtime) {
    Floats k(static_cast<size_t>(spec.block_tokens * kDim)), v = k;
    for (int64_t place = 0; place < spec.block_tokens; ++place) {
      for (int64_t i = 0; i < kDim; ++i) {
        k[static_cast<size_t>(place * kDim + i)] = key(place * kRanks + rank, i);
        v[static_cast<size_t>(place * kDim + i)] = key(place * kRanks + rank, i + 1);
      }
    }
    const int64_t before = runtime.counter("shm_bytes");
    Floats& out = outs[static_cast<size_t>(rank)];
    out.resize(kDim);
    const auto bytes = [](const Floats& x) { return reinterpret_cast<const std::byte*>(x.data()); };
    const auto call = must(world.engine(rank).decode(
        spec, 0, 1,
        {bytes(q), bytes(k), bytes(v), reinterpret_cast<std::byte*>(out.data()), nullptr}));
    must(call->wait(std::chrono::nanoseconds(-1)));
    return runtime.counter("shm_bytes") - before;
  });
  // One row: three ranks send its partial result to the first, which sends the result to three.
  const int64_t partial = (kDim + 2) * 4, result = kDim * 4 + 4;
  const int64_t all = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  CHECK(static_cast<double>(all) <= 1.05 * static_cast<double>(3 * partial + 3 * result));
  double weights = 0;
  Doubles sums(kDim, 0.0);
  for (int64_t token = 0; token < kLength; ++token) {
    double score = 0;
    for (int64_t i = 0; i < kDim; ++i)
      score += double{q[static_cast<size_t>(i)]} * double{key(token, i)} / 4;
    const double weight = std::exp(score);
    weights += weight;
    for (int64_t i = 0; i < kDim; ++i)
      sums[static_cast<size_t>(i)] += weight * double{key(token, i + 1)};
  }
  for (const Floats& out : outs) {
    // A chunk's 15,625 keys are added up in float32: half a rounding of each, and all one way.
    const double bound = 15'625 * 6e-8 / 8;
    for (size_t i = 0; i < sums.size(); ++i)
      CHECK(std::abs(double{out[i]} - sums[i] / weights) < bound);
  }
}

}  // namespace rueda::testing
