// One custom call of XLA and its members.
#pragma once

#include <rueda/rueda.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/calls/calls.h"
#include "bindings/xla/vendor/xla_ffi_c_api.inc"

namespace rueda::xla {

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, int32_t code, const char* message);

struct Member;

// It has ended when all its members have. Shared by them, which any thread may complete.
struct Joint {
  virtual ~Joint() = default;

  // One member has ended well; its requests are still there. An error is the call's.
  virtual int32_t after(const Member&, rueda_error*) { return RUEDA_OK; }

  // All have; nobody else touches the joint any more.
  virtual void finish() = 0;

  const XLA_FFI_Api* api = nullptr;
  int32_t rank = 0;  // for which the program was lowered
  int32_t size = 0;
  std::mutex mutex;  // of what follows
  size_t left = 0;   // members that have not ended
  int32_t code = RUEDA_OK;
  rueda_error error = RUEDA_ERROR_INIT;  // the first one's
};

// XLA goes on when its future is completed.
struct FutureJoint : Joint {
  void finish() override;

  XLA_FFI_Future* future = nullptr;
};

// The thread that has started them waits.
struct WaitedJoint : Joint {
  void finish() override;

  // An error's code and `error` if one of them has failed.
  int32_t wait();

 private:
  std::condition_variable ended_;
  bool has_ended_ = false;
};

// A member: one operation, or a group that is ready together or not at all. Its name is in flight
// once: the next member of that name waits for its end.
struct Member : calls::Call {
  std::shared_ptr<Joint> joint;
  std::vector<std::string> names;  // of the operations
  std::vector<std::vector<int64_t>> shapes;

  // What was lowered has a rank's shapes and place in it.
  bool may_start(rueda_context* context) override;

  void complete() override;
};

}  // namespace rueda::xla
