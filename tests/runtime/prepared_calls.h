// Prepared operations, short enough for tests.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {

using PreparedPtr = std::shared_ptr<engine::Prepared>;

inline engine::Operation shape_of(CollectiveKind kind, const std::string& name, DType dtype,
                                  int64_t count, ReduceOp op = ReduceOp::kSum, Rank root = 0) {
  engine::Operation operation;
  operation.kind = kind;
  operation.name = name;
  operation.dtype = dtype;
  operation.reduce_op = op;
  operation.shape = {count};
  operation.root = root;
  return operation;
}

inline const std::byte* in_of(const Floats& data) {
  return reinterpret_cast<const std::byte*>(data.data());
}
inline std::byte* out_of(Floats* data) { return reinterpret_cast<std::byte*>(data->data()); }

// How the last start ended; a wait that does not end is a failure of the test.
inline Status end_of(const PreparedPtr& prepared) {
  const Status status = prepared->wait(kGenerous);
  if (!prepared->done()) throw Failure("still not ended: " + status.to_string());
  return status;
}

// One sum over floats with its memory, reduced in place.
struct Sum {
  Sum(engine::Runtime& runtime, const std::string& name, size_t count)
      : prepared(must(runtime.prepare(shape_of(CollectiveKind::kAllreduce, name, DType::kFloat32,
                                               static_cast<int64_t>(count))))),
        data(count) {}
  // value: of this rank.
  void start(float value) {
    std::fill(data.begin(), data.end(), value);
    must(prepared->start(in_of(data), out_of(&data)));
  }
  bool ends_with(float value) {
    must(end_of(prepared));
    return std::all_of(data.begin(), data.end(), [&](float x) { return x == value; });
  }
  Status run(float value) {
    std::fill(data.begin(), data.end(), value);
    return prepared->run(in_of(data), out_of(&data));
  }

  PreparedPtr prepared;
  Floats data;
};

// Sum over the ranks of rank + add.
inline float sum_of_ranks(Rank size, float add) {
  return static_cast<float>(size * (size - 1) / 2) + static_cast<float>(size) * add;
}

inline std::vector<size_t> shuffled(size_t count, std::mt19937* random) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), *random);
  return order;
}

}  // namespace rueda::testing
