#include "collectives/nccl/session.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/base/log.h"

namespace rueda::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAbortPatience{2};
constexpr std::chrono::microseconds kLaunchPatience{100};

// Still in use, so never destroyed.
void leave_behind(std::unique_ptr<cuda::Stream> stream) {
  if (stream == nullptr) return;
  static std::mutex mutex;
  static auto* const streams = new std::vector<std::unique_ptr<cuda::Stream>>;
  const std::lock_guard lock(mutex);
  streams->push_back(std::move(stream));
}

bool is_reached(const cuda::EventPtr& event) {
  if (event == nullptr) return true;
  const auto reached = event->query();
  return reached.ok() && reached.value();
}

}  // namespace

Result<std::shared_ptr<Session>> Session::begin(Options options, const UniqueId& id, int rank,
                                                int size) {
  const cuda::ContextScope scope(*options.device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const cuda::BesideCaptures beside(options.device->driver());
  RUEDA_ASSIGN_OR_RETURN(auto stream, cuda::Stream::create(options.device));
  std::shared_ptr<Session> session(new Session(std::move(options), std::move(stream)));
  Config config;
  config.blocking = 0;
  session->deadline_ = Clock::now() + session->options_.patience;
  const ResultCode code = session->library()->init_rank(&session->handle_, size, id, rank, &config);
  const Status begun = session->library().check(code, "ncclCommInitRankConfig", session->handle_);
  if (!begun.ok()) return session->named(begun);
  session->watch(session);
  return session;
}

void Session::watch(const std::shared_ptr<Session>& self) const {
  options_.watcher->add(self);
  BlockPool::of_process().add_user(self);
}

Session::~Session() { abort(); }

Status Session::named(const Status& status) const {
  return status.with_message(options_.name + ": " + status.message());
}

Status Session::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void Session::change(Phase from, Phase to) {
  if (phase_.compare_exchange_strong(from, to, std::memory_order_acq_rel)) options_.ring();
}

// ---- memory that NCCL uses where it lies ----

bool Session::uses_directly(const Block& block) const {
  const std::lock_guard lock(mutex_);
  return registrations_ != nullptr && registrations_->knows(block.data.get());
}

void Session::use_directly(const Block& block) {
  const cuda::ContextScope scope(*options_.device);
  const cuda::BesideCaptures beside(options_.device->driver());
  const std::lock_guard lock(mutex_);
  if (registrations_ == nullptr || registrations_->knows(block.data.get())) return;
  const Status done = registrations_->add(handle_, block);
  if (!done.ok()) RUEDA_INFO("nccl", "{}: {}", options_.name, done.message());
}

Status Session::begin_window(const Block& block) {
  const cuda::ContextScope scope(*options_.device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const cuda::BesideCaptures beside(options_.device->driver());
  const std::lock_guard lock(mutex_);
  if (registrations_ == nullptr) return status_;
  under_way_ = "NCCL's window of " + std::to_string(block.bytes) +
               " bytes (RUEDA_NCCL_REGISTER=local does without)";
  deadline_ = Clock::now() + options_.patience;
  const auto begun = registrations_->begin_window(handle_, block);
  if (!begun.ok())
    return named(begun.status().with_message(begun.status().message() +
                                             " (RUEDA_NCCL_REGISTER=local does without)"));
  settle();  // as a split: only asking shows the end
  options_.watcher->stir();
  return {};
}

Status Session::end_window() {
  const cuda::ContextScope scope(*options_.device);
  const cuda::BesideCaptures beside(options_.device->driver());
  const std::lock_guard lock(mutex_);
  under_way_.clear();
  if (registrations_ == nullptr) return status_;
  const Status done = registrations_->end_window(handle_);
  if (!done.ok()) RUEDA_INFO("nccl", "{}: {}", options_.name, done.message());
  return {};
}

void Session::let_go(const std::byte* data) {
  const cuda::ContextScope scope(*options_.device);
  const cuda::BesideCaptures beside(options_.device->driver());
  const std::lock_guard lock(mutex_);
  if (registrations_ == nullptr || !registrations_->knows(data)) return;
  // Nothing may be called while NCCL is in progress.
  if (phase() != Phase::kReady) return registrations_->remove_later(data);
  const Status done = registrations_->remove(handle_, data);
  if (!done.ok()) RUEDA_INFO("nccl", "{}: {}", options_.name, done.message());
}

Registrations::Totals Session::registered() const {
  const std::lock_guard lock(mutex_);
  return registrations_ == nullptr ? registered_ : registrations_->totals();
}

Status Session::capture(bool captured) {
  if (captured && captured_stream_ == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(captured_stream_, cuda::Stream::create(options_.device));
  }
  on_ = captured ? captured_stream_->handle() : stream_->handle();
  return {};
}

Status Session::launch(const std::function<Status()>& calls) {
  const cuda::ContextScope scope(*options_.device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const cuda::BesideCaptures beside(options_.device->driver());
  Status called;
  ResultCode ended = kSuccess;
  {
    // Who asks how things stand also clears up behind the last group, which must not meet the next.
    const std::lock_guard unasked(mutex_);
    if (registrations_ != nullptr) registrations_->remove_what_is_late(handle_);
    RUEDA_RETURN_IF_ERROR(library().check(library()->group_start(), "ncclGroupStart"));
    called = calls();
    ended = library()->group_end();  // also after an error: groups are counted per thread
  }
  if (!called.ok()) return named(called);
  const Status started = library().check(ended, "ncclGroupEnd", handle_);
  if (!started.ok()) return named(started);
  if (ended == kInProgress) {
    settle();
    // A group without new connections is started in some tens of microseconds: less than sleeping
    // costs.
    for (const auto end = Clock::now() + kLaunchPatience;
         phase() == Phase::kSettling && Clock::now() < end;) {
      look_now();
      std::this_thread::yield();
    }
    if (phase() == Phase::kSettling) options_.watcher->stir();
  }
  return {};
}

void Session::settle() {
  Phase ready = Phase::kReady;
  phase_.compare_exchange_strong(ready, Phase::kSettling, std::memory_order_acq_rel);
}

Status Session::split(std::optional<int> key, std::string what) {
  const cuda::ContextScope scope(*options_.device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const cuda::BesideCaptures beside(options_.device->driver());
  const std::string call = "ncclCommSplit for " + what;
  const std::lock_guard lock(mutex_);  // nobody asks NCCL meanwhile
  under_way_ = "NCCL's split for " + what;
  deadline_ = Clock::now() + options_.patience;
  Config config;
  config.blocking = 0;
  part_ = std::make_shared<Handle>(nullptr);
  const ResultCode code =
      library()->split(handle_, key ? 0 : kNoColor, key.value_or(0), part_.get(), &config);
  const Status begun = library().check(code, call.c_str(), handle_);
  if (!begun.ok()) return named(begun);
  settle();  // NCCL 2.28 says success here and goes on all the same: only asking shows the end
  options_.watcher->stir();
  return {};
}

Result<std::shared_ptr<Session>> Session::take_part() {
  {
    const std::lock_guard lock(mutex_);
    under_way_.clear();
  }
  const Handle part = std::exchange(*part_, nullptr);
  if (part == nullptr) return std::shared_ptr<Session>();
  const cuda::ContextScope scope(*options_.device);
  auto stream = cuda::Stream::create(options_.device);
  if (!stream.ok()) {
    (void)library()->abort(part);
    return named(stream.status());
  }
  std::shared_ptr<Session> session(new Session(options_, std::move(stream).value()));
  session->handle_ = part;
  session->deadline_ = Clock::now() + options_.patience;
  session->watch(session);
  return session;
}

Result<cuda::EventPtr> Session::mark() {
  RUEDA_ASSIGN_OR_RETURN(cuda::EventPtr event, cuda::Event::create(options_.device));
  const bool captured = captures();
  const Status recorded = event->record(on_, captured);
  if (!recorded.ok()) return named(recorded);
  if (captured) return event;
  {
    const std::lock_guard lock(mutex_);
    last_ = event;
  }
  options_.watcher->stir();
  return event;
}

Watched::Need Session::look() {
  const std::lock_guard asking(mutex_);
  return look_locked();
}

void Session::look_now() {
  if (phase() != Phase::kSettling) return;
  const std::unique_lock asking(mutex_, std::try_to_lock);
  if (asking.owns_lock() && began_) (void)look_locked();
}

Watched::Need Session::look_locked() {
  const Phase before = phase();
  if (ended_ || before == Phase::kFailed || before == Phase::kAborted) return Need::kNothing;
  if (before == Phase::kReady && last_ != nullptr) {
    const auto reached = last_->query();
    if (!reached.ok() || reached.value()) last_ = nullptr;
    if (!reached.ok()) status_ = named(reached.status());
    if (last_ == nullptr) options_.ring();
  }
  const bool starts = !began_ || !under_way_.empty();
  const std::string what = !began_              ? "NCCL's start"
                           : under_way_.empty() ? "a collective on the GPU"
                                                : under_way_;
  ResultCode code = kSuccess;
  if (status_.ok()) {
    const Status asked =
        library().check(library()->async_error(handle_, &code), "ncclCommGetAsyncError", handle_);
    if (!asked.ok()) status_ = named(asked);
  }
  if (status_.ok() && code != kSuccess && code != kInProgress)
    status_ = named(library().check(code, what.c_str(), handle_));
  if (status_.ok() && code == kInProgress && starts && Clock::now() > deadline_) {
    status_ = named(deadline_exceeded(
        what +
        ": NCCL has not connected all ranks in time (RUEDA_START_TIMEOUT); NCCL_DEBUG=INFO shows "
        "what it waits for"));
  }
  if (!status_.ok()) {
    phase_.store(Phase::kFailed, std::memory_order_release);
    options_.ring();
    return Need::kNothing;
  }
  if (code == kInProgress) return starts ? Need::kFast : Need::kAtOnce;
  began_ = true;
  if (before == Phase::kSettling) change(Phase::kSettling, Phase::kReady);
  return last_ == nullptr ? Need::kNothing : Need::kSlow;
}

bool Session::idle() const {
  const std::lock_guard lock(mutex_);
  return ended_ || !status_.ok() || last_ == nullptr;
}

void Session::abort() {
  std::shared_ptr<Registrations> registrations;
  bool at_rest = false;  // what is registered can be taken back; else the abort does it
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    at_rest = phase() == Phase::kReady && is_reached(last_);
    registered_ = registrations_->totals();
    registrations = std::exchange(registrations_, nullptr);
    if (status_.ok()) status_ = named(cancelled("its NCCL communicator was aborted"));
  }
  if (phase() != Phase::kFailed) phase_.store(Phase::kAborted, std::memory_order_release);
  if (handle_ == nullptr) return;
  // On a thread of its own, which has all that it uses: NCCL may not come back.
  struct End {
    std::mutex mutex;
    std::condition_variable come;
    bool done = false;
  };
  auto end = std::make_shared<End>();
  std::thread([end, library = options_.library, device = options_.device, handle = handle_,
               part = part_, registrations = std::move(registrations), at_rest]() mutable {
    {
      const cuda::ContextScope scope(*device);
      const cuda::BesideCaptures beside(device->driver());
      if (at_rest) registrations->remove_all(handle);
      (void)(*library)->abort(handle);  // no split goes on behind it
      if (part != nullptr && *part != nullptr) (void)(*library)->abort(*part);
      registrations->forget();  // what was registered is held until here
    }
    const std::lock_guard lock(end->mutex);
    end->done = true;
    end->come.notify_all();
  }).detach();
  std::unique_lock lock(end->mutex);
  if (end->come.wait_for(lock, kAbortPatience, [&] { return end->done; })) return;
  RUEDA_WARN("nccl", "{}: ncclCommAbort has not returned in {} s; the communicator is left behind",
             options_.name, kAbortPatience.count());
  leave_behind(std::move(stream_));
  leave_behind(std::move(captured_stream_));
}

}  // namespace rueda::nccl
