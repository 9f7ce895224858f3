// rueda for C++20: one header over the C ABI (rueda.h), nothing to compile, linked to librueda.
//
//   #include <rueda/rueda.hpp>
//
//   int main() {
//     rueda::Context hvd = rueda::init();                  // joins the job; leaves it at the brace
//     std::vector<float> gradient(1000, 1.0f);
//     hvd.allreduce(gradient, rueda::ReduceOp::kAverage, {.name = "gradient"});
//   }
//
// Every rank must submit the same operations (name, type, shape, reduce operation); the order may
// differ. Data is any contiguous range of elements that stays put: a vector, an array, a span.
// Element types: bool, uint8_t, std::byte, int8_t to int64_t, Float16, BFloat16, float, double.
//
// Names live in an inline namespace, rueda::api1, so they never meet those of the library's own
// sources in one program; a translation unit includes either this header or internal ones.
#ifndef RUEDA_RUEDA_HPP_
#define RUEDA_RUEDA_HPP_

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rueda/buffer.hpp"
#include "rueda/error.hpp"
#include "rueda/half.hpp"
#include "rueda/request.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"

namespace rueda {
inline namespace api1 {

// What alltoall received: the rows of rank 0, then those of rank 1, and so on.
template <Element T>
struct Received {
  std::vector<T> values;
  Shape rows;  // how many came from each rank
};

// For programs that place their processes themselves: rank and size, or neither.
struct InitOptions {
  int rank = -1;
  int size = -1;
  std::string job;         // needed from two ranks on
  std::string rendezvous;  // HOST:PORT; "": RUEDA_RENDEZVOUS, else all ranks are on this host
  std::string key;         // the secret of ranks that meet at a port; "": the file RUEDA_KEY_FILE
};

// One rank of one job.
//
// Ownership: owns the connection to the job. The operations borrow their data until they return
//            (the *_async forms: until the Request has ended).
// Threads:   any thread may call anything, several at once, shutdown() too.
// Failure:   everything throws Error, also when this Context was moved from or shut down. Nothing
//            was started when a start throws.
// End:       shutdown(), or the destructor. Requests may outlive it; they then end with an Error.
class Context {
 public:
  // Joins the job that this process was started in (ruedarun; alone: one rank). Blocks until all
  // ranks have come, or RUEDA_START_TIMEOUT has passed. May be repeated after a shutdown.
  static Context init(const InitOptions& given = {}) {
    const auto text = [](const std::string& from) { return from.empty() ? nullptr : from.c_str(); };
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    options.rank = given.rank;
    options.size = given.size;
    options.job = text(given.job);
    options.rendezvous = text(given.rendezvous);
    options.key = text(given.key);
    options.key_bytes = given.key.size();
    rueda_error error = RUEDA_ERROR_INIT;
    rueda_context* handle = nullptr;
    detail::check(rueda_init(&options, &handle, &error), error);
    return Context(handle);
  }
  Context(Context&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Context& operator=(Context&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Context() { rueda_context_release(handle_); }

  // Leaves the job: what has begun ends, what is pending here ends with RUEDA_CANCELLED. Bounded.
  void shutdown() noexcept { rueda_shutdown(handle_); }

  int rank() const { return rueda_rank(handle()); }
  int size() const { return rueda_size(handle()); }
  int local_rank() const { return rueda_local_rank(handle()); }  // among the ranks of this host
  int local_size() const { return rueda_local_size(handle()); }
  int cross_rank() const { return rueda_cross_rank(handle()); }  // of this host, among hosts
  int cross_size() const { return rueda_cross_size(handle()); }
  // Of this rank, since init: docs/counters.md. One by its name, -1 for an unknown one.
  std::int64_t counter(const std::string& name) const {
    return rueda_counter(handle(), name.c_str());
  }
  // All of them, by name.
  std::map<std::string, std::int64_t> counters() const {
    std::vector<std::int64_t> values(
        static_cast<std::size_t>(std::max(rueda_counters(handle(), nullptr, 0), 0)));
    rueda_counters(handle(), values.data(), static_cast<std::int32_t>(values.size()));
    std::map<std::string, std::int64_t> named;
    for (std::size_t i = 0; i < values.size(); ++i)
      named[rueda_counter_name(static_cast<std::int32_t>(i))] = values[i];
    return named;
  }

  // What this rank did since init or the last reset, by name: docs/counters.md.
  std::map<std::string, double> stats(bool reset = false) {
    std::vector<rueda_stat> all(
        static_cast<std::size_t>(std::max(rueda_stats(handle(), nullptr, 0, 0), 0)));
    rueda_stats(handle(), all.data(), static_cast<std::int32_t>(all.size()), reset ? 1 : 0);
    std::map<std::string, double> named;
    for (const rueda_stat& one : all) {
      if (one.name != nullptr) named[one.name] = one.value;
    }
    return named;
  }

  // True on all ranks at the same call once one of them was asked to stop by a signal; see
  // rueda_should_stop. Collective.
  bool should_stop() {
    std::int32_t stop = 0;
    rueda_error error = RUEDA_ERROR_INIT;
    std::int32_t code = RUEDA_ABORTED;
    while (code == RUEDA_ABORTED) code = rueda_should_stop(handle(), &stop, &error);
    detail::check(code, error);
    return stop != 0;
  }

  // Who was lost, after an Error with code RUEDA_UNAVAILABLE because of it; as rueda_lost_rank.
  struct LostRank {
    int rank = -1;
    int pid = 0;
    std::int64_t operations = 0;
    std::int64_t step = 0;
    bool cause_is_final = false;
    std::string host, operation, cause;
  };
  std::optional<LostRank> lost_rank() const {
    rueda_lost lost = RUEDA_LOST_INIT;
    if (rueda_lost_rank(handle(), &lost) == 0) return std::nullopt;
    return LostRank{lost.rank, lost.pid,       lost.operations, lost.step, lost.cause_is_final != 0,
                    lost.host, lost.operation, lost.cause};
  }

  // ---- every rank gets the reduction of all ranks' data, in place
  template <InOut R>
  void allreduce(R&& data, ReduceOp op, const Options& options = {}) {
    allreduce_async(data, op, options).wait();
  }
  template <InOut R>
  Request allreduce_async(R&& data, ReduceOp op, const Options& options = {}) {
    const auto view = detail::view(data);
    return start(detail::Operation(RUEDA_ALLREDUCE, options).input(view).output(view).reduce(op));
  }
  // Several tensors as one: ready together or not at all. The first is called "<name>", tensor i
  // "<name>[<i>]".
  template <typename R>
    requires InOut<R&>
  void grouped_allreduce(std::span<R> tensors, ReduceOp op, const Options& options = {}) {
    for (Request& request : grouped_allreduce_async(tensors, op, options)) request.wait();
  }
  template <typename R>
    requires InOut<R&>
  std::vector<Request> grouped_allreduce_async(std::span<R> tensors, ReduceOp op,
                                               const Options& options = {}) {
    std::deque<detail::Operation> operations;  // a deque: its elements never move
    for (R& tensor : tensors) {
      const auto view = detail::view(tensor);
      Options own = options;
      if (!own.name.empty() && !operations.empty())
        own.name += "[" + std::to_string(operations.size()) + "]";
      operations.emplace_back(RUEDA_ALLREDUCE, own).input(view).output(view).reduce(op);
    }
    return start_group(operations);
  }

  // ---- every rank gets all rows; the first extents may differ
  template <Input R>
  auto allgather(R&& data, const Options& options = {}) {
    return take<std::ranges::range_value_t<R>>(allgather_async(data, options));
  }
  template <Input R>
  Request allgather_async(R&& data, const Options& options = {}) {
    return start(detail::Operation(RUEDA_ALLGATHER, options).input(detail::view(data)));
  }

  // Into memory of the caller's, which has room for exactly the rows of all ranks: nothing is
  // allocated, and a loop of these is planned like any other step.
  template <Input In, InOut Out>
  void allgather_into(In&& data, Out&& output, const Options& options = {}) {
    allgather_into_async(data, output, options).wait();
  }
  template <Input In, InOut Out>
  Request allgather_into_async(In&& data, Out&& output, const Options& options = {}) {
    return start(detail::Operation(RUEDA_ALLGATHER, options)
                     .input(detail::view(data))
                     .output_rows_of(detail::view(output)));
  }

  // ---- every rank gets root's data, in place
  template <InOut R>
  void broadcast(R&& data, int root, const Options& options = {}) {
    broadcast_async(data, root, options).wait();
  }
  template <InOut R>
  Request broadcast_async(R&& data, int root, const Options& options = {}) {
    const auto view = detail::view(data);
    return start(detail::Operation(RUEDA_BROADCAST, options).input(view).output(view).root(root));
  }

  // ---- this rank's rows of the reduction (rueda_split_rows)
  template <Input R>
  auto reducescatter(R&& data, ReduceOp op, const Options& options = {}) {
    return take<std::ranges::range_value_t<R>>(reducescatter_async(data, op, options));
  }
  template <Input R>
  Request reducescatter_async(R&& data, ReduceOp op, const Options& options = {}) {
    return start(
        detail::Operation(RUEDA_REDUCESCATTER, options).input(detail::view(data)).reduce(op));
  }

  // Into memory of the caller's, for as many elements as this rank's rows have.
  template <Input In, InOut Out>
  void reducescatter_into(In&& data, Out&& output, ReduceOp op, const Options& options = {}) {
    reducescatter_into_async(data, output, op, options).wait();
  }
  template <Input In, InOut Out>
  Request reducescatter_into_async(In&& data, Out&& output, ReduceOp op,
                                   const Options& options = {}) {
    const auto view = detail::view(output);
    const std::size_t own = rows_of_this_rank(detail::view(data).size(), options);
    if (view.size() != own) {
      throw Error(RUEDA_INVALID_ARGUMENT,
                  "'" + options.name + "': the output has " + std::to_string(view.size()) +
                      " elements, this rank's rows have " + std::to_string(own));
    }
    return start(detail::Operation(RUEDA_REDUCESCATTER, options)
                     .input(detail::view(data))
                     .output(view)
                     .reduce(op));
  }

  // ---- splits[r] rows go to rank r, in order; no splits: equal parts
  template <Input R>
  auto alltoall(R&& data, std::span<const std::int64_t> splits = {}, const Options& options = {}) {
    using T = std::ranges::range_value_t<R>;
    const Request request = alltoall_async(data, splits, options);
    request.wait();
    const auto values = request.template output<T>();
    return Received<T>{{values.begin(), values.end()}, request.rows_by_rank()};
  }
  template <Input R>
  Request alltoall_async(R&& data, std::span<const std::int64_t> splits = {},
                         const Options& options = {}) {
    return start(
        detail::Operation(RUEDA_ALLTOALL, options).input(detail::view(data)).splits(splits));
  }

  // Into memory of the caller's, which has room for exactly the rows that come.
  template <Input In, InOut Out>
  void alltoall_into(In&& data, Out&& output, std::span<const std::int64_t> splits = {},
                     const Options& options = {}) {
    alltoall_into_async(data, output, splits, options).wait();
  }
  template <Input In, InOut Out>
  Request alltoall_into_async(In&& data, Out&& output, std::span<const std::int64_t> splits = {},
                              const Options& options = {}) {
    return start(detail::Operation(RUEDA_ALLTOALL, options)
                     .input(detail::view(data))
                     .output_rows_of(detail::view(output))
                     .splits(splits));
  }

  // Returns when every rank has called it.
  void barrier(const Options& options = {}) {
    start(detail::Operation(RUEDA_BARRIER, options)).wait();
  }

  // Takes part in the others' operations with what changes nothing, until every rank of the set has
  // joined (RUEDA_JOIN). Gives the rank that joined last.
  int join(const Options& options = {}) {
    const Request request = start(detail::Operation(RUEDA_JOIN, options));
    request.wait();
    return static_cast<int>(request.result());
  }

  // ---- groups of ranks; every rank of the job calls these in the same order with the same ranks
  // (see rueda.h). Operations take part in one by Options::process_set.
  // Gives the new set's id.
  int add_process_set(std::span<const std::int32_t> ranks) {
    rueda_error error = RUEDA_ERROR_INIT;
    rueda_request* added = nullptr;
    detail::check(rueda_add_process_set(handle(), ranks.data(),
                                        static_cast<std::int32_t>(ranks.size()), 0, &added, &error),
                  error);
    const Request request(added, RUEDA_UINT8);
    request.wait();
    return static_cast<int>(request.result());
  }
  void remove_process_set(int process_set) {
    rueda_error error = RUEDA_ERROR_INIT;
    rueda_request* removed = nullptr;
    detail::check(rueda_remove_process_set(handle(), process_set, 0, &removed, &error), error);
    Request(removed, RUEDA_UINT8).wait();
  }
  // Its ranks, ascending. Throws if there is no such set.
  std::vector<std::int32_t> process_set_ranks(int process_set) const {
    const std::int32_t count = rueda_process_set_ranks(handle(), process_set, nullptr, 0);
    if (count < 0) {
      throw Error(RUEDA_INVALID_ARGUMENT,
                  "process set " + std::to_string(process_set) + " does not exist");
    }
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(count));
    rueda_process_set_ranks(handle(), process_set, ranks.data(), count);
    return ranks;
  }

  // ---- groups whose calls belong together by their order, opened by their members alone
  // (rueda_open_group). Gives the number for Options::process_set; operations have no names.
  int open_group(const std::string& key, std::span<const std::int32_t> ranks) {
    rueda_error error = RUEDA_ERROR_INIT;
    std::int32_t group = 0;
    detail::check(rueda_open_group(handle(), key.c_str(), ranks.data(),
                                   static_cast<std::int32_t>(ranks.size()), 0, &group, &error),
                  error);
    return group;
  }
  void close_group(int group) {
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_close_group(handle(), group, &error), error);
  }
  void abort_group(int group, const std::string& reason) {
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_abort_group(handle(), group, reason.c_str(), &error), error);
  }

  // ---- two ranks; matched by (peer, tag) in order, size and type must be equal
  template <Input R>
  void send(R&& data, int peer, std::uint32_t tag = 0) {
    send_async(data, peer, tag).wait();
  }
  template <Input R>
  Request send_async(R&& data, int peer, std::uint32_t tag = 0) {
    return start(detail::Operation(RUEDA_SEND, {}).input(detail::view(data)).peer(peer, tag));
  }
  template <InOut R>
  void recv(R&& data, int peer, std::uint32_t tag = 0) {
    recv_async(data, peer, tag).wait();
  }
  template <InOut R>
  Request recv_async(R&& data, int peer, std::uint32_t tag = 0) {
    const auto view = detail::view(data);
    using T = std::ranges::range_value_t<R>;
    return start(detail::Operation(RUEDA_RECV, {})
                     .template tensor<T>(view.size())
                     .output(view)
                     .peer(peer, tag));
  }

  // ---- for what is done again and again: `count` elements of T (or .shape)
  template <Element T>
  Request allreduce_init(std::size_t count, ReduceOp op, const Options& options) {
    return make(detail::Operation(RUEDA_ALLREDUCE, options).template tensor<T>(count).reduce(op),
                count, count);
  }
  template <Element T>
  Request broadcast_init(std::size_t count, int root, const Options& options) {
    return make(detail::Operation(RUEDA_BROADCAST, options).template tensor<T>(count).root(root),
                count, count);
  }
  // The output is this rank's rows (rueda_split_rows): Request::output_size() elements.
  template <Element T>
  Request reducescatter_init(std::size_t count, ReduceOp op, const Options& options) {
    return make(
        detail::Operation(RUEDA_REDUCESCATTER, options).template tensor<T>(count).reduce(op), count,
        rows_of_this_rank(count, options));
  }

  // Elements of what this rank gets of a reducescatter of `count`.
  std::size_t rows_of_this_rank(std::size_t count, const Options& options) const {
    const std::int64_t rows =
        options.shape.empty() ? static_cast<std::int64_t>(count) : options.shape.front();
    const std::size_t row = rows > 0 ? count / static_cast<std::size_t>(rows) : 0;
    const std::vector<std::int32_t> ranks = process_set_ranks(options.process_set);
    const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return row *
           static_cast<std::size_t>(rueda_split_rows(rows, static_cast<std::int32_t>(place),
                                                     static_cast<std::int32_t>(ranks.size())));
  }

  // The C handle, for what this header lacks. Throws when there is none.
  rueda_context* handle() const {
    if (handle_ == nullptr) {
      throw Error(RUEDA_FAILED_PRECONDITION, "this Context was shut down or moved from");
    }
    return handle_;
  }

 private:
  explicit Context(rueda_context* handle) : handle_(handle) {}

  Request start(const detail::Operation& operation) {
    rueda_error error = RUEDA_ERROR_INIT;
    rueda_request* request = nullptr;
    detail::check(rueda_start(handle(), &operation.get(), 1, 0, &request, &error), error);
    return {request, operation.get().dtype};
  }
  Request make(const detail::Operation& operation, std::size_t inputs, std::size_t outputs) {
    rueda_error error = RUEDA_ERROR_INIT;
    rueda_request* request = nullptr;
    detail::check(rueda_request_create(handle(), &operation.get(), 1, 0, &request, &error), error);
    return {request, operation.get().dtype, inputs, outputs};
  }
  std::vector<Request> start_group(const std::deque<detail::Operation>& operations) {
    std::vector<rueda_op> ops;
    for (const auto& operation : operations) ops.push_back(operation.get());
    std::vector<rueda_request*> handles(ops.size());
    std::vector<Request> requests;
    requests.reserve(ops.size());
    rueda_error error = RUEDA_ERROR_INIT;
    detail::check(rueda_start(handle(), ops.data(), ops.size(), 1, handles.data(), &error), error);
    for (std::size_t i = 0; i < ops.size(); ++i) requests.emplace_back(handles[i], ops[i].dtype);
    return requests;
  }
  // Waits and copies the results out. (vector<bool> is no array: use the async form's output.)
  template <Element T>
    requires(!std::same_as<T, bool>)
  static std::vector<T> take(const Request& request) {
    request.wait();
    const auto values = request.output<T>();
    return {values.begin(), values.end()};
  }

  rueda_context* handle_;
};

// Joins the job: see Context::init.
[[nodiscard]] inline Context init(const InitOptions& given = {}) { return Context::init(given); }

}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_RUEDA_HPP_
