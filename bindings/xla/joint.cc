#include "bindings/xla/joint.h"

namespace rueda::xla {

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, int32_t code, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message,
                                    static_cast<XLA_FFI_Error_Code>(code)};  // both are gRPC's
  return api->XLA_FFI_Error_Create(&args);
}

bool Member::may_start(rueda_context* context) {
  const int32_t rank = rueda_rank(context);
  const int32_t size = rueda_size(context);
  if (rank < 0) return true;  // not in a job: rueda_start says that
  if (rank == joint->rank && size == joint->size) return true;
  const auto of = [](int32_t a, int32_t b) {
    return "rank " + std::to_string(a) + " of " + std::to_string(b);
  };
  const std::string text = "'" + queue + "': this program was lowered for " +
                           of(joint->rank, joint->size) + ", and this process is " +
                           of(rank, size) + " now: lower it again";
  error.message[text.copy(error.message, sizeof error.message - 1)] = 0;
  code = RUEDA_FAILED_PRECONDITION;
  return false;
}

void Member::complete() {
  if (code == RUEDA_OK) code = joint->after(*this, &error);
  {
    std::lock_guard lock(joint->mutex);
    if (joint->code == RUEDA_OK && code != RUEDA_OK) {
      joint->code = code;
      joint->error = error;
    }
    if (--joint->left > 0) return;
  }
  joint->finish();
}

void FutureJoint::finish() {
  if (code == RUEDA_OK) {
    XLA_FFI_Future_SetAvailable_Args args = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr,
                                             future};
    api->XLA_FFI_Future_SetAvailable(&args);
  } else {
    XLA_FFI_Future_SetError_Args args = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr, future,
                                         make_error(api, code, error.message)};
    api->XLA_FFI_Future_SetError(&args);
  }
}

void WaitedJoint::finish() {
  std::lock_guard lock(mutex);
  has_ended_ = true;
  ended_.notify_all();
}

int32_t WaitedJoint::wait() {
  std::unique_lock lock(mutex);
  ended_.wait(lock, [this] { return has_ended_; });
  return code;
}

}  // namespace rueda::xla
