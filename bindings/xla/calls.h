#pragma once
#include <rueda/rueda.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/xla/vendor/xla_ffi_c_api.inc"

namespace rueda::xla {

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, int32_t code, const char* message);

// One custom call of XLA: it has ended when all its members have. Shared by them.
struct Joint {
  const XLA_FFI_Api* api = nullptr;
  XLA_FFI_Future* future = nullptr;
  int32_t rank = 0;  // for which the program was lowered
  int32_t size = 0;
  size_t left = 0;  // members that have not ended
  int32_t code = RUEDA_OK;
  rueda_error error = RUEDA_ERROR_INIT;  // the first one's
};

// A member: one operation, or a group that is ready together or not at all.
struct Call {
  std::shared_ptr<Joint> joint;
  std::string name;
  std::vector<std::string> names;  // of the operations
  std::vector<std::vector<int64_t>> shapes;
  std::vector<rueda_op> ops;
  std::vector<rueda_request*> requests;
  rueda_context* context = nullptr;  // owned until the start
  size_t under_way = 0;
  int32_t code = RUEDA_OK;
  rueda_error error = RUEDA_ERROR_INIT;
};

// Members under way. A name is in flight once: the next member of that name waits for its end.
// Futures are completed by a thread of its own, since XLA may go on computing in whoever completes
// them.
//
// Threads: any, several at once. End: never; a process ends whatever is under way.
class Calls {
 public:
  static Calls& instance();

  // The context of members submitted from now on; NULL: none.
  void use(rueda_context* context);

  // The context is that of now, however long the member waits behind others of its name. Once
  // `left` members of the joint have been submitted and have ended, its future is completed.
  void submit(std::unique_ptr<Call> call);

  // Members that have been submitted and have not ended, of all threads.
  bool is_any_under_way();

 private:
  void start(Call* call);
  void one_ended(Call* call);
  void end(Call* call);
  [[noreturn]] void complete_for_ever();

  std::mutex mutex_;
  std::condition_variable one_more_;
  rueda_context* context_ = nullptr;
  std::unordered_map<std::string, std::deque<Call*>> by_name_;  // those that wait behind the first
  std::deque<Call*> ended_;
  bool has_thread_ = false;
};

}  // namespace rueda::xla
