// librueda_xla.so between an XLA and a librueda that this test plays: what it starts, when it
// completes a call, and as what.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/xla/vendor/xla_ffi_c_api.inc"
#include "rueda/rueda.h"

struct rueda_context {
  int32_t rank;
  int32_t size;
};

struct rueda_request {
  std::string name;
  rueda_context* context;
  void (*callback)(void*) = nullptr;
  void* user = nullptr;
  bool ended = false;
  int32_t code = RUEDA_OK;
  std::string text;
};

struct XLA_FFI_Future {
  bool completed = false;
  std::string error;
};
struct XLA_FFI_Error {
  std::string text;
};

namespace {

std::mutex mutex;
std::condition_variable changed;
std::vector<std::shared_ptr<rueda_request>> started;  // not released yet
std::vector<std::string> order;                       // in which they were
std::vector<rueda_op> operations;                     // as given
bool out_of_memory = false;                           // rueda_request_on_end fails
bool at_once = false;                                 // operations end when they start
std::vector<std::thread::id> completers;              // of futures
XLA_FFI_Future* held = nullptr;                       // whose completion waits
std::vector<std::string> behind;                      // of whose ends the stream has been told
int32_t of_stream_wait = RUEDA_OK;                    // how that ends
int a_stream;

template <typename Condition>
void wait_until(Condition condition) {
  std::unique_lock lock(mutex);
  changed.wait(lock, condition);
}

std::shared_ptr<rueda_request> find(const std::string& name) {
  for (const auto& each : started)
    if (each->name == name && !each->ended) return each;
  return nullptr;
}

void end(const std::string& name, int32_t code = RUEDA_OK, const std::string& text = "") {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] {
    const auto request = find(name);
    return request != nullptr && (out_of_memory || request->callback != nullptr);
  });
  const auto request = find(name);
  request->ended = true;
  request->code = code;
  request->text = text;
  changed.notify_all();
  lock.unlock();
  if (request->callback != nullptr) request->callback(request->user);
}

XLA_FFI_Error* create(XLA_FFI_Future_Create_Args* args) {
  args->future = new XLA_FFI_Future;
  return nullptr;
}

XLA_FFI_Error* complete(XLA_FFI_Future* future, const std::string& error) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return future != held; });
  CHECK_FALSE(future->completed);
  future->completed = true;
  completers.push_back(std::this_thread::get_id());
  future->error = error;
  changed.notify_all();
  return nullptr;
}

XLA_FFI_Error* set_available(XLA_FFI_Future_SetAvailable_Args* args) {
  return complete(args->future, "");
}

XLA_FFI_Error* set_error(XLA_FFI_Future_SetError_Args* args) {
  const std::unique_ptr<XLA_FFI_Error> error(args->error);
  return complete(args->future, error->text);
}

XLA_FFI_Error* make_error(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{std::to_string(args->errc) + ": " + args->message};
}

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = &a_stream;
  return nullptr;
}

XLA_FFI_Error* get_device(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = 3;
  return nullptr;
}

}  // namespace

extern "C" {
XLA_FFI_Error* rueda_xla_collective(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* rueda_xla_collective_cuda(XLA_FFI_CallFrame* frame);
void rueda_xla_use(rueda_context* context);
void rueda_xla_use_python(void* (*state_of_thread)(void), int32_t (*raise)(int32_t, const char*));
void rueda_xla_has_raised(void);

rueda_context* rueda_context_retain(rueda_context* context) { return context; }
void rueda_context_release(rueda_context*) {}
int32_t rueda_rank(const rueda_context* context) { return context->rank; }
int32_t rueda_size(const rueda_context* context) { return context->size; }

int32_t rueda_start(rueda_context* context, const rueda_op* ops, size_t count, int32_t group,
                    rueda_request** requests, rueda_error*) {
  std::lock_guard lock(mutex);
  CHECK(group == (count > 1 ? 1 : 0));
  for (size_t i = 0; i < count; ++i) {
    started.push_back(std::make_shared<rueda_request>(rueda_request{ops[i].name, context}));
    order.push_back(ops[i].name);
    operations.push_back(ops[i]);
    started.back()->ended = at_once;
    requests[i] = started.back().get();
  }
  changed.notify_all();
  return RUEDA_OK;
}

int32_t rueda_request_on_end(rueda_request* request, void (*callback)(void*), void* user,
                             rueda_error*) {
  std::lock_guard lock(mutex);
  if (out_of_memory) return RUEDA_RESOURCE_EXHAUSTED;
  request->callback = callback;
  request->user = user;
  changed.notify_all();
  return RUEDA_OK;
}

int32_t rueda_request_test(const rueda_request* request) {
  std::lock_guard lock(mutex);
  return request->ended ? 1 : 0;
}

int32_t rueda_request_wait(rueda_request* request, double seconds, rueda_error* error) {
  std::unique_lock lock(mutex);
  const auto has_ended = [&] { return request->ended; };
  if (seconds < 0) changed.wait(lock, has_ended);
  if (!changed.wait_for(lock, std::chrono::duration<double>(seconds), has_ended))
    return RUEDA_DEADLINE_EXCEEDED;
  if (error != nullptr) error->message[request->text.copy(error->message, 2000)] = 0;
  return request->code;
}

int32_t rueda_start_and_wait(rueda_context* context, const rueda_op* op, double seconds,
                             rueda_request** request, rueda_error* error) {
  rueda_start(context, op, 1, 0, request, error);
  return rueda_request_wait(*request, seconds, error);
}

int32_t rueda_request_stream_wait(rueda_request* request, void* stream, rueda_error* error) {
  std::lock_guard lock(mutex);
  CHECK(stream == &a_stream);
  CHECK(request->ended);
  behind.push_back(request->name);
  if (of_stream_wait != RUEDA_OK) std::strcpy(error->message, "the GPU is gone");
  return of_stream_wait;
}

void rueda_request_release(rueda_request* request) {
  std::lock_guard lock(mutex);
  for (auto at = started.begin(); at != started.end(); ++at) {
    if (at->get() != request) continue;
    started.erase(at);
    changed.notify_all();
    return;
  }
}
}

namespace {

rueda_context first{0, 2};
rueda_context second{0, 2};
rueda_context third{0, 3};

// The threads that complete calls release their requests after the ends that a test waits for.
struct EveryRequestIsReleased : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats&) override {
    wait_until([] { return started.empty(); });
  }
};
CATCH_REGISTER_LISTENER(EveryRequestIsReleased)

using Handler = XLA_FFI_Error* (*)(XLA_FFI_CallFrame*);

// A call of XLA with scalars; members as in the attribute.
class Call {
 public:
  Call(int arrays, std::string members, int32_t rank = 0, int32_t size = 2, bool is_ordered = false,
       XLA_FFI_DataType dtype = XLA_FFI_DataType_F32, Handler handler = rueda_xla_collective)
      : members_(std::move(members)), rank_(rank), size_(size) {
    api_.XLA_FFI_Error_Create = make_error;
    api_.XLA_FFI_Future_Create = create;
    api_.XLA_FFI_Future_SetAvailable = set_available;
    api_.XLA_FFI_Future_SetError = set_error;
    api_.XLA_FFI_Stream_Get = get_stream;
    api_.XLA_FFI_DeviceOrdinal_Get = get_device;
    buffer_.dtype = dtype;
    buffer_.data = &value_;
    buffers_.assign(static_cast<size_t>(arrays), &buffer_);
    if (is_ordered) buffers_.insert(buffers_.begin(), &token_);
    frame_.api = &api_;
    frame_.args.size = frame_.rets.size = static_cast<int64_t>(buffers_.size());
    frame_.args.args = frame_.rets.rets = buffers_.data();
    frame_.attrs.size = 3;
    frame_.attrs.names = names_;
    frame_.attrs.types = types_;
    frame_.attrs.attrs = values_;
    error_.reset(handler(&frame_));
  }

  ~Call() { delete frame_.future; }  // which has completed

  // Its completion waits, as that of a framework may, until `let_go`.
  void hold() { set_held(frame_.future); }
  static void let_go() { set_held(nullptr); }

  bool is_completed() const {
    std::lock_guard lock(mutex);
    return frame_.future->completed;
  }

  // The error's text; "" if it went well.
  std::string outcome() {
    if (error_ != nullptr) return error_->text;
    if (frame_.future == nullptr) return "";  // it has ended
    wait_until([this] { return frame_.future->completed; });
    return frame_.future->error;
  }

 private:
  static void set_held(XLA_FFI_Future* future) {
    std::lock_guard lock(mutex);
    held = future;
    changed.notify_all();
  }

  std::string members_;
  int32_t rank_;
  int32_t size_;
  float value_ = 1;
  XLA_FFI_Api api_{};
  XLA_FFI_Buffer buffer_{};
  XLA_FFI_Buffer token_{0, nullptr, XLA_FFI_DataType_TOKEN, nullptr, 0, nullptr};
  std::vector<void*> buffers_;
  XLA_FFI_ByteSpan spans_[3] = {{"members", 7}, {"rank", 4}, {"size", 4}};
  XLA_FFI_ByteSpan* names_[3] = {&spans_[0], &spans_[1], &spans_[2]};
  XLA_FFI_AttrType types_[3] = {XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_SCALAR,
                                XLA_FFI_AttrType_SCALAR};
  XLA_FFI_ByteSpan text_ = {members_.data(), members_.size()};
  XLA_FFI_Scalar numbers_[2] = {{XLA_FFI_DataType_S32, &rank_}, {XLA_FFI_DataType_S32, &size_}};
  void* values_[3] = {&text_, &numbers_[0], &numbers_[1]};
  XLA_FFI_CallFrame frame_{};
  std::unique_ptr<XLA_FFI_Error> error_;
};

// A sum of `count` arrays.
std::string member(int count, const std::string& name) {
  return std::to_string(count) + " 0 1 0 0 0 0 4607182418800017408 4607182418800017408 " +
         std::to_string(name.size()) + " " + name + "\n";
}

// Everything that had ended before has been completed.
void let_all_complete() {
  Call call(1, member(1, "other"));
  end("other");
  REQUIRE(call.outcome().empty());
}

}  // namespace

TEST_CASE("a call starts all its members and ends with the last of them") {
  rueda_xla_use(&first);
  order.clear();
  Call call(4, member(1, "a") + member(2, "b\n7 ") + member(1, "c"));
  CHECK(order == std::vector<std::string>{"a", "b\n7 ", "b\n7 [1]", "c"});
  end("c");
  end("a");
  end("b\n7 [1]");
  let_all_complete();
  CHECK_FALSE(call.is_completed());
  end("b\n7 ");
  CHECK(call.outcome().empty());
}

TEST_CASE("what ends while its starter has patience is completed by the starter") {
  rueda_xla_use(&first);
  completers.clear();
  at_once = true;
  Call small(3, member(1, "a") + member(2, "b"));
  at_once = false;
  CHECK(small.is_completed());
  CHECK(small.outcome().empty());
  CHECK(completers == std::vector{std::this_thread::get_id()});

  Call large(1, member(1, "a"));
  end("a");
  CHECK(large.outcome().empty());
  CHECK(completers.back() != std::this_thread::get_id());
}

TEST_CASE("a continuation that waits keeps nobody else") {
  rueda_xla_use(&first);
  Call waits(1, member(1, "a"));
  Call goes_on(1, member(1, "b"));
  waits.hold();
  end("a");
  end("b");
  CHECK(goes_on.outcome().empty());
  CHECK_FALSE(waits.is_completed());
  Call::let_go();
  CHECK(waits.outcome().empty());
}

TEST_CASE("the first error is the call's, once all its members have ended") {
  rueda_xla_use(&first);
  Call call(3, member(1, "a") + member(1, "b") + member(1, "c"));
  end("b", RUEDA_UNAVAILABLE, "rank 1 was lost");
  end("c", RUEDA_INTERNAL, "another");
  let_all_complete();
  CHECK_FALSE(call.is_completed());
  end("a");
  CHECK(call.outcome() == "14: rank 1 was lost");
}

TEST_CASE("a member waits for its name, the others of its call do not") {
  rueda_xla_use(&first);
  Call one(1, member(1, "a"));
  order.clear();
  Call two(2, member(1, "a") + member(1, "b"));
  CHECK(order == std::vector<std::string>{"b"});
  rueda_xla_use(&second);  // a new job: what waits is of the old one
  end("a");
  CHECK(one.outcome().empty());
  wait_until([] { return find("a") != nullptr; });
  {
    std::lock_guard lock(mutex);
    CHECK(find("a")->context == &first);
  }
  end("b");
  end("a");
  CHECK(two.outcome().empty());
}

TEST_CASE("what was lowered for another place in the job starts nothing") {
  rueda_xla_use(&third);
  order.clear();
  Call call(1, member(1, "a"));
  CHECK(call.outcome() ==
        "9: 'a': this program was lowered for rank 0 of 2, and this process is rank 0 of 3 now: "
        "lower it again");
  CHECK(order.empty());
}

TEST_CASE("an end that cannot be told is waited for") {
  rueda_xla_use(&first);
  {
    std::lock_guard lock(mutex);
    out_of_memory = true;
  }
  std::thread other([] { end("a", RUEDA_INTERNAL, "how it ended"); });
  Call call(1, member(1, "a"));
  CHECK(call.outcome() == "13: how it ended");
  other.join();
  std::lock_guard lock(mutex);
  out_of_memory = false;
}

TEST_CASE("an ordered call begins with a token; a member has the buffers that its kind needs") {
  rueda_xla_use(&first);
  operations.clear();
  const std::string rest = " 0 0 1 7 0 4607182418800017408 4607182418800017408 1 ";
  const std::string send = "1 6" + rest, recv = "1 7" + rest, barrier = "1 5" + rest;
  Call call(1, send + "s\n" + barrier + "b\n" + recv + "r\n", 0, 2, true);
  REQUIRE(operations.size() == 3);
  for (const char* each : {"s", "b", "r"}) end(each);
  CHECK(call.outcome().empty());
  CHECK((operations[0].input != nullptr && operations[0].output == nullptr));
  CHECK((operations[1].input == nullptr && operations[1].output == nullptr));
  CHECK((operations[2].input == nullptr && operations[2].output != nullptr));
  CHECK((operations[2].dtype == RUEDA_FLOAT32 && operations[2].peer == 1));
  CHECK(operations[2].tag == 7);
}

TEST_CASE("a thread of Python's waits itself; Python raises what fails in it") {
  static int32_t raised = 0;  // what Python has been given
  static bool does_raise = false;
  rueda_xla_use_python([]() -> void* { return &a_stream; },
                       [](int32_t code, const char* message) {
                         CHECK(std::string(message).find("'a': this program was lowered") == 0);
                         raised = code;
                         return does_raise ? 1 : 0;
                       });
  const auto started_by = [](const std::string& name) {
    order.clear();
    Call call(1, member(1, name));
    return std::pair{call.outcome(), !order.empty()};
  };
  rueda_xla_use(&first);
  at_once = true;
  completers.clear();
  CHECK(started_by("a") == std::pair{std::string(), true});
  CHECK(completers.empty());  // there was no future

  rueda_xla_use(&third);
  CHECK(started_by("a").first.find("9: 'a': this program was lowered") == 0);
  CHECK(raised == RUEDA_FAILED_PRECONDITION);
  does_raise = true;
  CHECK(started_by("a") == std::pair{std::string(), false});
  rueda_xla_use(&first);
  CHECK(started_by("of the same program") == std::pair{std::string(), false});
  rueda_xla_has_raised();
  CHECK(started_by("of another") == std::pair{std::string(), true});

  at_once = false;
  Call ordered(1, member(1, "token"), 0, 2, true);  // JAX's Python tells how that ends
  CHECK_FALSE(ordered.is_completed());
  end("token");
  CHECK(ordered.outcome().empty());
  rueda_xla_use_python(nullptr, nullptr);
}

TEST_CASE("arrays travel as what they are") {
  rueda_xla_use(&first);
  for (const auto& [xla, rueda] : {std::pair{XLA_FFI_DataType_S32, RUEDA_INT32},
                                   {XLA_FFI_DataType_U16, RUEDA_UINT16},
                                   {XLA_FFI_DataType_U32, RUEDA_UINT32},
                                   {XLA_FFI_DataType_U64, RUEDA_UINT64},
                                   {XLA_FFI_DataType_C64, RUEDA_COMPLEX64},
                                   {XLA_FFI_DataType_C128, RUEDA_COMPLEX128}}) {
    operations.clear();
    Call call(1, member(1, "a"), 0, 2, false, xla);
    REQUIRE(operations.size() == 1);
    CHECK(operations[0].dtype == rueda);
    CHECK(operations[0].ndim == 0);
    end("a");
    CHECK(call.outcome().empty());
  }
  Call call(1, member(1, "a"), 0, 2, false, XLA_FFI_DataType_INVALID);
  CHECK(call.outcome().find("dtype is not supported") != std::string::npos);
}

TEST_CASE("members that cannot be read are an error at the call") {
  for (const std::string& each : {std::string("x"), std::string("1 0 1\n"), member(3, "a"),
                                  member(1, "a").substr(0, 40), member(1, "a") + "1 "}) {
    Call call(2, each);
    CHECK(call.outcome().find("12: rueda: the attribute 'members'") == 0);
  }
}

TEST_CASE("on CUDA a call returns when the stream waits for all its operations") {
  rueda_xla_use(&first);
  for (const int32_t ending : {RUEDA_OK, RUEDA_INTERNAL}) {
    operations.clear();
    behind.clear();
    of_stream_wait = ending;
    std::string outcome;
    std::thread xla([&] {
      Call call(3, member(1, "a") + member(2, "b"), 0, 2, false, XLA_FFI_DataType_F32,
                rueda_xla_collective_cuda);
      outcome = call.outcome();
    });
    for (const char* each : {"b[1]", "b", "a"}) end(each);
    xla.join();
    CHECK(outcome == (ending == RUEDA_OK ? "" : "13: the GPU is gone"));
    REQUIRE(operations.size() == 3);
    for (const rueda_op& op : operations) CHECK((op.device == 3 && op.stream == &a_stream));
    if (ending == RUEDA_OK) CHECK(behind.size() == 3);
  }
  of_stream_wait = RUEDA_OK;
  std::string outcome;
  std::thread xla([&] {
    Call call(1, member(1, "a"), 0, 2, false, XLA_FFI_DataType_F32, rueda_xla_collective_cuda);
    outcome = call.outcome();
  });
  end("a", RUEDA_UNAVAILABLE, "rank 1 was lost");
  xla.join();
  CHECK(outcome == "14: rank 1 was lost");
  Call unreadable(2, "x", 0, 2, false, XLA_FFI_DataType_F32, rueda_xla_collective_cuda);
  CHECK(unreadable.outcome().find("12: rueda: the attribute 'members'") == 0);
}
