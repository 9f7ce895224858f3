// Two ranks move 2^31 + 17 bytes through one collective: counts that no 32-bit integer holds.
//
//   large_program allreduce | allgather | broadcast | alltoall | reducescatter | sendrecv
//
// Element i of rank r is byte(r, i), without a short period, so that a shifted or repeated part
// cannot look right. Results are compared element by element, in one pass without a second copy.
// Prints "ok NAME", exits 0; else says where it differs.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "rueda/rueda.h"

namespace {

constexpr int64_t kCount = (int64_t{1} << 31) + 17;

uint8_t byte(int rank, int64_t i) {
  return static_cast<uint8_t>((static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15u) >>
                              (40 + 3 * rank));
}

// Zero pages until they are touched.
std::unique_ptr<uint8_t[]> memory(int64_t count) {
  return std::unique_ptr<uint8_t[]>(new uint8_t[static_cast<size_t>(count)]);
}

template <typename Expected>
bool holds(const uint8_t* data, int64_t count, Expected expected) {
  for (int64_t i = 0; i < count; ++i) {
    if (data[i] == expected(i)) continue;
    std::printf("element %lld of %lld is %d, not %d\n", static_cast<long long>(i),
                static_cast<long long>(count), data[i], expected(i));
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto begin = std::chrono::steady_clock::now();
  rueda_context* context = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) return std::puts(error.message), 1;
  const int rank = rueda_rank(context);
  // An allgather's and an alltoall's results are as large as both inputs: rank 1 gives most of the
  // 2^31 + 17 rows.
  const int64_t rows[2] = {1000, kCount - 1000};
  int64_t count = what == "allgather" ? rows[rank] : kCount;
  const auto data = memory(count);
  const bool receives = what == "sendrecv" && rank == 1;
  for (int64_t i = 0; i < count && !receives; ++i) data[static_cast<size_t>(i)] = byte(rank, i);

  rueda_op op = RUEDA_OP_INIT;
  op.name = "large";
  op.input = data.get();
  op.dtype = RUEDA_UINT8;
  op.reduce_op = RUEDA_SUM;
  op.shape = &count;
  op.ndim = 1;
  if (what == "allreduce") op.kind = RUEDA_ALLREDUCE, op.output = data.get();
  if (what == "allgather") op.kind = RUEDA_ALLGATHER;
  if (what == "broadcast") op.kind = RUEDA_BROADCAST, op.output = data.get(), op.root = 1;
  if (what == "alltoall") op.kind = RUEDA_ALLTOALL, op.splits = rows, op.splits_count = 2;
  if (what == "reducescatter") op.kind = RUEDA_REDUCESCATTER;
  if (what == "sendrecv")
    op.kind = rank == 0 ? RUEDA_SEND : RUEDA_RECV, op.peer = 1 - rank, op.output = data.get();

  rueda_request* work = nullptr;
  if (rueda_start(context, &op, 1, 0, &work, &error) != RUEDA_OK)
    return std::puts(error.message), 1;
  if (rueda_request_wait(work, -1, &error) != RUEDA_OK) return std::puts(error.message), 1;
  const auto end = std::chrono::steady_clock::now();
  void* output = nullptr;
  int64_t length = -1;
  rueda_request_output(work, &output, &length, 1);
  const auto* out = op.output != nullptr ? data.get() : static_cast<const uint8_t*>(output);
  if (out == nullptr) return std::puts("no output"), 1;

  bool well = false;
  const auto sum = [](int64_t i) { return static_cast<uint8_t>(byte(0, i) + byte(1, i)); };
  if (what == "allreduce") well = holds(out, kCount, sum);
  if (what == "broadcast") well = holds(out, kCount, [](int64_t i) { return byte(1, i); });
  if (what == "sendrecv") well = holds(out, kCount, [](int64_t i) { return byte(0, i); });
  if (what == "allgather") {
    well = length == kCount && holds(out, length, [&](int64_t i) {
             return i < rows[0] ? byte(0, i) : byte(1, i - rows[0]);
           });
  }
  if (what == "alltoall") {  // from each of the two: its rows for this rank
    const int64_t first = rank == 0 ? 0 : rows[0];
    well = length == 2 * rows[rank] && holds(out, length, [&](int64_t i) {
             return i < rows[rank] ? byte(0, first + i) : byte(1, first + i - rows[rank]);
           });
  }
  if (what == "reducescatter") {
    const int64_t first = rank == 0 ? 0 : rueda_split_rows(kCount, 0, 2);
    well = length == rueda_split_rows(kCount, rank, 2) &&
           holds(out, length, [&](int64_t i) { return sum(first + i); });
  }
  rueda_request_release(work);
  rueda_shutdown(context);
  rueda_context_release(context);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%s %s: %.1f s with init and filling, %.1f GiB at most\n", well ? "ok" : "WRONG",
              what.c_str(), std::chrono::duration<double>(end - begin).count(),
              static_cast<double>(usage.ru_maxrss) / (1 << 20));
  return well ? 0 : 1;
}
