// A C++ program with an installed rueda: every operation of the header once, on any number of
// ranks.
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
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
  rueda::Work work = hvd.allreduce_async(largest, ReduceOp::kMax, {.name = "largest"});
  rueda::Work moved = std::move(work);
  moved.wait(std::chrono::seconds(60));
  expect(moved.poll() && largest[0] == size - 1, "allreduce_async max");

  std::vector<rueda::BFloat16> halves(8, rueda::BFloat16(2.0f));
  hvd.allreduce(halves, ReduceOp::kAverage, {.name = "halves"});
  expect(halves[7] == rueda::BFloat16(2.0f), "allreduce average of bfloat16");

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
  const rueda::Work flags = hvd.allgather_async(flag, {.name = "flags"});
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
    const rueda::Work sent = hvd.send_async(out, (rank + 1) % size, 7);
    hvd.recv(in, (rank + size - 1) % size, 7);
    sent.wait();
    expect(in[0] == static_cast<float>((rank + size - 1) % size), "send and recv");
  }
  rueda::Prepared again = hvd.prepare_allreduce<float>(3, ReduceOp::kSum, {.name = "again"});
  for (int round = 0; round < 20; ++round) {
    std::vector<float> data(3, static_cast<float>(round));
    again.run(data);
    expect(data[2] == static_cast<float>(round * size), "a prepared allreduce");
  }
  hvd.barrier({.name = "end"});
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
  errors(hvd);
  std::printf("consumer_cpp rank %d of %d: right\n", hvd.rank(), hvd.size());
} catch (const std::exception& error) {
  std::fprintf(stderr, "consumer_cpp: %s\n", error.what());
  return 1;
}
