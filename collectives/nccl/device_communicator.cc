#include "collectives/nccl/device_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "collectives/nccl/block_offer.h"
#include "collectives/nccl/device_packing.h"

namespace rueda::nccl {
namespace {

using nccl::Session;

// NCCL's calls of all members in one order: a task goes on when those before it have made theirs.
class Turn : public Waiter {
 public:
  Turn(const uint64_t* now, uint64_t mine) : now_(now), mine_(mine) {}
  bool ready() override { return *now_ == mine_; }
  void await_resume() {}

 private:
  const uint64_t* now_;
  uint64_t mine_;
};

class Settled : public Waiter {
 public:
  explicit Settled(Session* session) : session_(session) {}
  bool ready() override {
    session_->look_now();
    return session_->phase() != Session::Phase::kSettling;
  }
  Status await_resume() { return session_->status(); }

 private:
  Session* session_;
};

class Idle : public Waiter {
 public:
  explicit Idle(const Session* session) : session_(session) {}
  bool ready() override { return session_->idle(); }
  void await_resume() {}

 private:
  const Session* session_;
};

class Known : public Waiter {
 public:
  explicit Known(const SplitPart* part) : part_(part) {}
  bool ready() override { return part_ == nullptr || part_->known; }
  void await_resume() {}

 private:
  const SplitPart* part_;
};

bool is_captured(const StreamOrder& order) {
  return !order.ready.empty() && order.ready.front().captured;
}

// Freeing it would wait for the GPU, which may never end.
void leave_behind(std::shared_ptr<std::byte> buffer) {
  static std::mutex mutex;
  static auto* const buffers = new std::vector<std::shared_ptr<std::byte>>;
  const std::lock_guard lock(mutex);
  buffers->push_back(std::move(buffer));
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(DeviceGroup group) : group_(std::move(group)) {
  const auto& members = group_.members;
  rank_ = static_cast<Rank>(std::find(members.begin(), members.end(), group_.transport->rank()) -
                            members.begin());
}

DeviceCommunicator::~DeviceCommunicator() {
  abandon();
  if (!session_ || !session_->is_left_behind()) return;
  leave_behind(std::move(buffer_.data));
  for (auto& memory : scratch_) leave_behind({memory, memory->data()});
}

void DeviceCommunicator::abandon() {
  abandoned_ = true;
  if (session_) session_->abort();
}

Status DeviceCommunicator::health() const {
  if (!session_ || abandoned_) return {};
  return session_->phase() == Session::Phase::kFailed ? session_->status() : Status();
}

Result<std::shared_ptr<cuda::Memory>> DeviceCommunicator::allocate(int device, size_t bytes) {
  RUEDA_ASSIGN_OR_RETURN(cuda::DevicePtr gpu, group_.machine->device(device));
  return cuda::Memory::allocate(std::move(gpu), bytes);
}

// ---- the start ----

nccl::PeerInfo DeviceCommunicator::own_info(int device) {
  nccl::PeerInfo info;
  const auto fail = [&](const Status& why) {
    info.failed = 1;
    nccl::set_text(why.message(), info.path, sizeof(info.path));
    return info;
  };
  const auto gpu = group_.machine->device(device);
  if (!gpu.ok()) return fail(gpu.status());
  const auto library = group_.machine->library();
  if (!library.ok()) return fail(library.status());
  info.version = library.value()->version();
  info.capability = gpu.value()->capability();
  info.ranks_per_gpu = group_.machine->options().ranks_per_gpu;
  nccl::set_text(gpu.value()->uuid(), info.uuid, sizeof(info.uuid));
  nccl::set_text(library.value()->path(), info.path, sizeof(info.path));
  gethostname(info.host, sizeof(info.host) - 1);
  if (group_.packs) kernels_ = group_.machine->kernels(gpu.value());
  if (kernels_ != nullptr) {
    auto buffer = allocate_block(gpu.value(), library.value(), kPackBytes);
    if (buffer.ok()) buffer_ = std::move(buffer).value();  // else there is no memory left
  }
  if (buffer_.data != nullptr) info.kernels = static_cast<int32_t>(cuda::kernels::kKernelsVersion);
  const nccl::Functions& calls = library.value()->functions();
  if (group_.machine->options().registers == Registers::kWindows &&
      calls.register_window != nullptr && calls.deregister_window != nullptr) {
    info.windows = PeerInfo::kMakesWindows;
    if (buffer_.maker != nullptr) info.windows |= PeerInfo::kBufferCanBeOne;
  }
  info.splits = (*library.value())->split != nullptr ? 1 : 0;
  info.part = part_ != nullptr && part_->session != nullptr ? 1 : 0;
  if (rank_ != 0 || info.part != 0) return info;
  const cuda::ContextScope scope(*gpu.value());
  const auto code = (*library.value())->get_unique_id(&info.id);
  const Status made = library.value()->check(code, "ncclGetUniqueId");
  return made.ok() ? info : fail(made);
}

Status DeviceCommunicator::begin(const std::vector<nccl::PeerInfo>& infos) {
  refused_ = nccl::check_peers(infos, group_.names);
  RUEDA_RETURN_IF_ERROR(refused_);
  const auto packs = [](const nccl::PeerInfo& info) {
    return info.kernels == static_cast<int32_t>(cuda::kernels::kKernelsVersion);
  };
  if (!std::all_of(infos.begin(), infos.end(), packs)) buffer_ = {};
  const auto all_have = [&](int32_t what) {
    return std::all_of(infos.begin(), infos.end(),
                       [what](const nccl::PeerInfo& info) { return (info.windows & what) != 0; });
  };
  windows_ = all_have(PeerInfo::kMakesWindows);
  window_buffer_ = buffer_.data != nullptr && all_have(PeerInfo::kBufferCanBeOne);
  capability_ = std::min_element(infos.begin(), infos.end(), [](const auto& a, const auto& b) {
                  return a.capability < b.capability;
                })->capability;
  splits_ =
      std::all_of(infos.begin(), infos.end(), [](const auto& info) { return info.splits != 0; });
  const auto has_part = [](const nccl::PeerInfo& info) { return info.part != 0; };
  if (std::all_of(infos.begin(), infos.end(), has_part)) {
    session_ = std::exchange(part_, nullptr)->session;
    return {};
  }
  if (std::any_of(infos.begin(), infos.end(), has_part))
    return internal_error("not all ranks have their part of a split communicator");
  part_ = nullptr;
  nccl::Session::Options options;
  RUEDA_ASSIGN_OR_RETURN(options.library, group_.machine->library());
  RUEDA_ASSIGN_OR_RETURN(options.device, group_.machine->device(device_));
  options.watcher = &group_.machine->watcher();
  options.ring = group_.machine->options().ring;
  options.name = group_.names[static_cast<size_t>(rank_)];
  options.patience = group_.machine->options().patience;
  RUEDA_ASSIGN_OR_RETURN(session_,
                         Session::begin(std::move(options), infos.front().id, rank_, size()));
  return {};
}

// ---- a start ----

// Each rank's part of `all`, by rank, goes to every other.
template <typename Type>
void DeviceCommunicator::exchange(Transfers* moves, std::vector<Type>* all) {
  const auto me = static_cast<size_t>(rank_);
  const auto bytes_of = [all](size_t rank) {
    return ByteSpan(reinterpret_cast<std::byte*>(&(*all)[rank]), sizeof(Type));
  };
  for (size_t peer = 0; peer < all->size(); ++peer) {
    if (peer == me) continue;
    moves->recv(group_.transport, group_.members[peer], group_.tag, bytes_of(peer));
    moves->send(group_.transport, group_.members[peer], group_.tag, bytes_of(me));
  }
}

Result<std::unique_ptr<Collective>> DeviceCommunicator::init(CollectiveDesc desc) {
  return std::unique_ptr<Collective>(new ScriptedCollective(
      std::move(desc), [this] { return calls_++; },  // its turn
      [this](const CollectiveDesc& of, std::span<const Part> tensors) {
        return make_script(of, tensors);
      }));
}

// The session is there: what stands before the calls in its stream.
Status DeviceCommunicator::prepare(const StreamOrder& order, std::span<const Part> tensors) {
  const bool captured = is_captured(order);
  RUEDA_RETURN_IF_ERROR(session_->capture(captured));
  if (!captured && registers()) register_tensors(tensors);  // NCCL sees to what is in graphs
  for (const cuda::Mark& mark : order.ready) {
    if (mark.captured != captured) {
      return invalid_argument(
          "of tensors that are reduced together, one's stream is being captured into a CUDA graph "
          "and another's is not");
    }
    RUEDA_RETURN_IF_ERROR(mark.event->make_wait(session_->stream()));
  }
  return {};
}

// Of the pool's memory those blocks that the tensors lie in. Each rank for itself: NCCL lets ranks
// differ there.
void DeviceCommunicator::register_tensors(std::span<const Part> tensors) {
  const BlockPool& pool = BlockPool::of_process();
  if (pool.empty()) return;
  Block last;
  const auto look = [&](const std::byte* address) {
    if (address == nullptr || (last.data != nullptr && last.contains(address))) return;
    last = pool.find(address);
    if (last.data != nullptr && last.maker == session_->library()->mem_alloc)
      session_->use_directly(last);
  };
  for (const Part& part : tensors) {
    if (part.count == 0) continue;
    look(part.in);
    look(part.out);
  }
}

Script DeviceCommunicator::run(std::vector<Stage> stages, std::span<const Part> tensors) {
  std::vector<nccl::PeerInfo> infos;
  std::vector<BlockOffer> offers;
  Transfers moves;
  for (Status last;;) {
    const Call call = co_await next_call(last);
    StreamOrder& order = *call.context.order;
    last = {};
    co_await Turn(&turn_, call.tag);
    if (device_ < 0) {
      device_ = order.device;
      starting_ = true;
      co_await Known(part_.get());
      infos.resize(group_.members.size());
      infos[static_cast<size_t>(rank_)] = own_info(device_);
      exchange(&moves, &infos);
      last = co_await moves.finished();
      if (last.ok()) last = begin(infos);
      if (!last.ok() && refused_.ok()) continue;
    }
    if (!refused_.ok()) {
      starting_ = false;
      ++turn_;
      last = refused_;
      continue;
    }
    if (order.device != device_) {
      last = invalid_argument(group_.names[static_cast<size_t>(rank_)] + " used GPU " +
                              std::to_string(device_) + " before, and a tensor on GPU " +
                              std::to_string(order.device) +
                              " now: each rank keeps to one (torch.cuda.set_device)");
      continue;
    }
    last = co_await Settled(session_.get());
    starting_ = false;
    if (buffer_.data != nullptr && last.ok() && !std::exchange(registered_, true)) {
      if (window_buffer_) {
        last = session_->begin_window(buffer_);
        if (last.ok()) last = co_await Settled(session_.get());
        if (last.ok()) last = session_->end_window();
      } else if (registers()) {
        session_->use_directly(buffer_);
      }
    }
    if (windows_ && windows_due_ && last.ok()) {
      const std::vector<Block> blocks = new_blocks(*session_, BlockPool::of_process());
      offers.resize(group_.members.size());
      offers[static_cast<size_t>(rank_)] = BlockOffer(blocks, is_captured(order));
      exchange(&moves, &offers);
      last = co_await moves.finished();
      if (!last.ok()) continue;
      windows_due_ = is_captured_anywhere(offers);
      const auto sizes = agree_on(offers);
      last = sizes.status();
      if (!last.ok()) continue;
      const std::vector<Block> windows = choose(blocks, sizes.value());
      for (size_t i = 0; i < windows.size() && last.ok(); ++i) {
        last = session_->begin_window(windows[i]);
        if (last.ok()) last = co_await Settled(session_.get());
        if (last.ok()) last = session_->end_window();
      }
    }
    if (last.ok()) last = prepare(order, tensors);
    for (size_t i = 0; i < stages.size() && last.ok(); ++i) {
      const Stage& stage = stages[i];
      if (stage.calls) {
        last = session_->launch([&] { return stage.calls(*session_); });
        // Nothing was launched then, on all ranks alike.
        if (last.code() == Code::kUnimplemented) ++turn_;
        if (last.ok()) last = co_await Settled(session_.get());
      }
      if (last.ok() && stage.after) last = stage.after(*session_);
    }
    if (!last.ok()) continue;
    auto done = session_->mark();
    last = done.status();
    if (!last.ok()) continue;
    order.done = std::move(done).value();
    ++turn_;
  }
}

std::optional<uint64_t> DeviceCommunicator::reserve() {
  return calls_ == 0 ? std::nullopt : std::optional(calls_++);
}

std::unique_ptr<Collective> DeviceCommunicator::split(uint64_t place, std::optional<int> key,
                                                      std::string what,
                                                      std::shared_ptr<SplitPart> part) {
  CollectiveDesc nothing;
  nothing.kind = CollectiveKind::kProcessSet;
  nothing.tensors = 0;
  return std::make_unique<ScriptedCollective>(
      nothing, [place] { return place; },
      [&](const CollectiveDesc&, std::span<const Part>) {
        return split_off(key, std::move(what), std::move(part));
      });
}

std::unique_ptr<Collective> DeviceCommunicator::skip(uint64_t place) {
  CollectiveDesc nothing;
  nothing.kind = CollectiveKind::kProcessSet;
  nothing.tensors = 0;
  return std::make_unique<ScriptedCollective>(
      nothing, [place] { return place; },
      [this](const CollectiveDesc&, std::span<const Part>) { return refuse({}); });
}

Script DeviceCommunicator::split_off(std::optional<int> key, std::string what,
                                     std::shared_ptr<SplitPart> part) {
  for (Status last;;) {
    const Call call = co_await next_call(last);
    last = {};
    co_await Turn(&turn_, call.tag);
    if (session_ != nullptr && splits_) {
      co_await Idle(session_.get());
      last = co_await Settled(session_.get());
      if (last.ok()) last = session_->split(key, what);
      if (!last.ok()) continue;
      last = co_await Settled(session_.get());
      if (!last.ok()) continue;
      auto made = session_->take_part();
      last = made.status();
      if (!last.ok()) continue;
      part->session = std::move(made).value();
      if (key.has_value() != (part->session != nullptr)) {
        last =
            internal_error("ncclCommSplit for " + what + " gave another part than was asked for");
        continue;
      }
    }
    part->known = true;
    ++turn_;
  }
}

Script DeviceCommunicator::refuse(Status status) {
  for (Status last;;) {
    const Call call = co_await next_call(last);
    co_await Turn(&turn_, call.tag);
    ++turn_;
    last = status;
  }
}

Result<std::byte*> DeviceCommunicator::scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t before = scratch_.empty() ? 0 : scratch_.back()->bytes();
  if (before < bytes) {
    RUEDA_ASSIGN_OR_RETURN(auto more, allocate(device_, std::max(bytes, 2 * before)));
    scratch_.push_back(std::move(more));
  }
  return scratch_.back()->data();
}

Status DeviceCommunicator::copy(Session& session, const std::vector<cuda::kernels::Table>& tables,
                                cuda::kernels::Format format) const {
  const cuda::ContextScope scope(*session.device());
  RUEDA_RETURN_IF_ERROR(scope.status());
  for (const cuda::kernels::Table& table : tables) {
    const int error = (*kernels_)->copy(&table, format, format, 1.0f, session.stream());
    RUEDA_RETURN_IF_ERROR(kernels_->check(error, "packing tensors on the GPU"));
  }
  return {};
}

}  // namespace rueda::nccl
