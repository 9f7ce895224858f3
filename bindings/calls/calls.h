// Operations that a framework starts from its threads and is told of when they end; no thread waits
// meanwhile.
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

namespace rueda::calls {

// One operation, or a group that is ready together or not at all, as a framework asks for it.
// What `ops` point to must live as long as the call.
struct Call {
  virtual ~Call() = default;

  // Whether it may start in this context (nullptr: none is there). If not, fills in code and error.
  virtual bool may_start(rueda_context*) { return true; }

  // Tells the framework. All requests have ended, and `code` and `error` say how; `requests` is
  // empty where nothing was started.
  virtual void complete() = 0;

  std::string queue;  // the call waits for others of this name that have not ended; "": for none
  std::vector<rueda_op> ops;
  std::vector<rueda_request*> requests;  // released when it has completed
  int32_t code = RUEDA_OK;
  rueda_error error = RUEDA_ERROR_INIT;

 private:
  friend class Calls;
  rueda_context* context_ = nullptr;  // owned until the start
  size_t under_way_ = 0;
};

// Calls under way, of the whole process.
//
// Threads:  any, several at once. A thread of its own completes calls, since a framework may go on
//           computing in whoever does.
// End:      never; a process ends whatever is under way.
class Calls {
 public:
  // Never destroyed: its thread may outlive the destructors of a process that ends.
  static Calls& instance();

  // The context of calls that are submitted from now on; NULL: none.
  void use(rueda_context* context);

  // The context that is used now, for the caller to release; NULL: none.
  rueda_context* context();

  // The context is that of now, however long the call waits in its queue.
  void submit(std::unique_ptr<Call> call);

  // Calls that have been submitted and have not ended, of all threads.
  bool is_any_under_way();

 private:
  void start(Call* call);
  void one_ended(Call* call);
  void end(Call* call);
  Call* leave_queue(const std::string& queue);
  [[noreturn]] void complete_for_ever();

  std::mutex mutex_;
  std::condition_variable one_more_;
  rueda_context* context_ = nullptr;
  std::unordered_map<std::string, std::deque<Call*>> queues_;  // those that wait behind the first
  std::deque<Call*> ended_;
  size_t under_way_ = 0;
  bool has_thread_ = false;
};

}  // namespace rueda::calls
