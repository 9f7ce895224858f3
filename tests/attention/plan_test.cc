#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <map>

#include "attention/plan.h"
#include "tests/attention/oracle.h"
#include "tests/attention/specs.h"

namespace rueda::testing {
using namespace attention;
namespace {

std::vector<int64_t> positions(const std::vector<Run>& runs) {
  std::vector<int64_t> result;
  for (const Run& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) result.push_back(run.at(i));
  }
  return result;
}

// Adds how often each (head, query, key) is computed; "" or what is wrong with a tile.
std::string cover(const AttentionPlan& plan, const std::vector<Tile>& tiles,
                  const std::vector<int64_t>& q_tokens, const std::vector<int64_t>& k_tokens,
                  std::vector<int>* seen) {
  const int64_t n = plan.spec.length, nk = plan.spec.keys(), group = plan.head_group();
  for (const Tile& t : tiles) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < t.q.count; ++i) {
      const int64_t place = t.q_pos + i * t.q_step;  // among the keys
      const int64_t q = q_tokens.at(static_cast<size_t>(t.q.at(i)));
      if (plan.spec.mask.cu_seqlens.empty() && q + nk - n != place)
        return "query rows and positions differ";
      for (int64_t j = 0; j < t.k.count; ++j) {
        const int64_t k = t.k_pos + j * t.k_step;
        if (k_tokens.at(static_cast<size_t>(t.k.at(j))) != k)
          return "key rows and positions differ";
        if (k - place < plan.band.low || k - place > plan.band.high) continue;
        ++pairs;
        for (int64_t h = t.head_begin; h < t.head_end; h += t.head_step) {
          for (int64_t g = 0; g < group; ++g) {
            const int64_t head = h * group + g;
            if (head < plan.heads.q_begin || head >= plan.heads.q_end) continue;
            ++(*seen)[static_cast<size_t>((head * n + q) * nk + k)];
          }
        }
      }
    }
    if (pairs != t.pairs) return "pairs are counted wrongly";
  }
  return "";
}

bool has_rows(const Hop& hop, const Tile& tile, const Run& run) {
  for (int64_t h = tile.head_begin; h < tile.head_end; h += tile.head_step) {
    std::vector<int64_t> rows;
    for (const RowSet& set : hop.rows) {
      if (h >= set.head_begin && h < set.head_end) rows = positions(set.rows);
    }
    for (int64_t i = 0; i < run.count; ++i) {
      if (!std::binary_search(rows.begin(), rows.end(), run.at(i))) return false;
    }
  }
  return true;
}

std::string check_spec(const AttentionSpec& spec) {
  const int64_t n = spec.length, nk = spec.keys();
  std::vector<AttentionPlan> plans;
  std::vector<std::vector<int64_t>> tokens, keys;
  std::vector<int> owned(static_cast<size_t>(n), 0);
  for (Rank r = 0; r < spec.ranks; ++r) {
    plans.push_back(plan_of(spec, r));
    tokens.push_back(positions(plans.back().tokens));
    keys.push_back(positions(plans.back().key_tokens));
    if (plans.back().report.hash != plans.front().report.hash) return "hashes differ";
    for (const int64_t t : positions(tokens_of(spec, r))) ++owned[static_cast<size_t>(t)];
  }
  for (const int times : owned) {
    if (times != 1) return "a token has not one owner";
  }
  for (const bool backward : {false, true}) {
    std::vector<int> seen(static_cast<size_t>(spec.heads * n * nk), 0);
    int64_t sent = 0, received = 0;
    std::map<std::tuple<Rank, Rank, int64_t>, std::vector<std::vector<int64_t>>> messages;
    const auto put_down = [](const Hop& hop) {
      std::vector<std::vector<int64_t>> rows;
      for (const RowSet& set : hop.rows) {
        rows.push_back(positions(set.rows));
        rows.back().push_back(set.head_begin);
        rows.back().push_back(set.head_end);
      }
      return rows;
    };
    for (Rank r = 0; r < spec.ranks; ++r) {
      const RingPlan& ring = backward ? plans[r].backward : plans[r].forward;
      for (const Hop& hop : ring.sends) messages[{r, hop.peer, hop.key}] = put_down(hop);
    }
    size_t met = 0;
    for (Rank r = 0; r < spec.ranks; ++r) {
      const AttentionPlan& plan = plans[static_cast<size_t>(r)];
      const RingPlan& ring = backward ? plan.backward : plan.forward;
      const bool keys_travel = ring.rotate == Rotate::kKeysAndValues;
      const auto mine = static_cast<size_t>(r);
      std::string wrong = cover(plan, ring.local, tokens[mine], keys[mine], &seen);
      for (const Hop& hop : ring.receives) {
        const auto theirs = static_cast<size_t>(hop.peer);
        if (wrong.empty()) {
          wrong = keys_travel ? cover(plan, hop.tiles, tokens[mine], keys[theirs], &seen)
                              : cover(plan, hop.tiles, tokens[theirs], keys[mine], &seen);
        }
        for (const Tile& tile : hop.tiles) {
          if (!has_rows(hop, tile, keys_travel ? tile.k : tile.q)) return "a row does not travel";
        }
        const auto message = messages.find({hop.peer, r, hop.key});
        if (message == messages.end() || message->second != put_down(hop))
          return "sender and receiver differ";
        ++met;
      }
      if (!wrong.empty()) return wrong;
      const PlanReport& report = plan.report;
      sent += backward ? report.bytes_sent_backward : report.bytes_sent_forward;
      received += backward ? report.bytes_received_backward : report.bytes_received_forward;
    }
    if (met != messages.size()) return "a message has no receiver";
    if (sent != received) return "bytes sent and received differ";
    for (int64_t h = 0; h < spec.heads; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < nk; ++j) {
          const int64_t wanted = multiplicity(spec, h / (spec.heads / spec.kv_heads), i, j);
          if (seen[static_cast<size_t>((h * n + i) * nk + j)] != wanted) {
            return "head " + std::to_string(h) + ", query " + std::to_string(i) + ", key " +
                   std::to_string(j) + " is computed a wrong number of times";
          }
        }
      }
    }
  }
  return "";
}

int64_t sum_of_sent(const AttentionSpec& spec, bool backward) {
  int64_t sum = 0;
  for (Rank r = 0; r < spec.ranks; ++r) {
    const PlanReport report = plan_of(spec, r).report;
    sum += backward ? report.bytes_sent_backward : report.bytes_sent_forward;
  }
  return sum;
}

AttentionSpec ring(int64_t n, Rank ranks, Layout layout, bool causal) {
  AttentionSpec spec;
  spec.length = n;
  spec.heads = 8;
  spec.kv_heads = 2;
  spec.head_dim = 16;
  spec.ranks = ranks;
  spec.layout = layout;
  spec.mask.causal = causal;
  return spec;
}

}  // namespace

TEST_CASE("any plan computes every allowed pair as often as the mask says", "[attention]") {
  const int plans = std::getenv("RUEDA_TEST_SHORT") != nullptr ? 500 : 10000;
  int wrong = 0;
  for (int seed = 0; seed < plans && wrong < 3; ++seed) {
    const AttentionSpec spec = SpecMaker(static_cast<uint64_t>(seed)).spec(24, 8);
    const std::string trouble = check_spec(spec);
    INFO("seed " << seed << ": " << trouble);
    if (!trouble.empty()) ++wrong;
    CHECK(trouble == "");
  }
}

TEST_CASE("plans of longer sequences cover them too", "[attention]") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    CHECK(check_spec(SpecMaker(seed + 77777).spec(150, 8)) == "");
  }
}

TEST_CASE("windows and segments longer than any sequence are no limit", "[attention]") {
  for (const int64_t large : {int64_t{1} << 31, int64_t{1} << 61, INT64_MAX}) {
    AttentionSpec spec = ring(37, 4, Layout::kZigzag, true);
    spec.mask.left = large;
    CHECK(check_spec(spec) == "");
    spec.mask.causal = false;
    spec.mask.right = large;
    CHECK(check_spec(spec) == "");
    spec = ring(37, 3, Layout::kStriped, true);
    spec.mask.segment_lengths = {8, large};
    spec.mask.dilation_rates = {1, 5};
    spec.chunk_tokens = large;
    CHECK(check_spec(spec) == "");
    spec.mask.dilation_rates = {1, int64_t{1} << 30};
    CHECK(check_spec(spec) == "");
  }
}

TEST_CASE("plans of thousands of packed sequences are made at once", "[attention]") {
  SpecMaker maker(5);
  AttentionSpec spec = ring(1, 8, Layout::kZigzag, true);
  spec.layout_per_sequence = true;
  spec.mask.cu_seqlens = {0};
  for (int s = 0; s < (std::getenv("RUEDA_TEST_SHORT") != nullptr ? 300 : 1000); ++s)
    spec.mask.cu_seqlens.push_back(spec.mask.cu_seqlens.back() + maker.between(0, 60));
  spec.length = spec.mask.cu_seqlens.back();
  int64_t pairs = 0, wanted = 0;
  for (Rank r = 0; r < spec.ranks; ++r)
    pairs += plan_of(spec, r).report.flops_forward / (4 * spec.head_dim * spec.heads);
  for (size_t s = 1; s < spec.mask.cu_seqlens.size(); ++s) {
    const int64_t n = spec.mask.cu_seqlens[s] - spec.mask.cu_seqlens[s - 1];
    wanted += n * (n + 1) / 2;
  }
  CHECK(pairs == wanted);
}

TEST_CASE("a shard is cut by heads first, then by tokens, each row and head once", "[attention]") {
  const auto bytes = [](const Part& p) { return (p.head_end - p.head_begin) * (p.end - p.begin); };
  for (const int64_t heads : {0, 1, 2, 3, 5, 8, 32}) {
    for (const int64_t rows : {0, 1, 63, 192, 500, 2048, 5000}) {
      for (const int64_t chunk : {0, 1, 7, 64, 700, 4999, 1 << 20}) {
        const Part whole{3, 3 + heads, 0, rows};
        const std::vector<Part> parts = parts_of(whole, chunk);
        for (const std::vector<Part>& some : {parts, tapered(parts)}) {
          INFO(heads << " heads, " << rows << " rows, chunk " << chunk);
          std::vector<int> seen(static_cast<size_t>(heads * rows), 0);
          for (const Part& part : some) {
            if (chunk > 0) CHECK(bytes(part) <= std::max(chunk * heads, heads > 0 ? rows : 0));
            if (chunk > 0 && chunk * heads < rows) CHECK(bytes(part) <= chunk * heads);
            for (int64_t h = part.head_begin - 3; h < part.head_end - 3; ++h) {
              for (int64_t i = part.begin; i < part.end; ++i)
                ++seen[static_cast<size_t>(h * rows + i)];
            }
          }
          CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
        }
      }
    }
  }
  // As a call takes them: heads as long as there are enough, and a tail that is a quarter.
  CHECK(parts_of({0, 32, 0, 4096}, 0).size() == 4);
  CHECK(parts_of({0, 32, 0, 4096}, 0).front().end == 4096);
  CHECK(parts_of({0, 2, 0, 4096}, 0).front().end == 2048);
  CHECK(parts_of({0, 1, 0, 2048}, 0).front().end == 512);
  const std::vector<Part> tail = tapered(parts_of({0, 4, 0, 4096}, 0));
  REQUIRE(tail.size() == 6);
  CHECK(bytes(tail[5]) * 4 == bytes(tail[0]));
}

TEST_CASE("work at home is spread over the exchanges, with a piece behind the last answer",
          "[attention]") {
  for (const Rank p : {1, 2, 3, 8}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kZigzag}) {
      const AttentionPlan plan =
          make_plan(ring(8192, p, layout, layout == Layout::kZigzag), 0).value();
      for (const RingPlan* ring : {&plan.forward, &plan.backward}) {
        size_t computed = 0;
        int64_t pieces = 0;
        for (int64_t key = 0; key <= ring->keys; ++key) {
          const auto tiles = plan.local_tiles(*ring, key);
          if (!tiles.empty()) CHECK(tiles.data() == ring->local.data() + computed);
          computed += tiles.size();
          pieces += tiles.empty() ? 0 : 1;
        }
        INFO(p << " ranks, answers " << ring->answered);
        CHECK(computed == ring->local.size());
        CHECK_FALSE(plan.local_tiles(*ring, 0).empty());
        CHECK(plan.local_tiles(*ring, ring->keys).empty() == (p > 1 && !ring->answered));
        CHECK(pieces == (p == 1 ? 1 : ring->answered || p > 2 ? 4 : 3));
      }
    }
  }
}

TEST_CASE("rings send the bytes of the formulas", "[attention]") {
  const int64_t c = 32, kv_row = 2 * 2 * 16 * 4;  // K and V, 2 heads of 16 float32
  for (const Rank p : {1, 2, 3, 4, 8}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kStriped}) {
      AttentionSpec spec = ring(c * p, p, layout, false);
      for (Rank r = 0; r < p; ++r) {
        const PlanReport report = plan_of(spec, r).report;
        CHECK(report.bytes_sent_forward == (p - 1) * c * kv_row);
        CHECK(report.bytes_sent_backward == (p - 1) * c * kv_row * 2);  // and float32 gradients
        CHECK(report.bytes_received_forward == report.bytes_sent_forward);
      }
      spec.rotate_backward = Rotate::kQueries;
      CHECK(plan_of(spec, 0).report.bytes_sent_backward ==
            (p - 1) * c * 8 * (2 * 16 * 4 + 8 + 4 * 16));
      spec.rotate_forward = Rotate::kQueries;
      CHECK(plan_of(spec, 0).report.bytes_sent_forward == (p - 1) * c * 8 * (16 * 4 + 4 * 16 + 8));
      spec.rotate_forward = Rotate::kAuto;
      // 16-bit inputs: gradients stay float32.
      spec.dtype = spec.kv_wire = DType::kBFloat16;
      spec.rotate_backward = Rotate::kKeysAndValues;
      CHECK(plan_of(spec, 0).report.bytes_sent_backward == (p - 1) * c * 2 * 2 * 16 * 6);
    }
    AttentionSpec packed = ring(c * p, p, Layout::kContiguous, false);
    packed.kv_wire = DType::kInt8;  // and a scale for each head and token
    CHECK(plan_of(packed, 0).report.bytes_sent_forward == (p - 1) * c * 2 * 2 * (16 + 4));
    CHECK(plan_of(packed, 0).report.bytes_sent_backward == (p - 1) * c * 2 * 2 * (16 + 4 + 64));
    packed.kv_wire = DType::kBFloat16;
    CHECK(plan_of(packed, 0).report.bytes_sent_forward == (p - 1) * c * 2 * 2 * 32);
    // Causal: three quarters of it in the zigzag layout, half in the contiguous one.
    const int64_t full = p * (p - 1) * c * kv_row;
    for (const bool backward : {false, true}) {
      const int64_t all = backward ? 2 * full : full;
      CHECK(4 * sum_of_sent(ring(c * p, p, Layout::kZigzag, true), backward) == 3 * all);
      CHECK(2 * sum_of_sent(ring(c * p, p, Layout::kContiguous, true), backward) == all);
    }
  }
}

TEST_CASE("the exchange of heads sends the bytes of the formula", "[attention]") {
  const int64_t c = 24, d = 16, e = 4;
  for (const Rank p : {2, 4, 8}) {
    AttentionSpec spec = ring(c * p, p, Layout::kContiguous, true);
    spec.ulysses = p;
    const int64_t kv = std::max<int64_t>(spec.kv_heads, p);
    const PlanReport report = plan_of(spec, 0).report;
    CHECK(report.bytes_sent_forward * p ==
          (p - 1) * c * (d * e * (2 * spec.heads + 2 * kv) + 4 * spec.heads));
    CHECK(report.bytes_sent_backward * p ==
          (p - 1) * c * (d * e * (2 * spec.heads + 2 * kv) + 4 * spec.heads));
  }
  // Hybrid: both parts.
  AttentionSpec spec = ring(c * 8, 8, Layout::kContiguous, false);
  spec.ulysses = 2;
  CHECK(plan_of(spec, 3).report.bytes_sent_forward ==
        c * (d * e * (2 * 8 + 2 * 2) + 4 * 8) / 2 + 3 * (2 * c) * 2 * 1 * d * e);
}

TEST_CASE("dilated rings send what is selected, whatever the sequence's length", "[attention]") {
  AttentionSpec spec = ring(64 * 4, 4, Layout::kContiguous, false);
  spec.kv_heads = 4;
  spec.mask.segment_lengths = {32, 128};
  spec.mask.dilation_rates = {1, 4};
  const PlanReport report = plan_of(spec, 1).report;
  // Segments of 128 span two ranks; each sends its 64 / 4 rows for every head, offset 0 to 3.
  CHECK(report.bytes_sent_forward == (64 / 4) * 2 * 4 * 16 * 4);
  AttentionSpec twice = spec;
  twice.length *= 2;
  twice.ranks *= 2;
  CHECK(plan_of(twice, 5).report.bytes_sent_forward == report.bytes_sent_forward);
}

TEST_CASE("causal work is balanced", "[attention]") {
  for (const Rank p : {2, 3, 4, 8}) {
    CHECK(balance(ring(256 * p + 3, p, Layout::kZigzag, true)) <= 1.01);
    CHECK(balance(ring(256 * p + 3, p, Layout::kStriped, true)) <= 1.01);
    SpecMaker maker(static_cast<uint64_t>(p));
    for (int trial = 0; trial < 5; ++trial) {
      AttentionSpec packed = ring(1, p, Layout::kStriped, true);
      packed.mask.cu_seqlens = {0};
      for (int s = 0; s < 12; ++s)
        packed.mask.cu_seqlens.push_back(packed.mask.cu_seqlens.back() + maker.between(1, 2000));
      packed.length = packed.mask.cu_seqlens.back();
      CHECK(balance(packed) <= 1.05);
    }
  }
  // What the others are for.
  CHECK(balance(ring(2048, 8, Layout::kContiguous, true)) > 1.8);
}

TEST_CASE("memory falls with the ranks, message slots with their square if so asked",
          "[attention]") {
  const auto workspace = [](Rank p, int64_t n, int64_t chunk) {
    AttentionSpec spec = ring(n, p, Layout::kZigzag, true);
    spec.heads = 2;
    spec.chunk_tokens = chunk;
    return plan_of(spec, 0).report;
  };
  for (const Rank p : {2, 4}) {
    const int64_t n = 16384;
    const PlanReport few = workspace(p, n, 0), many = workspace(2 * p, n, 0);
    CHECK(many.saved_bytes * 100 <= few.saved_bytes * 55);
    CHECK(many.workspace_forward * 100 <= few.workspace_forward * 55);
    // A ring of two has two messages to send where others have more, and fills 8 slots of 13.
    CHECK(many.workspace_backward * 100 <= few.workspace_backward * (p == 2 ? 60 : 55));
    const PlanReport weak = workspace(2 * p, 2 * n, 0);
    CHECK((weak.saved_bytes + weak.workspace_backward) * 100 <=
          (few.saved_bytes + few.workspace_backward) * (p == 2 ? 110 : 102));
    if (p == 2) continue;
    // Chunks of n / p^2 tokens; what is left are the sums of softmax, 2 x 4 bytes per row and head.
    const int64_t sums_few = 2 * 4096 / p * 2 * 4, sums_many = sums_few / 2;
    const PlanReport cut = workspace(p, 4096, 4096 / p / p);
    const PlanReport cut_twice = workspace(2 * p, 4096, 4096 / p / p / 4);
    CHECK((cut_twice.workspace_forward - sums_many) * 100 <=
          (cut.workspace_forward - sums_few) * 30);
  }
}

TEST_CASE("a spec that cannot be is refused by name", "[attention]") {
  const auto message = [](auto change) {
    AttentionSpec spec = ring(64, 4, Layout::kZigzag, true);
    change(spec);
    return make_plan(spec, 0).status().message();
  };
  CHECK(message([](auto& s) { s.heads = 5; }).find("no multiple of 2") != std::string::npos);
  CHECK(message([](auto& s) { s.head_dim = 300; }).find("1 to 256") != std::string::npos);
  CHECK(message([](auto& s) { s.ulysses = 3; }).find("does not divide 4") != std::string::npos);
  CHECK(message([](auto& s) { s.mask.cu_seqlens = {0, 5}; }).find("cu_seqlens") !=
        std::string::npos);
  CHECK(message([](auto& s) {
          s.key_length = 65;
          s.mask.segment_lengths = s.mask.dilation_rates = {2};
        }).find("64 queries and 65 keys: dilation and block masks need") != std::string::npos);
  CHECK(message([](auto& s) {
          s.mask.cu_seqlens = {0, 5, 64};
          s.mask.cu_seqlens_k = {0, 64};
        }).find("each sequence needs its queries and its keys") != std::string::npos);
  CHECK(message([](auto& s) { s.dtype = DType::kInt32; }).find("int32") != std::string::npos);
  CHECK(make_plan(ring(64, 4, Layout::kZigzag, true), 4).status().message().find("no rank 4") !=
        std::string::npos);
}

}  // namespace rueda::testing
