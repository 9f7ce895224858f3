// What the C++ header of attention promises beyond the C ABI, on one rank: sizes and types are
// checked, a call can be looked at, waited for and aborted. Several ranks: project/consumer.cc.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rueda/attention.hpp"
#include "rueda/rueda.hpp"

namespace ra = rueda::attention;

namespace {

template <typename F>
std::string told(F&& f) {
  try {
    f();
  } catch (const rueda::Error& error) {
    CHECK(error.code() == RUEDA_INVALID_ARGUMENT);
    return error.what();
  }
  return "nothing was wrong";
}

struct Tensors {
  explicit Tensors(const ra::Plan& plan)
      : q(plan.query_size()), k(plan.key_size()), v(k), out(q), lse(plan.lse_size()) {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(std::sin(double(i)));
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(std::cos(double(i)));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 13);
  }
  std::vector<float> q, k, v, out, lse;
};

static_assert(!std::is_copy_constructible_v<ra::Plan> &&
              !std::is_copy_constructible_v<rueda::Request>);
static_assert(std::is_nothrow_move_constructible_v<rueda::Request>);

}  // namespace

TEST_CASE("C++ attends with and without a job, to the same bits", "[cpp][attention]") {
  rueda::Context hvd = rueda::init();
  const ra::Spec spec{.length = 33, .heads = 4, .kv_heads = 2, .head_dim = 16, .causal = true};
  const ra::Plan plan = ra::make_plan(hvd, spec), local = ra::make_plan(spec, 0, 1);
  CHECK(plan.hash() == local.hash());
  CHECK(plan.tokens() == 33);
  CHECK(plan.query_size() == 33 * 4 * 16);
  CHECK(plan.key_size() == 33 * 2 * 16);
  Tensors a(plan), b(plan);
  ra::Saved saved;
  rueda::Request work = ra::forward(hvd, plan, a.q, a.k, a.v, a.out, a.lse, &saved);
  rueda::Request moved = std::move(work);
  moved.wait(std::chrono::seconds(60));
  CHECK(moved.test());
  ra::forward(nullptr, local, b.q, b.k, b.v, b.out, std::span<float>{}).wait();
  CHECK(a.out == b.out);
  // The first query sees the first key alone.
  CHECK(std::vector<float>(a.out.begin(), a.out.begin() + 16) ==
        std::vector<float>(a.v.begin(), a.v.begin() + 16));
  auto dq = a.q, dk = a.k, dv = a.v;
  ra::backward(hvd, plan, saved, a.out, {}, a.q, a.k, a.v, a.out, a.lse, dq, dk, dv).wait();
  // So its score has no gradient; the last key is seen by the last query of each head alone.
  for (std::size_t i = 0; i < 64; ++i) CHECK(std::abs(dq[i]) < 1e-4f);
  CHECK(dv != a.v);
}

TEST_CASE("C++ decodes over a cache, in blocks too, as it attends", "[cpp][attention]") {
  rueda::Context hvd = rueda::init();
  const ra::Plan plan = ra::make_plan(
      {.length = 2, .key_length = 9, .heads = 4, .kv_heads = 2, .head_dim = 8, .causal = true}, 0,
      1);
  Tensors t(plan);
  ra::forward(nullptr, plan, t.q, t.k, t.v, t.out, t.lse).wait();
  ra::DecodeSpec spec{.queries = 2, .heads = 4, .kv_heads = 2, .head_dim = 8};
  spec.lengths = {9};
  spec.blocks = 1;
  spec.block_tokens = 9;
  auto out = t.q;
  auto lse = t.lse;
  const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-5f);
  };
  ra::decode(hvd, spec, t.q, t.k, t.v, out, lse).wait();
  close(out, t.out);
  close(lse, t.lse);
  // Three blocks of three, in another order.
  spec.blocks = spec.block_tokens = 3;
  spec.block_table = {2, 0, 1};
  const auto moved = [](const std::vector<float>& whole) {
    const std::ptrdiff_t block = 3 * 2 * 8;
    std::vector<float> blocks(whole.size());
    for (const auto& [from, to] : {std::pair{0, 2}, {1, 0}, {2, 1}})
      std::copy_n(whole.begin() + from * block, block, blocks.begin() + to * block);
    return blocks;
  };
  const auto k = moved(t.k), v = moved(t.v);
  ra::decode(nullptr, spec, t.q, k, v, out, std::span<float>{}).wait();
  close(out, t.out);
  spec.block_table = {2, 0, 3};
  CHECK(told([&] { ra::decode(nullptr, spec, t.q, t.k, t.v, out, lse).wait(); }).find("block 3") !=
        std::string::npos);
  spec.block_tokens = 4;
  const std::string message = told([&] { (void)ra::decode(hvd, spec, t.q, t.k, t.v, out, lse); });
  INFO(message);
  CHECK(message.find("k has 144 elements") != std::string::npos);
}

TEST_CASE("every mask and scheme of C++ is the library's", "[cpp][attention]") {
  ra::Spec spec{.length = 64, .heads = 4, .head_dim = 8};
  const auto hash = [&] { return ra::make_plan(spec, 1, 4).hash(); };
  std::vector<std::uint64_t> hashes{hash()};
  const auto another = [&](auto change) {
    const ra::Spec before = spec;
    change();
    hashes.push_back(hash());
    spec = before;
  };
  another([&] { spec.causal = true; });
  another([&] { spec.left = 5; });
  another([&] { spec.right = 5; });
  another([&] { spec.key_length = 65; });
  another([&] { spec.layout = ra::Layout::kStriped; });
  another([&] { spec.ulysses_degree = 2; });
  another([&] { spec.rotate_forward = ra::Rotate::kQueries; });
  another([&] { spec.gather_first = true; });
  another([&] { spec.chunk_tokens = 4; });
  another([&] { spec.compression = RUEDA_INT8; });
  another([&] { spec.softmax_scale = 2; });
  another([&] { spec.dtype = RUEDA_BFLOAT16; });
  another([&] { spec.cu_seqlens = {0, 10, 64}; });
  another([&] { spec.cu_seqlens = {0, 10, 64}, spec.layout_per_sequence = true; });
  another([&] { spec.segment_lengths = {16, 64}, spec.dilation_rates = {1, 4}; });
  another([&] { spec.block = 32, spec.blocks = {1, 0, 1, 1}; });
  for (std::size_t i = 0; i < hashes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(hashes[i] != hashes[j]);
  CHECK(ra::tokens_of(ra::Layout::kStriped, 7, 1, 3) == std::vector<std::int64_t>{1, 4});
}

TEST_CASE("wrong calls of attention in C++ say what is wrong", "[cpp][attention]") {
  const ra::Plan plan = ra::make_plan({.length = 5, .head_dim = 4}, 0, 1);
  Tensors t(plan);
  std::vector<double> doubles(t.q.size());
  std::vector<float> short_one(3), out = t.out;
  const auto says = [](const std::string& message, const char* part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  says(told([&] { (void)ra::forward(nullptr, plan, t.q, short_one, t.v, out, t.lse); }),
       "k has 3 elements, the plan gives this rank 20");
  says(told([&] { (void)ra::forward(nullptr, plan, doubles, t.k, t.v, out, t.lse); }),
       "element type of q");
  says(told([&] { (void)ra::forward(nullptr, plan, t.q, t.k, t.v, out, short_one); }), "lse has 3");
  says(told([&] {
         (void)ra::make_plan({.length = 5, .heads = 3, .kv_heads = 2, .head_dim = 4}, 0, 1);
       }),
       "no multiple of 2");
  says(told([&] {
         (void)ra::make_plan({.length = 5, .head_dim = 4, .block = 2, .blocks = {1, 1}}, 0, 1);
       }),
       "blocks has 2 entries, expected block_heads x 3 x 3");
  says(told([&] {
         (void)ra::make_plan({.length = 5, .head_dim = 4, .segment_lengths = {4}}, 0, 1);
       }),
       "differ in length");
  says(told([&] { (void)ra::tokens_of(ra::Layout::kZigzag, 5, 2, 2); }), "no such rank");
  const ra::Plan several = ra::make_plan({.length = 5, .head_dim = 4}, 0, 2);
  says(told([&] {
         (void)ra::forward(nullptr, several, std::span(t.q).first(12), std::span(t.k).first(12),
                           std::span(t.v).first(12), std::span(out).first(12), {});
       }),
       "for several ranks");
}

TEST_CASE("half a specification is refused by the C ABI, and so is NULL", "[cpp][attention]") {
  rueda_attention_plan* plan = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  const auto refused = [&](auto change, const char* part) {
    rueda_attention_spec spec = RUEDA_ATTENTION_SPEC_INIT;
    spec.length = 8;
    spec.head_dim = 4;
    change(spec);
    CHECK(rueda_attention_plan_create(nullptr, &spec, 0, 0, 1, &plan, &error) ==
          RUEDA_INVALID_ARGUMENT);
    CHECK(std::string(error.message).find(part) != std::string::npos);
  };
  refused([](auto& s) { s.block = 4; }, "blocks is NULL");
  refused(
      [](auto& s) { s.block = 4, s.block_heads = 2, s.blocks = reinterpret_cast<uint8_t*>(&s); },
      "for one head or for each KV head");
  refused([](auto& s) { s.block = -4; }, "block size must be positive");
  refused([](auto& s) { s.pair_count = 1; }, "segment_lengths is NULL");
  refused([](auto& s) { s.cu_seqlens_count = 2; }, "cu_seqlens is NULL");
  rueda_attention_spec spec = RUEDA_ATTENTION_SPEC_INIT;
  spec.length = 8;
  spec.head_dim = 4;
  REQUIRE(rueda_attention_plan_create(nullptr, &spec, 0, 0, 1, &plan, &error) == RUEDA_OK);
  rueda_request* call = nullptr;
  std::vector<float> x(32);
  CHECK(rueda_attention_forward(nullptr, plan, 0, 1, x.data(), nullptr, x.data(), x.data(), nullptr,
                                nullptr, &call, &error) == RUEDA_INVALID_ARGUMENT);
  CHECK(std::string(error.message).find("8 tokens and 8 keys, is NULL") != std::string::npos);
  CHECK(rueda_attention_forward(nullptr, nullptr, 0, 1, x.data(), x.data(), x.data(), x.data(),
                                nullptr, nullptr, &call, &error) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_attention_backward(nullptr, plan, 0, 1, x.data(), nullptr, x.data(), x.data(),
                                 x.data(), x.data(), nullptr, nullptr, x.data(), x.data(), x.data(),
                                 &call, &error) == RUEDA_INVALID_ARGUMENT);
  CHECK(rueda_request_wait(nullptr, 0, &error) == RUEDA_INVALID_ARGUMENT);
  rueda_attention_plan_release(plan);
}
