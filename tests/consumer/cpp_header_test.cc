// What the C++ header promises beyond the C ABI, on one rank: types, ownership, exceptions. The
// operations themselves run on several ranks in project/consumer.cc.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/rueda.hpp"

using rueda::Context;
using rueda::ReduceOp;
using rueda::Request;

namespace {

template <typename F>
rueda_code code_of(F&& f) {
  try {
    f();
  } catch (const rueda::Error& error) {
    CHECK_FALSE(std::string(error.what()).empty());
    return error.code();
  }
  return RUEDA_OK;
}

// What may be handed over, decided at compile time.
static_assert(rueda::InOut<std::vector<float>&> && rueda::InOut<std::span<float>>);
static_assert(rueda::Input<const std::vector<float>&> && !rueda::InOut<const std::vector<float>&>);
static_assert(!rueda::Input<std::vector<float>>, "a temporary would be gone too early");
static_assert(!rueda::Input<std::list<float>&> && !rueda::Input<std::vector<std::string>&>);
static_assert(!rueda::Element<char> && !rueda::Element<char16_t> && !rueda::Element<wchar_t>);
static_assert(!rueda::Element<long double> && !rueda::Element<std::complex<long double>>);
static_assert(rueda::dtype_of<std::uint16_t> == RUEDA_UINT16);
static_assert(rueda::dtype_of<unsigned> == RUEDA_UINT32);
static_assert(rueda::dtype_of<unsigned long> == RUEDA_UINT64);
static_assert(rueda::dtype_of<const std::complex<float>> == RUEDA_COMPLEX64);
static_assert(rueda::dtype_of<std::complex<double>> == RUEDA_COMPLEX128);
static_assert(rueda::dtype_of<long> == RUEDA_INT64 && rueda::dtype_of<long long> == RUEDA_INT64);
static_assert(rueda::dtype_of<std::byte> == RUEDA_UINT8 && rueda::dtype_of<bool> == RUEDA_BOOL);
static_assert(rueda::dtype_of<const rueda::Float16> == RUEDA_FLOAT16);

// Owners can be moved, not copied.
static_assert(!std::is_copy_constructible_v<Context> && !std::is_copy_constructible_v<Request>);
static_assert(!std::is_copy_constructible_v<rueda::Request> &&
              std::is_nothrow_move_constructible_v<rueda::Request>);
static_assert(std::is_nothrow_move_constructible_v<Context> &&
              std::is_nothrow_move_constructible_v<Request>);

}  // namespace

TEST_CASE("a context that was moved from or shut down throws instead of crashing", "[cpp]") {
  Context hvd = rueda::init();
  CHECK(hvd.size() == 1);
  Context moved = std::move(hvd);
  CHECK(code_of([&] { hvd.rank(); }) == RUEDA_FAILED_PRECONDITION);
  moved.shutdown();
  moved.shutdown();
  std::vector<float> x(1);
  CHECK(code_of([&] { moved.allreduce(x, ReduceOp::kSum); }) == RUEDA_FAILED_PRECONDITION);
}

TEST_CASE("stats say what this rank did", "[cpp]") {
  Context hvd = rueda::init();
  const double before = hvd.stats().at("operations");
  std::vector<float> x(100);
  hvd.allreduce(x, ReduceOp::kSum, {.name = "x"});
  CHECK(hvd.stats(true).at("operations") == before + 1);
  CHECK(hvd.stats().at("operations") == 0);
  CHECK(hvd.stats().at("bytes") == 0);
  hvd.shutdown();
  CHECK(hvd.stats().empty());
}

TEST_CASE("the results belong to the work and have their type", "[cpp]") {
  Context hvd = rueda::init();
  const std::vector<float> rows{1, 2, 3, 4, 5, 6};
  const Request work = hvd.allgather_async(rows, {.name = "rows", .shape = {3, 2}});
  work.wait();
  const auto all = work.output<float>();
  CHECK(std::vector<float>(all.begin(), all.end()) == rows);
  CHECK(work.shape() == rueda::Shape{3, 2});
  CHECK(work.rows_by_rank() == rueda::Shape{3});
  CHECK(code_of([&] { work.output<std::int32_t>(); }) == RUEDA_INVALID_ARGUMENT);
}

TEST_CASE("a request may outlive its context, and be given up", "[cpp]") {
  std::array<double, 2> x{1, 2}, y{3, 4};
  {
    Request kept = [&] {
      Context hvd = rueda::init();
      hvd.allreduce_async(y, ReduceOp::kSum, {.name = "y"}).detach();
      Request work = hvd.allreduce_async(x, ReduceOp::kSum, {.name = "x"});
      work.wait();
      return work;
    }();
    CHECK(kept.test());
    kept.wait();
  }
  CHECK(x == std::array<double, 2>{1, 2});
}

TEST_CASE("a buffer is zeroed, can be reduced, and outlives its context", "[cpp]") {
  static_assert(rueda::InOut<rueda::Buffer<float>&> && !rueda::InOut<rueda::Buffer<float>>);
  rueda::Buffer<float> kept;
  CHECK(kept.size() == 0);
  {
    Context hvd = rueda::init();
    rueda::Buffer<float> buffer(hvd, 1000);
    CHECK(buffer.size() == 1000);
    CHECK(std::all_of(buffer.begin(), buffer.end(), [](float x) { return x == 0; }));
    buffer[999] = 3;
    hvd.allreduce(buffer, ReduceOp::kSum, {.name = "buffer"});
    kept = std::move(buffer);
    CHECK(rueda::Buffer<double>(hvd, 0).size() == 0);
    CHECK(code_of([&] { rueda::Buffer<double>(hvd, SIZE_MAX); }) == RUEDA_RESOURCE_EXHAUSTED);
    CHECK(code_of([&] { rueda::Buffer<std::byte>(hvd, SIZE_MAX / 2); }) ==
          RUEDA_RESOURCE_EXHAUSTED);
    hvd.shutdown();
    CHECK(code_of([&] { rueda::Buffer<float>(hvd, 1); }) == RUEDA_FAILED_PRECONDITION);
  }
  CHECK(kept[999] == 3);
}

TEST_CASE("a persistent request is started again and again", "[cpp]") {
  Context hvd = rueda::init();
  rueda::Request sum =
      hvd.allreduce_init<float>(6, ReduceOp::kSum, {.name = "sum", .shape = {2, 3}});
  rueda::Request news = hvd.broadcast_init<std::int64_t>(2, 0, {.name = "news"});
  rueda::Request part =
      hvd.reducescatter_init<double>(6, ReduceOp::kAverage, {.name = "p", .shape = {3, 2}});
  sum.wait();  // there was no start
  CHECK(sum.test());
  CHECK((part.input_size() == 6 && part.output_size() == 6));
  std::array<std::int64_t, 2> told{7, 8};
  const std::vector<double> rows{1, 2, 3, 4, 5, 6};
  for (int round = 0; round < 10; ++round) {
    const std::vector<float> in(6, static_cast<float>(round));
    std::vector<float> out(6);
    sum.run(in, out);
    CHECK(out == in);
    sum.start(out);
    news.start(told);
    std::vector<double> own(6);
    part.run(rows, own);
    sum.wait(std::chrono::seconds(60));
    news.wait();
    CHECK((out == in && own == rows && told[1] == 8));
  }
}

TEST_CASE("each end of several requests is told once", "[cpp]") {
  Context hvd = rueda::init();
  std::vector<std::vector<double>> data(3, std::vector<double>(2, 1));
  std::vector<Request> requests;
  for (auto& x : data) requests.push_back(hvd.allreduce_async(x, ReduceOp::kSum));
  requests[1].wait();  // has been told
  std::vector<bool> told(3, false);
  while (const auto place = rueda::wait_any(requests, std::chrono::seconds(60))) {
    CHECK_FALSE(told[*place]);
    told[*place] = true;
  }
  CHECK(told == std::vector<bool>{true, false, true});
  CHECK_FALSE(rueda::wait_any({}));
  // Persistent ones: never started, each start anew.
  requests.clear();
  requests.push_back(hvd.allreduce_init<double>(2, ReduceOp::kSum, {.name = "again"}));
  CHECK_FALSE(rueda::wait_any(requests));
  for (int round = 0; round < 3; ++round) {
    requests[0].start(data[0]);
    CHECK(rueda::wait_any(requests) == 0);
    CHECK_FALSE(rueda::wait_any(requests));
  }
  const Request moved = std::move(requests[0]);
  CHECK_FALSE(rueda::wait_any(requests));
}

TEST_CASE("a persistent request refuses what it was not made for, and outlives its context",
          "[cpp]") {
  std::vector<float> six(6);
  std::vector<double> doubles(6);
  Context hvd = rueda::init();
  rueda::Request unnamed = hvd.allreduce_init<float>(6, ReduceOp::kSum, {});
  unnamed.run(six);
  CHECK(code_of([&] {
          (void)hvd.allreduce_init<float>(6, ReduceOp::kSum, {.name = "s", .shape = {5}});
        }) == RUEDA_INVALID_ARGUMENT);
  CHECK(code_of([&] { (void)hvd.broadcast_init<float>(6, 1, {.name = "b"}); }) ==
        RUEDA_INVALID_ARGUMENT);
  rueda::Request first = hvd.allreduce_init<float>(6, ReduceOp::kSum, {.name = "x"});
  CHECK(code_of([&] { first.run(std::span(six).first(5)); }) == RUEDA_INVALID_ARGUMENT);
  CHECK(code_of([&] { first.run(doubles); }) == RUEDA_INVALID_ARGUMENT);
  rueda::Request sum = std::move(first);
  CHECK(code_of([&] { first.run(six); }) == RUEDA_FAILED_PRECONDITION);
  sum.run(six);
  hvd.shutdown();
  sum.wait();
  CHECK(code_of([&] { sum.run(six); }) == RUEDA_CANCELLED);
  CHECK(code_of([&] { (void)hvd.allreduce_init<float>(6, ReduceOp::kSum, {.name = "y"}); }) ==
        RUEDA_FAILED_PRECONDITION);
}

TEST_CASE("a group is opened, used and closed", "[cpp]") {
  Context hvd = rueda::init();
  const std::vector<std::int32_t> ranks = {0};
  const int group = hvd.open_group("alone", ranks);
  CHECK(group >= RUEDA_FIRST_GROUP);
  CHECK(hvd.process_set_ranks(group) == ranks);
  std::vector<float> x = {1, 2};
  hvd.allreduce(x, ReduceOp::kSum, {.process_set = group});
  CHECK(x == std::vector<float>{1, 2});
  CHECK(hvd.allgather(x, {.process_set = group}) == x);
  CHECK(code_of([&] { hvd.allreduce(x, ReduceOp::kSum, {.name = "x", .process_set = group}); }) ==
        RUEDA_INVALID_ARGUMENT);
  hvd.abort_group(group, "enough");
  CHECK(code_of([&] { hvd.allreduce(x, ReduceOp::kSum, {.process_set = group}); }) ==
        RUEDA_CANCELLED);
  hvd.close_group(group);
  CHECK(code_of([&] { hvd.close_group(group); }) == RUEDA_INVALID_ARGUMENT);
  CHECK(code_of([&] { hvd.open_group("", ranks); }) == RUEDA_INVALID_ARGUMENT);
}

TEST_CASE("what is wrong on this rank alone throws at the call", "[cpp]") {
  Context hvd = rueda::init();
  std::vector<float> six(6);
  CHECK(code_of([&] { hvd.allreduce(six, ReduceOp::kSum, {.name = "a", .shape = {2, 2}}); }) ==
        RUEDA_INVALID_ARGUMENT);
  CHECK(code_of([&] { hvd.broadcast(six, 1, {.name = "b"}); }) == RUEDA_INVALID_ARGUMENT);
  const std::array<std::int64_t, 1> too_many{7};
  CHECK(code_of([&] { hvd.alltoall(six, too_many, {.name = "c"}); }) == RUEDA_INVALID_ARGUMENT);
  hvd.allreduce(six, ReduceOp::kSum, {.name = "still works"});
}

TEST_CASE("every range that stays put can be reduced", "[cpp]") {
  Context hvd = rueda::init();
  std::int32_t plain[3] = {1, 2, 3};
  hvd.allreduce(plain, ReduceOp::kSum);
  hvd.allreduce(std::span(plain).first(2), ReduceOp::kSum);
  std::vector<std::array<float, 2>> not_flat(2);
  hvd.allreduce(std::span(not_flat.data()->data(), 4), ReduceOp::kMin);
  std::vector<float> none;
  hvd.allreduce(none, ReduceOp::kSum, {.name = "none"});
  CHECK(plain[2] == 3);
}
