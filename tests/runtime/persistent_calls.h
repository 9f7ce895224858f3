// Persistent requests, short enough for tests.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {

// For steps that are counted. Nothing but the program itself ends a plan.
inline Config very_patient() {
  Config config;
  config.plan_patience_seconds = 100;
  config.fusion_hold_seconds = 100;
  config.name_slow_ranks = false;  // on a busy machine; a warning allocates
  config.shm_protocol = "staged";  // the choice between two protocols is measured anew now and then
  return config;
}

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

// One sum over floats with its memory, reduced in place.
struct Sum {
  Sum(engine::Runtime& runtime, const std::string& name, size_t count)
      : request(make(runtime, shape_of(CollectiveKind::kAllreduce, name, DType::kFloat32,
                                       static_cast<int64_t>(count)))),
        data(count) {}
  // value: of this rank.
  void start(float value) {
    std::fill(data.begin(), data.end(), value);
    must(request->start(in_of(data), out_of(&data)));
  }
  bool ends_with(float value) {
    must(end_of(request));
    return std::all_of(data.begin(), data.end(), [&](float x) { return x == value; });
  }
  Status run(float value) {
    std::fill(data.begin(), data.end(), value);
    return request->run(in_of(data), out_of(&data));
  }

  RequestPtr request;
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
