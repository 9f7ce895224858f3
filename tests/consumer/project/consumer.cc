// A C++ program with an installed rueda: every operation of the header once, on any number of
// ranks.
#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <rueda/attention.hpp>
#include <rueda/rueda.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using rueda::ReduceOp;

namespace {

void expect(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("wrong: ") + what);
}

void reductions(rueda::Context& hvd) {
  const int rank = hvd.rank(), size = hvd.size();
  std::vector<float> sum{static_cast<float>(rank), 1.0f};
  hvd.allreduce(sum, ReduceOp::kSum, {.name = "sum"});
  expect(sum[0] == static_cast<float>(size * (size - 1) / 2) && sum[1] == static_cast<float>(size),
         "allreduce sum");

  std::array<std::int64_t, 1> largest{rank};
  rueda::Request work = hvd.allreduce_async(largest, ReduceOp::kMax, {.name = "largest"});
  rueda::Request moved = std::move(work);
  moved.wait(std::chrono::seconds(60));
  expect(moved.test() && largest[0] == size - 1, "allreduce_async max");

  std::vector<rueda::BFloat16> halves(8, rueda::BFloat16(2.0f));
  hvd.allreduce(halves, ReduceOp::kAverage, {.name = "halves"});
  expect(halves[7] == rueda::BFloat16(2.0f), "allreduce average of bfloat16");

  std::vector<std::complex<float>> turns{{1.0f, static_cast<float>(rank)}};
  hvd.allreduce(turns, ReduceOp::kSum, {.name = "turns"});
  expect(turns[0] == std::complex(static_cast<float>(size), sum[0]), "allreduce of complex");

  std::vector<std::uint32_t> unsigned_max{rank == 0 ? ~0u : 1u};
  hvd.allreduce(unsigned_max, ReduceOp::kMax, {.name = "unsigned_max"});
  expect(unsigned_max[0] == ~0u, "allreduce max of uint32");

  std::vector<std::vector<double>> group{{1.0, 2.0}, {3.0}};
  hvd.grouped_allreduce(std::span(group), ReduceOp::kSum, {.name = "group"});
  expect(group[0][1] == 2.0 * size && group[1][0] == 3.0 * size, "grouped_allreduce");

  std::vector<std::int32_t> rows(static_cast<std::size_t>(size + 1) * 2, 1);
  const auto mine =
      hvd.reducescatter(rows, ReduceOp::kSum, {.name = "rows", .shape = {size + 1, 2}});
  expect(static_cast<std::int64_t>(mine.size()) == 2 * rueda_split_rows(size + 1, rank, size) &&
             mine.front() == size,
         "reducescatter");
}

void movements(rueda::Context& hvd) {
  const int rank = hvd.rank(), size = hvd.size();
  std::vector<std::uint8_t> from_last(5, static_cast<std::uint8_t>(rank));
  hvd.broadcast(from_last, size - 1, {.name = "from_last"});
  expect(from_last == std::vector<std::uint8_t>(5, static_cast<std::uint8_t>(size - 1)),
         "broadcast");

  // Rank r gives r + 1 rows.
  const std::vector<std::int32_t> some(static_cast<std::size_t>(rank + 1), rank);
  const std::vector<std::int32_t> all = hvd.allgather(some, {.name = "all"});
  std::vector<std::int32_t> expected;
  for (int r = 0; r < size; ++r)
    expected.insert(expected.end(), static_cast<std::size_t>(r + 1), r);
  expect(all == expected, "allgather");

  const bool flag[1] = {rank == 0};
  const rueda::Request flags = hvd.allgather_async(flag, {.name = "flags"});
  flags.wait();
  expect(flags.output<bool>()[0] && flags.shape() == rueda::Shape{size}, "allgather of bool");

  // Every rank sends r + 1 copies of its number to rank r.
  std::vector<std::int64_t> splits;
  std::vector<double> numbers;
  for (int r = 0; r < size; ++r) {
    splits.push_back(r + 1);
    numbers.insert(numbers.end(), static_cast<std::size_t>(r + 1), rank);
  }
  const rueda::Received<double> received = hvd.alltoall(numbers, splits, {.name = "numbers"});
  expect(received.rows == rueda::Shape(static_cast<std::size_t>(size), rank + 1) &&
             received.values.back() == size - 1,
         "alltoall");

  // Round the ring, to the right.
  const std::vector<float> out{static_cast<float>(rank)};
  std::vector<float> in(1);
  if (size > 1) {
    const rueda::Request sent = hvd.send_async(out, (rank + 1) % size, 7);
    hvd.recv(in, (rank + size - 1) % size, 7);
    sent.wait();
    expect(in[0] == static_cast<float>((rank + size - 1) % size), "send and recv");
  }
  rueda::Request again = hvd.allreduce_init<float>(3, ReduceOp::kSum, {.name = "again"});
  for (int round = 0; round < 20; ++round) {
    std::vector<float> data(3, static_cast<float>(round));
    again.run(data);
    expect(data[2] == static_cast<float>(round * size), "a prepared allreduce");
  }
  hvd.barrier({.name = "end"});
}

// Causal attention of 21 tokens that the ranks share, each rank's rows against the whole computed
// here.
void attention(rueda::Context& hvd) {
  namespace ra = rueda::attention;
  constexpr std::int64_t kTokens = 21, kHeads = 2, kDim = 8;
  const auto value = [](std::int64_t token, std::int64_t head, std::int64_t at, std::int64_t what) {
    return static_cast<float>(std::sin(static_cast<double>(token * 7 + head * 3 + at + what * 5)));
  };
  const ra::Plan plan = ra::make_plan(hvd, {.length = kTokens,
                                            .heads = kHeads,
                                            .head_dim = kDim,
                                            .layout = ra::Layout::kZigzag,
                                            .causal = true});
  const auto own = ra::tokens_of(ra::Layout::kZigzag, kTokens, hvd.rank(), hvd.size());
  expect(plan.tokens() == std::ssize(own) && plan.query_size() == plan.key_size(),
         "a plan's tokens");
  const auto tensor = [&](std::int64_t what) {
    std::vector<float> rows;
    for (const std::int64_t token : own)
      for (std::int64_t i = 0; i < kHeads * kDim; ++i)
        rows.push_back(value(token, i / kDim, i % kDim, what));
    return rows;
  };
  const auto q = tensor(0), k = tensor(1), v = tensor(2), dout = tensor(3);
  std::vector<float> out(q.size()), lse(plan.lse_size()), dq(q), dk(k), dv(v);
  ra::Saved saved;
  rueda::Request work = ra::forward(hvd, plan, q, k, v, out, lse, &saved);
  work.wait(std::chrono::seconds(60));
  expect(work.test(), "an attention that has ended");
  ra::backward(hvd, plan, saved, dout, {}, q, k, v, out, lse, dq, dk, dv).wait();

  const auto probability = [&](std::int64_t i, std::int64_t j, std::int64_t h, double* sum) {
    std::vector<double> weights;
    *sum = 0;
    for (std::int64_t t = 0; t <= i; ++t) {
      double score = 0;
      for (std::int64_t x = 0; x < kDim; ++x)
        score += static_cast<double>(value(i, h, x, 0)) * static_cast<double>(value(t, h, x, 1));
      weights.push_back(std::exp(score / std::sqrt(double{kDim})));
      *sum += weights.back();
    }
    return j > i ? 0.0 : weights[static_cast<std::size_t>(j)] / *sum;
  };
  double off = 0;
  for (std::size_t row = 0; row < own.size(); ++row) {
    const std::int64_t i = own[row];
    for (std::int64_t h = 0; h < kHeads; ++h) {
      double sum = 0;
      for (std::int64_t x = 0; x < kDim; ++x) {
        const std::size_t at = row * kHeads * kDim + static_cast<std::size_t>(h * kDim + x);
        double wanted = 0, gradient = 0;  // of the output, and of v
        for (std::int64_t j = 0; j < kTokens; ++j) {
          wanted += probability(i, j, h, &sum) * static_cast<double>(value(j, h, x, 2));
          double other = 0;
          gradient += probability(j, i, h, &other) * static_cast<double>(value(j, h, x, 3));
        }
        off = std::max({off, std::abs(wanted - static_cast<double>(out[at])),
                        std::abs(gradient - static_cast<double>(dv[at]))});
      }
      const double mine = static_cast<double>(lse[static_cast<std::size_t>(h) * own.size() + row]);
      off = std::max(off, std::abs(std::log(sum) - mine));
    }
  }
  expect(off < 2e-6, "attention and its gradient");
}

void errors(rueda::Context& hvd) {
  std::vector<float> six(6);
  try {
    hvd.allreduce(six, ReduceOp::kSum, {.name = "six", .shape = {2, 2}});
    expect(false, "a shape that does not fit is refused");
  } catch (const rueda::Error& error) {
    expect(error.code() == RUEDA_INVALID_ARGUMENT, "the code of a wrong shape");
  }
}

}  // namespace

int main() try {
  rueda::Context hvd = rueda::init();
  reductions(hvd);
  movements(hvd);
  attention(hvd);
  errors(hvd);
  std::printf("consumer_cpp rank %d of %d: right\n", hvd.rank(), hvd.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "consumer_cpp: %s\n", error.what());
  return 1;
}
