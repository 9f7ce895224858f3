// Calls on a Runtime, short enough for tests: float tensors, one operation at a time, and waits
// that always end.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/thread_world.h"

namespace rueda::testing {

using Floats = std::vector<float>;
using engine::RequestPtr;

// No test needs it; a hang becomes a failure that says so.
inline constexpr std::chrono::seconds kGenerous{100};

inline std::vector<Rank> world_sizes() {
  return is_short() ? std::vector<Rank>{1, 3} : std::vector<Rank>{1, 2, 3, 5, 8};
}
inline constexpr Kind kTestedKinds[] = {Kind::kInproc, Kind::kShm, Kind::kTcp, Kind::kHybrid};

// In place when out is in.
inline engine::Operation operation(CollectiveKind kind, const std::string& name, const Floats& in,
                                   Floats* out) {
  engine::Operation op;
  op.kind = kind;
  op.name = name;
  op.reduce_op = ReduceOp::kSum;
  op.shape = {static_cast<int64_t>(in.size())};
  op.input = reinterpret_cast<const std::byte*>(in.data());
  op.output = out == nullptr ? nullptr : reinterpret_cast<std::byte*>(out->data());
  return op;
}

// Null: of nothing.
inline engine::Operation sum_of(const std::string& name, Floats* data) {
  if (data == nullptr) return operation(CollectiveKind::kAllreduce, name, {}, nullptr);
  return operation(CollectiveKind::kAllreduce, name, *data, data);
}

inline RequestPtr start(engine::Runtime& runtime, engine::Operation op) {
  return must(runtime.start({std::move(op)})).front();
}

// A persistent one.
inline RequestPtr make(engine::Runtime& runtime, engine::Operation op) {
  return must(runtime.make({std::move(op)})).front();
}

// How its last start ended; a wait that does not end is a failure of the test.
inline Status end_of(const RequestPtr& request) {
  const Status status = request->wait(kGenerous);
  if (!request->done()) throw Failure("still not ended: " + status.to_string());
  return status;
}

inline Status call(engine::Runtime& runtime, engine::Operation op) {
  return end_of(start(runtime, std::move(op)));
}

inline Floats result_of(const RequestPtr& request) {
  must(end_of(request));
  Floats values(static_cast<size_t>(element_count(request->output_shape())));
  if (!values.empty()) std::memcpy(values.data(), request->output(), values.size() * sizeof(float));
  return values;
}

// "" if the sum over all ranks comes out right; for "the runtime goes on working".
inline std::string trouble_with_sum(engine::Runtime& runtime, const std::string& name) {
  Floats data(10, static_cast<float>(runtime.membership().rank + 1));
  const Status status = call(runtime, sum_of(name, &data));
  if (!status.ok()) return status.to_string();
  const Rank size = runtime.membership().size;
  return data == Floats(10, static_cast<float>(size * (size + 1) / 2)) ? "" : "wrong sum";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace rueda::testing
