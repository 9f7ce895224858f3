#include "attention/decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "attention/compute.h"
#include "attention/hash.h"
#include "attention/spec.h"
#include "attention/sums.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

// Keys are cut into at most so many chunks for each sequence, of at least so many keys. Neither
// depends on threads: nor do bits.
constexpr int64_t kMostChunks = 16, kFewestKeys = 2048;
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

size_t index(int64_t i) { return static_cast<size_t>(i); }

// Of the first `tokens` tokens of a sequence, those that lie here.
int64_t here_of(const DecodeSpec& s, int64_t tokens) {
  return tokens > s.rank ? (tokens - s.rank - 1) / s.ranks + 1 : 0;
}

// Rows are numbered (sequence, query, head). A row's partial result: acc (head_dim), m, l.
struct Rows {
  explicit Rows(const DecodeSpec& spec) : s(spec), width(spec.head_dim + 2) {}
  const DecodeSpec& s;
  const int64_t width;

  int64_t of(int64_t sequences) const { return sequences * s.queries * s.heads; }
  int64_t all() const { return of(s.batch); }
  // Which rank merges the rows [begin(rank), begin(rank + 1)).
  int64_t begin(Rank rank) const {
    return s.own ? of(split_begin(s.batch, rank, s.ranks)) : split_begin(all(), rank, s.ranks);
  }
  int64_t count(Rank rank) const { return begin(rank + 1) - begin(rank); }
};

void clear(float* rows, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i, rows += width) {
    std::fill_n(rows, width, 0.0f);
    rows[width - 2] = kNoKeys;
  }
}

float* take_floats(Link* link, int64_t count) {
  return reinterpret_cast<float*>(link->take(count * 4));
}

// Adds one partial result to another.
void add(const float* part, float* sum, int64_t d) {
  merge(part, part + d, part + d + 1, 1, d, sum, sum + d, sum + d + 1);
}

// Some keys of one sequence on this rank: places [begin, end), of which a query sees those within
// `left` tokens before it.
struct Chunk {
  int64_t sequence, begin, end, left;
};

std::vector<Chunk> chunks_of(const DecodeSpec& s) {
  std::vector<Chunk> chunks;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t length = s.lengths[index(b)], end = here_of(s, length);
    int64_t begin = 0;
    const auto cut = [&](int64_t from, int64_t to, int64_t left) {
      const int64_t count = std::clamp<int64_t>((to - from) / kFewestKeys, 1, kMostChunks);
      for (int64_t c = 0; c < count && from < to; ++c) {
        chunks.push_back(
            {b, from + (to - from) * c / count, from + (to - from) * (c + 1) / count, left});
      }
    };
    if (s.left >= 0) {
      const int64_t global = here_of(s, std::min(length, s.global_tokens));
      cut(0, global, -1);
      begin = std::max(global, here_of(s, std::max<int64_t>(0, length - s.queries - s.left)));
    }
    cut(begin, end, s.left);
  }
  return chunks;
}

// Where places [begin, end) of a sequence lie in the cache.
void number_rows(const DecodeSpec& s, const Chunk& chunk, std::vector<int32_t>* rows) {
  rows->resize(index(chunk.end - chunk.begin));
  for (int64_t place = chunk.begin; place < chunk.end; ++place) {
    const int64_t in = place % s.block_tokens;
    const int64_t block =
        s.block_table.empty()
            ? chunk.sequence
            : s.block_table[index(chunk.sequence * s.table_blocks + place / s.block_tokens)];
    (*rows)[index(place - chunk.begin)] = static_cast<int32_t>(block * s.block_tokens + in);
  }
}

// Partial results of all rows over this rank's keys.
void compute_here(const DecodeSpec& s, const Means& means, const std::byte* q, const std::byte* k,
                  const std::byte* v, Link* link, float* partial) {
  const Rows rows(s);
  const int64_t d = s.head_dim, group = s.heads / s.kv_heads, some = s.queries * group;
  const auto bytes = static_cast<int64_t>(size_of(s.dtype));
  const auto dtype = static_cast<uint8_t>(s.dtype);
  clear(partial, rows.all(), rows.width);
  const std::vector<Chunk> chunks = chunks_of(s);
  if (chunks.empty()) return;
  std::vector<std::vector<int32_t>> places(chunks.size());
  int64_t keys = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    number_rows(s, chunks[c], &places[c]);
    keys += chunks[c].end - chunks[c].begin;
  }
  Means alone = means;
  alone.threads = 1;
  const bool is_little = keys * s.queries * s.heads * d < kFewestProducts;
  const LocalKernel* const kernel = means.kernels->find({s.dtype, s.dtype, d, s.changes_scores()});
  std::vector<int32_t> q_rows(index(s.queries));
  for (int64_t i = 0; i < s.queries; ++i) q_rows[index(i)] = static_cast<int32_t>(i);
  // (chunk, KV head, query, head of the group)
  const auto jobs = static_cast<int64_t>(chunks.size()) * s.kv_heads;
  float* const parts = take_floats(link, jobs * some * rows.width);
  in_parallel(is_little ? alone : means, jobs, [&](int64_t job) {
    const int64_t c = job / s.kv_heads, head = job % s.kv_heads;
    const Chunk& chunk = chunks[index(c)];
    float* const mine = parts + job * some * rows.width;
    clear(mine, some, rows.width);
    std::vector<QueryHead> heads(index(group));
    for (int64_t g = 0; g < group; ++g) {
      QueryHead& one = heads[index(g)];
      const int64_t row = chunk.sequence * s.queries * s.heads + head * group + g;
      one.q = {q + row * d * bytes, s.heads * d, dtype};
      one.acc = mine + g * rows.width;
      one.m = one.acc + d;
      one.l = one.acc + d + 1;
    }
    KernelTile tile;
    tile.queries = s.queries;
    tile.keys = chunk.end - chunk.begin;
    tile.head_dim = d;
    tile.q_rows = q_rows.data();
    tile.k_rows = places[index(c)].data();
    tile.q_pos = s.lengths[index(chunk.sequence)] - s.queries;
    tile.k_pos = chunk.begin * s.ranks + s.rank;
    tile.k_step = s.ranks;
    tile.low = chunk.left < 0 ? -kUnlimited : -chunk.left;
    tile.high = s.causal ? 0 : kUnlimited;
    tile.scale = static_cast<float>(softmax_scale(s.scale, s.head_dim));
    tile.softcap = static_cast<float>(s.softcap);
    if (!s.alibi_slopes.empty()) {
      const bool each = std::ssize(s.alibi_slopes) > s.heads;  // of each sequence
      tile.slopes = &s.alibi_slopes[index((each ? chunk.sequence * s.heads : 0) + head * group)];
    }
    tile.heads = heads.data();
    tile.head_count = group;
    tile.acc_stride = tile.ml_stride = group * rows.width;
    tile.k = {k + head * d * bytes, s.kv_heads * d, dtype};
    tile.v = {v + head * d * bytes, s.kv_heads * d, dtype};
    const KernelScratch scratch;
    kernel->forward(tile, scratch.floats());
  });
  // A row's chunks, in order.
  const bool is_much = jobs * some * rows.width >= kFewestProducts;
  in_parallel(is_much && !is_little ? means : alone, s.kv_heads, [&](int64_t head) {
    for (size_t c = 0; c < chunks.size(); ++c) {
      const float* part = parts + (static_cast<int64_t>(c) * s.kv_heads + head) * some * rows.width;
      for (int64_t i = 0; i < s.queries; ++i) {
        for (int64_t g = 0; g < group; ++g, part += rows.width) {
          const int64_t row = (chunks[c].sequence * s.queries + i) * s.heads + head * group + g;
          add(part, partial + row * rows.width, d);
        }
      }
    }
  });
  link->give(reinterpret_cast<const std::byte*>(parts));
}

// One message each way with every other rank.
struct Round {
  Link* link;
  const DecodeSpec& s;
  const char* what;
  bool answer;
  std::vector<Link::Message> receives, sends;
  std::vector<Rank> from, to;

  template <typename Of>
  Status receive(const Of& of) {
    for (Rank peer = 0; peer < s.ranks; ++peer) {
      if (peer == s.rank) continue;
      const auto [data, bytes] = of(peer);
      auto message = link->recv(peer, data, bytes, answer);
      if (!message.ok()) return link->named(message.status(), what, "receiving from", peer);
      receives.push_back(std::move(message).value());
      from.push_back(peer);
    }
    return {};
  }
  template <typename Of>
  Status send(const Of& of) {
    for (Rank i = 1; i < s.ranks; ++i) {
      const Rank peer = (s.rank + i) % s.ranks;
      const auto [data, bytes] = of(peer);
      auto message = link->send(peer, data, bytes, answer);
      if (!message.ok()) return link->named(message.status(), what, "sending to", peer);
      sends.push_back(std::move(message).value());
      to.push_back(peer);
    }
    return {};
  }
  Status wait() {
    for (size_t i = 0; i < receives.size(); ++i)
      RUEDA_RETURN_IF_ERROR(link->named(link->wait(receives[i]), what, "receiving from", from[i]));
    for (size_t i = 0; i < sends.size(); ++i)
      RUEDA_RETURN_IF_ERROR(link->named(link->wait(sends[i]), what, "sending to", to[i]));
    return {};
  }
};

// Merged rows, first of them `begin`, to results: lse by row, out dense.
void write_results(const DecodeSpec& s, float* rows, int64_t begin, int64_t count, float* lse,
                   std::byte* out) {
  const int64_t d = s.head_dim;
  const auto bytes = static_cast<int64_t>(size_of(s.dtype));
  std::vector<float> sink(index(d + 2), 0.0f);  // a partial result of one key without a value
  sink.back() = 1;
  for (int64_t i = 0; i < count; ++i, rows += d + 2, out += d * bytes) {
    if (!s.sinks.empty()) {
      sink[index(d)] = s.sinks[index((begin + i) % s.heads)];
      add(sink.data(), rows, d);
    }
    finish(rows, rows + d, rows + d + 1, 1, d, nullptr);
    lse[i] = rows[d];
    if (s.dtype == DType::kFloat32) {
      std::memcpy(out, rows, index(d * bytes));
    } else {
      kernels::convert_from_f32(s.dtype, rows, out, index(d));
    }
  }
}

}  // namespace

Status check(const DecodeSpec& s) {
  const auto wrong = [](const std::string& what) {
    return invalid_argument("decode attention: " + what);
  };
  if (s.batch < 0 || s.queries < 1 || s.heads < 1 || s.kv_heads < 1 || s.batch > kMostTokens ||
      s.queries > kMostTokens || s.heads > kMostTokens)
    return wrong("batch, queries, heads or kv_heads is out of range");
  if (s.head_dim < 1 || s.head_dim > 256)
    return wrong("head_dim is " + std::to_string(s.head_dim) + ", expected 1 to 256");
  if (s.heads % s.kv_heads != 0)
    return wrong(std::to_string(s.heads) + " heads are no multiple of " +
                 std::to_string(s.kv_heads) + " key/value heads");
  if (s.dtype != DType::kFloat32 && s.dtype != DType::kBFloat16 && s.dtype != DType::kFloat16)
    return wrong("dtype must be float32, bfloat16 or float16");
  if (s.left < -1 || s.global_tokens < 0)
    return wrong("the window or global_tokens is negative (-1 is no window)");
  if (s.global_tokens > 0 && s.left < 0)
    return wrong("global_tokens says what is seen beyond a window; there is none");
  if (!std::isfinite(s.scale)) return wrong("the scale is not finite");
  RUEDA_RETURN_IF_ERROR(check_score_changes(s.softcap, s.alibi_slopes, s.batch, s.heads));
  if (!s.sinks.empty() && static_cast<int64_t>(s.sinks.size()) != s.heads)
    return wrong("there are " + std::to_string(s.sinks.size()) +
                 " sinks, expected one for each of " + std::to_string(s.heads) + " heads");
  if (static_cast<int64_t>(s.lengths.size()) != s.batch)
    return wrong("there are " + std::to_string(s.lengths.size()) + " lengths for " +
                 std::to_string(s.batch) + " sequences");
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t length = s.lengths[index(b)];
    if (length != 0 && (length < s.queries || length > kMostTokens))
      return wrong("the length of sequence " + std::to_string(b) + " is " + std::to_string(length) +
                   ": it counts the " + std::to_string(s.queries) +
                   " new tokens of the queries, or is 0 where there is no sequence");
  }
  return {};
}

Status check_own(const DecodeSpec& s) {
  const auto wrong = [](const std::string& what) {
    return invalid_argument("decode attention: " + what);
  };
  const int64_t expected = s.own ? split_rows(s.batch, s.rank, s.ranks) : s.batch;
  if (s.sequences != expected)
    return wrong(
        "q has " + std::to_string(s.sequences) + " sequences, expected " +
        std::to_string(expected) +
        (s.own ? ": rank " + std::to_string(s.rank) + "'s share of " + std::to_string(s.batch)
               : " as there are lengths"));
  if (s.blocks < 0 || s.block_tokens < 1 || s.blocks > kMostTokens ||
      s.block_tokens > kMostTokens ||
      s.blocks * s.block_tokens > std::numeric_limits<int32_t>::max())
    return wrong("a cache of " + std::to_string(s.blocks) + " blocks of " +
                 std::to_string(s.block_tokens) + " tokens is not possible: 2^31 - 1 at most");
  if (s.block_table.empty()
          ? s.blocks < s.batch
          : static_cast<int64_t>(s.block_table.size()) != s.batch * s.table_blocks)
    return wrong("the cache or the block table is of other than " + std::to_string(s.batch) +
                 " sequences");
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t needed = here_of(s, s.lengths[index(b)]);
    const int64_t room = s.block_table.empty() ? s.block_tokens : s.table_blocks * s.block_tokens;
    if (needed > room)
      return wrong("sequence " + std::to_string(b) + " has " + std::to_string(needed) +
                   " tokens on this rank, its cache has room for " + std::to_string(room));
    if (s.block_table.empty()) continue;
    const int64_t used = (needed + s.block_tokens - 1) / s.block_tokens;
    for (int64_t i = 0; i < used; ++i) {
      const int32_t block = s.block_table[index(b * s.table_blocks + i)];
      if (block < 0 || block >= s.blocks)
        return wrong("the block table names block " + std::to_string(block) + " for sequence " +
                     std::to_string(b) + ", of " + std::to_string(s.blocks));
    }
  }
  return {};
}

uint64_t hash_of(const DecodeSpec& s) {
  Fnv hash;
  for (const int64_t x :
       {s.batch, s.queries, s.heads, s.kv_heads, s.head_dim, int64_t(s.dtype), int64_t(s.ranks),
        int64_t(s.own), int64_t(s.causal), s.left, s.global_tokens}) {
    hash.number(x);
  }
  const double scale = softmax_scale(s.scale, s.head_dim);
  hash.bytes(&scale, sizeof scale);
  hash.bytes(&s.softcap, sizeof s.softcap);
  hash.list(s.alibi_slopes);
  hash.list(s.lengths);
  hash.list(s.sinks);
  return hash.value;
}

Status decode(const DecodeSpec& s, Link* link, const Means& means, const DecodeTensors& t) {
  const Rows rows(s);
  const int64_t d = s.head_dim, width = rows.width;
  const auto bytes = static_cast<int64_t>(size_of(s.dtype));
  const int64_t mine = rows.begin(s.rank), count = rows.count(s.rank);
  const auto as_bytes = [](float* floats) { return reinterpret_cast<std::byte*>(floats); };
  using Bytes = std::pair<std::byte*, int64_t>;

  const std::byte* q = t.q;
  if (s.own && s.ranks > 1) {
    std::byte* all = link->take(rows.all() * d * bytes);
    std::copy_n(t.q, count * d * bytes, all + mine * d * bytes);  // may be nothing
    Round round{link, s, "decode attention, exchange of queries", false, {}, {}, {}, {}};
    RUEDA_RETURN_IF_ERROR(round.receive([&](Rank peer) -> Bytes {
      return {all + rows.begin(peer) * d * bytes, rows.count(peer) * d * bytes};
    }));
    RUEDA_RETURN_IF_ERROR(round.send(
        [&](Rank) -> std::pair<const std::byte*, int64_t> { return {t.q, count * d * bytes}; }));
    RUEDA_RETURN_IF_ERROR(round.wait());
    q = all;
  }

  // Receives are there before anybody sends.
  float* const came = take_floats(link, (s.ranks - 1) * count * width);
  const auto from = [&](Rank peer) {
    return came + (peer < s.rank ? peer : peer - 1) * count * width;
  };
  Round parts{link, s, "decode attention, exchange of partial results", true, {}, {}, {}, {}};
  RUEDA_RETURN_IF_ERROR(
      parts.receive([&](Rank peer) -> Bytes { return {as_bytes(from(peer)), count * width * 4}; }));
  float* const partial = take_floats(link, rows.all() * width);
  compute_here(s, means, q, t.k, t.v, link, partial);
  RUEDA_RETURN_IF_ERROR(link->check_aborted());
  RUEDA_RETURN_IF_ERROR(parts.send([&](Rank peer) -> Bytes {
    return {as_bytes(partial + rows.begin(peer) * width), rows.count(peer) * width * 4};
  }));
  RUEDA_RETURN_IF_ERROR(parts.wait());
  float* const sums = take_floats(link, count * width);
  clear(sums, count, width);
  for (Rank rank = 0; rank < s.ranks; ++rank) {
    const float* part = rank == s.rank ? partial + mine * width : from(rank);
    for (int64_t i = 0; i < count; ++i) add(part + i * width, sums + i * width, d);
  }

  // Results, log-sum-exps by row in front.
  const bool is_shared = !s.own && s.ranks > 1;
  const int64_t first = s.own ? mine : 0;  // of t.out
  const int64_t size = 4 + d * bytes;
  std::byte* const done = link->take(count * size);
  write_results(s, sums, mine, count, reinterpret_cast<float*>(done), done + count * 4);
  const auto put = [&](Rank rank, const std::byte* message) {
    const int64_t n = rows.count(rank), begin = rows.begin(rank);
    std::copy_n(message + n * 4, n * d * bytes, t.out + (begin - first) * d * bytes);
    for (int64_t i = 0; t.lse != nullptr && i < n; ++i) {
      const int64_t row = begin - first + i, head = row % s.heads;
      const int64_t query = row / s.heads % s.queries, sequence = row / s.heads / s.queries;
      std::memcpy(t.lse + (sequence * s.heads + head) * s.queries + query, message + i * 4, 4);
    }
  };
  put(s.rank, done);
  if (!is_shared) return {};
  Round results{link, s, "decode attention, exchange of results", true, {}, {}, {}, {}};
  std::byte* const others = link->take(rows.all() * size);
  RUEDA_RETURN_IF_ERROR(results.receive([&](Rank peer) -> Bytes {
    return {others + rows.begin(peer) * size, rows.count(peer) * size};
  }));
  RUEDA_RETURN_IF_ERROR(results.send([&](Rank) -> Bytes { return {done, count * size}; }));
  RUEDA_RETURN_IF_ERROR(results.wait());
  for (Rank peer = 0; peer < s.ranks; ++peer) {
    if (peer != s.rank) put(peer, others + rows.begin(peer) * size);
  }
  return {};
}

}  // namespace rueda::attention
