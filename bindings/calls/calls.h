// Operations that a framework starts from its threads and is told of when they end; no thread waits
// long meanwhile.
#pragma once

#include <rueda/rueda.h>
#include <unistd.h>

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

// Of the i-th tensor of a group: "name", "name[1]", "name[2]", ... The first has the group's own:
// as many tensors as another rank may give, they meet. (As member_name of rueda/_runtime.py.)
std::string member_name(const std::string& name, size_t i);

// One operation, or a group that is ready together or not at all, as a framework asks for it.
// What `ops` point to must live as long as the call.
struct Call {
  virtual ~Call() = default;

  // Fills `requests`; an error's code and `error` if nothing was started. With patience it may wait
  // so many seconds for the end.
  virtual int32_t begin(rueda_context* context, double patience);

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
// Threads:  any, several at once. Threads of its own complete calls, since a framework may go on
//           computing in whoever does, and wait there for other calls: one more is always ready. A
//           starter that has patience completes those that end meanwhile.
// End:      never; a process ends whatever is under way.
class Calls {
 public:
  // Never destroyed: its thread may outlive the destructors of a process that ends.
  static Calls& instance();

  // The context of calls that are submitted from now on; NULL: none.
  void use(rueda_context* context);

  // The context that is used now, for the caller to release; NULL: none.
  rueda_context* context();

  // Starts it; no thread waits.
  void submit(std::unique_ptr<Call> call);

  // Starts them all. The context is that of now, however long a call waits in its queue. This
  // thread waits for their ends for so many seconds, all in all, and completes those that it sees:
  // of small ones that spares two changes of threads.
  void submit(std::vector<std::unique_ptr<Call>> calls, double patience);

  // Calls that have been submitted and have not ended, of all threads.
  bool is_any_under_way();

 private:
  bool take_place(Call* call);
  bool start(Call* call, double patience);
  void start_and_await(Call* call);
  void await(Call* call);
  void one_ended(Call* call);
  void end(Call* call);
  void complete(std::unique_ptr<Call> call);
  Call* leave_queue(const std::string& queue);
  void have_one_ready();
  [[noreturn]] void complete_for_ever();

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable one_more_;
  rueda_context* context_ = nullptr;
  std::unordered_map<std::string, std::deque<Call*>> queues_;  // those that wait behind the first
  std::deque<Call*> ended_;
  size_t under_way_ = 0;
  size_t threads_ = 0;
  size_t ready_ = 0;  // of these, those that wait for a call to complete
};

}  // namespace rueda::calls
