#include <algorithm>
#include <chrono>
#include <cmath>

#include "bindings/c/context.h"

using rueda::Status;

namespace {

bool ended_well(const rueda_work* work) {
  return work != nullptr && work->work->done() && work->work->status().ok();
}

}  // namespace

extern "C" {

int32_t rueda_work_poll(rueda_work* work) { return work != nullptr && work->work->done() ? 1 : 0; }

int32_t rueda_work_wait(rueda_work* work, double timeout_seconds, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (work == nullptr) return rueda::invalid_argument("no work (NULL)");
    return work->work->wait(rueda::c_abi::to_nanoseconds(timeout_seconds));
  });
}

int32_t rueda_work_released(rueda_work* work) {
  return work != nullptr && work->work->released() ? 1 : 0;
}

int32_t rueda_work_stream_wait(rueda_work* work, void* stream, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (work == nullptr) return rueda::invalid_argument("no work (NULL)");
    if (!work->work->done())
      return rueda::failed_precondition(work->work->title() + " has not ended: wait for it first");
    RUEDA_RETURN_IF_ERROR(work->work->status());
    if (work->work->device_end() == nullptr) return {};
    return work->work->device_end()->make_wait(static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

int32_t rueda_work_output(rueda_work* work, void** data, int64_t* shape, int32_t max_ndim) {
  if (!ended_well(work)) return -1;
  const rueda::Shape& extents = work->work->output_shape();
  if (data != nullptr) *data = work->work->output();
  if (shape != nullptr) {
    const size_t count = std::min(extents.size(), static_cast<size_t>(std::max(max_ndim, 0)));
    std::copy_n(extents.begin(), count, shape);
  }
  return static_cast<int32_t>(extents.size());
}

int32_t rueda_work_received_splits(rueda_work* work, int64_t* splits, int32_t max_count) {
  if (!ended_well(work)) return -1;
  const std::vector<int64_t>& rows = work->work->received_rows();
  if (splits != nullptr) {
    std::copy_n(rows.begin(), std::min(rows.size(), static_cast<size_t>(std::max(max_count, 0))),
                splits);
  }
  return static_cast<int32_t>(rows.size());
}

int64_t rueda_work_result(const rueda_work* work) {
  return ended_well(work) ? work->work->result() : -1;
}

void rueda_work_release(rueda_work* work) { delete work; }

}  // extern "C"
