// Session: one NCCL communicator from its beginning to its abort, with the stream it works in.
//
//   settling ---> ready ---launch---> settling ---> ready      settling: NCCL is making connections
//       |           |                                          or starting a group; nothing may be
//                                                              called
//       +-----------+---> failed, aborted: NCCL's text and this rank's name in status()
//
// Threads:   begin, launch, stream: one at a time, the coordinator. phase(), status(): any.
// Failure:   errors of the GPU's work are found by the watcher within 20 ms. The first wins.
// End:       abort() and the destructor wait two seconds at most; a communicator that NCCL does not
//            let go of is left to the process's end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collectives/cuda/device.h"
#include "collectives/nccl/library.h"
#include "collectives/nccl/pool.h"
#include "collectives/nccl/registrations.h"
#include "collectives/nccl/watcher.h"

namespace rueda::nccl {

class Session final : public Watched, public BlockPool::User {
 public:
  enum class Phase { kSettling, kReady, kFailed, kAborted };
  struct Options {
    std::shared_ptr<const Library> library;
    cuda::DevicePtr device;
    Watcher* watcher = nullptr;  // borrowed, outlives the session
    std::function<void()> ring;  // called from the watcher's thread when the phase has changed
    std::string name;            // of this rank, for errors
    std::chrono::nanoseconds patience{0};  // for the beginning
  };
  // Returns at once; ready when all ranks have come.
  static Result<std::shared_ptr<Session>> begin(Options options, const UniqueId& id, int rank,
                                                int size);
  ~Session() override;

  Phase phase() const { return phase_.load(std::memory_order_acquire); }
  // Once failed or aborted.
  Status status() const;
  const Library& library() const { return *options_.library; }
  Handle handle() const { return handle_; }
  const cuda::DevicePtr& device() const { return options_.device; }
  Stream stream() const { return on_; }
  // Until it is called again: launches and their waits are captured into a graph, in a stream that
  // nothing else uses, or go the ordinary way.
  Status capture(bool captured);
  bool captures() const { return on_ != stream_->handle(); }

  // One of NCCL's calls, with the arguments before the communicator and the stream.
  template <typename... Arguments, typename... Given>
  Status call(const char* name, ResultCode (*function)(Arguments...), Given... given) {
    return library().check(function(given..., handle_, stream()), name, handle_);
  }
  // Calls of NCCL as one group. Settling afterwards, until it has been started.
  Status launch(const std::function<Status()>& calls);
  // A point behind all that was launched; from here on until it is reached, errors are looked for,
  // unless it was captured.
  Result<cuda::EventPtr> mark();
  // Everything up to the last mark is done, or will never be. The owner is rung when it becomes so.
  bool idle() const;
  // Ends what is under way on this GPU; peers are not waited for.
  void abort();
  // After an abort that has not come back: the GPU may still use memory that it was given.
  bool is_left_behind() const { return stream_ == nullptr; }
  // Lets NCCL use this memory of the device where it lies, until the pool wants it back or the
  // communicator ends, where this NCCL can; once for each block. When ready. Without it everything
  // works as well.
  void use_directly(const Block& block);
  bool uses_directly(const Block& block) const;
  // The same as a symmetric window, which all ranks make together: they call it at one point of
  // their order, each with memory of NCCL's own of the same size. Settling afterwards, in bounds;
  // then end_window.
  Status begin_window(const Block& block);
  Status end_window();
  void let_go(const std::byte* data) override;
  Registrations::Totals registered() const;

  Need look() override;
  // Splits a part off this communicator. All its ranks call it at one point of their order, with
  // nothing under way on the GPU; who is not in the part gives no key. what: for errors. Settling
  // afterwards, in bounds; then the part is taken.
  Status split(std::optional<int> key, std::string what);
  // A communicator that lives as long as it likes; null: this rank is not in the part.
  Result<std::shared_ptr<Session>> take_part();

  // The owner's own look while it waits for a group to be started.
  void look_now();

 private:
  Need look_locked();
  Session(Options options, std::unique_ptr<cuda::Stream> stream)
      : options_(std::move(options)),
        stream_(std::move(stream)),
        on_(stream_->handle()),
        registrations_(std::make_shared<Registrations>(options_.library)) {}
  Status named(const Status& status) const;
  void watch(const std::shared_ptr<Session>& self) const;
  void change(Phase from, Phase to);
  void settle();

  Options options_;
  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<cuda::Stream> captured_stream_;  // made with the first capture
  Stream on_;
  Handle handle_ = nullptr;
  std::shared_ptr<Handle> part_;  // of a split: NCCL writes it when the part is there
  std::atomic<Phase> phase_{Phase::kSettling};
  std::shared_ptr<Registrations> registrations_;  // guarded by the mutex; null: it has ended
  Registrations::Totals registered_;              // guarded by the mutex; when it ended
  bool began_ = false;                            // guarded by the mutex, as what follows
  mutable std::mutex mutex_;
  std::chrono::steady_clock::time_point deadline_{};  // of the beginning, a split or a window
  Status status_;
  std::string under_way_;  // a split or a window, for errors; or empty
  cuda::EventPtr last_;
  bool ended_ = false;  // nobody may ask NCCL any more
};

}  // namespace rueda::nccl
