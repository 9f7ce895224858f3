#include "bindings/tensorflow/place.h"

#include <rueda/rueda.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "bindings/calls/calls.h"

namespace rueda::tensorflow {
namespace {

// As rueda.tensorflow._library counts them.
enum What : int64_t { kRank, kLocalRank, kSize, kLocalSize, kIsIncluded };

struct Place {
  int64_t what = kRank;
  int64_t process_set = 0;
};

int32_t value_of(const Place& place, const rueda_context* context) {
  const auto set = static_cast<int32_t>(place.process_set);
  switch (place.what) {
    case kLocalRank: return rueda_local_rank(context);
    case kSize:
      return set == 0 ? rueda_size(context) : rueda_process_set_ranks(context, set, nullptr, 0);
    case kLocalSize: return rueda_local_size(context);
    case kIsIncluded: {
      if (set == 0) return rueda_rank(context) >= 0 ? 1 : -1;
      const int32_t count = rueda_process_set_ranks(context, set, nullptr, 0);
      if (count < 0) return -1;
      std::vector<int32_t> ranks(static_cast<size_t>(count));
      rueda_process_set_ranks(context, set, ranks.data(), count);
      return std::count(ranks.begin(), ranks.end(), rueda_rank(context)) > 0 ? 1 : 0;
    }
    default: return rueda_rank(context);
  }
}

}  // namespace

void* make_place(TF_OpKernelConstruction* from) {
  auto place = std::make_unique<Place>();
  Status status;
  tf.OpKernelConstruction_GetAttrInt64(from, "what", &place->what, status.get());
  if (status.ok())
    tf.OpKernelConstruction_GetAttrInt64(from, "process_set", &place->process_set, status.get());
  if (!status.ok()) tf.OpKernelConstruction_Failure(from, status.get());
  return place.release();
}

void run_place(void* kernel, TF_OpKernelContext* context) {
  const auto& place = *static_cast<const Place*>(kernel);
  Status status;
  rueda_context* now = calls::Calls::instance().context();
  const int32_t value = now == nullptr ? -1 : value_of(place, now);
  rueda_context_release(now);
  if (value < 0) {
    tf.SetStatus(status.get(), RUEDA_FAILED_PRECONDITION,
                 "rueda is not initialised, or there is no such process set");
    tf.OpKernelContext_Failure(context, status.get());
    return;
  }
  TF_Tensor* output = tf.AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof value, status.get());
  if (output == nullptr) {
    tf.OpKernelContext_Failure(context, status.get());
    return;
  }
  *static_cast<int32_t*>(tf.TensorData(output)) = value;
  tf.DeleteTensor(output);
}

void delete_place(void* kernel) { delete static_cast<Place*>(kernel); }

}  // namespace rueda::tensorflow
