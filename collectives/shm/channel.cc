#include "collectives/shm/channel.h"

#include <algorithm>
#include <utility>

#include "collectives/base/check.h"
#include "collectives/host/monotonic.h"
#include "collectives/shm/channel_state.h"

namespace rueda::shm {

using host::ChannelControl;

namespace {

// Looks at a small operation's posts in one round, about 50 ns: one that is on its way is seen
// sooner than after another round.
constexpr int kLooks = 16;

// The line that memory is in will be written soon: takes it from the other cores' caches meanwhile.
void own_soon(const void* memory) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(memory)));  // old cores ignore it
#else
  __builtin_prefetch(memory, 1);
#endif
}

}  // namespace

Channel::State::State(ChannelGroup g, size_t number)
    : group(std::move(g)),
      me(static_cast<size_t>(group.rank)),
      size(group.arenas.size()),
      peers(size),
      buffers(group.arenas.front()->layout().buffers),
      staging_bytes(group.arenas.front()->layout().chunk_bytes),
      inputs(size),
      views(size),
      gathered(size * static_cast<size_t>(kGathered)),
      fused(host::PostCell::kBlockBytes),
      words(2 * kListed) {
  for (size_t rank = 0; rank < size; ++rank) {
    const host::Arena& arena = *group.arenas[rank];
    const size_t first = group.first_channels.empty() ? 0 : group.first_channels[rank];
    peers[rank].control = arena.channel(first + number);
    peers[rank].buffers = arena.buffer(first + number, 0);
    peers[rank].pid = static_cast<pid_t>(arena.header().pid);
    if (!group.heaps.empty()) peers[rank].heap = group.heaps[rank];
  }
}

bool Channel::State::all_reached(Counter counter, uint64_t value) const {
  for (size_t rank = 0; rank < size; ++rank) {
    if (rank == me) continue;
    if ((peers[rank].control->*counter).load(std::memory_order_acquire) < base + value)
      return false;
  }
  return true;
}

void Channel::State::ring() {
  news = false;
  host::fence_before_rings();
  for (size_t rank = 0; rank < group.ringers.size(); ++rank) {
    if (rank != me) group.ringers[rank].ring_after_fence();
  }
}

void Channel::State::forget() {
  ops.fill(nullptr);
  waiting = nullptr;
  missing = kNobody;
  decided = combined = fetched = direct = finished = entered;
  chunks = packed = reduced = unpacked;
}

void Channel::State::fail(Status status) {
  failure = std::move(status);
  dead = true;
}

// A peer's memory cannot be read. If the peer is gone, the transport will say which rank it was;
// until then nothing moves here.
void Channel::State::lose(Status status) {
  if (status.code() == Code::kUnavailable) {
    gone = true;
  } else {
    fail(std::move(status));
  }
}

// Is a cell free for the next operation: have all ranks finished the one that was in it?
bool Channel::State::room() {
  if (entered - freed < kPosts) return true;
  freed = finished;
  for (const Peer& peer : peers) {
    const uint64_t value = peer.control->finished.load(std::memory_order_acquire);
    freed = std::min(freed, value < base ? 0 : value - base);
  }
  return entered - freed < kPosts;
}

void Channel::State::enter(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  p.number = entered;
  p.ready = 0;
  ops[entered % kPosts] = op;
  if (p.size == Size::kLarge) {
    enter_large(op);
  } else {
    const StageStamp stamp(op->times_, &StageTimes::packed);
    enter_small(op);
  }
  ++entered;
  news = true;
  // The next operation's line is still with the peers that read it last time round.
  own_soon(cell(me, entered));
}

bool Channel::State::enter_waiting() {
  bool moved = false;
  while (waiting != nullptr && room()) {
    enter(std::exchange(waiting, waiting->progress().next));
    moved = true;
  }
  return moved;
}

// False, for decide_next() to return.
bool Channel::State::wait_for_post(const ChannelOp& op) {
  const size_t rank = op.progress().ready;
  if (rank == missing || watch == nullptr || !op.watched_) return false;
  missing = rank;
  watch->missing(static_cast<Rank>(rank));
  return false;
}

bool Channel::State::decide_next() {
  ChannelOp* op = running(decided);
  ChannelOp::Progress& p = op->progress();
  const bool large = p.size == Size::kLarge;
  for (int look = 1; !(large ? read_large(op) : read_small(op)); ++look) {
    if (large || look == kLooks) return wait_for_post(*op);
  }
  if (missing != kNobody) {
    missing = kNobody;
    watch->complete();
  }
  if (op->times_ != nullptr) op->times_->met = host::monotonic_ns();
  if (large) {
    p.alone = measured && finished == decided;
    if (p.alone) p.decided = std::chrono::steady_clock::now();
    choose_protocols(op);
  } else {
    if (op->times_ != nullptr) op->times_->wire = {op->times_->packed.end, op->times_->met};
    const StageStamp stamp(op->times_, &StageTimes::unpacked);
    consume(op);
    p.first = p.last = chunks;
    if (direct == decided) ++direct;
  }
  ++decided;
  return true;
}

int64_t Channel::State::input_bytes(const ChannelOp& op) const {
  int64_t count = 0;
  for (size_t i = 0; i < op.tensors().size(); ++i)
    count += op.desc().input_count(i, static_cast<Rank>(me), static_cast<Rank>(size));
  return count * op.progress().element;
}

bool Channel::State::retire() {
  bool moved = false;
  while (finished != decided) {
    ChannelOp* op = running(finished);
    const ChannelOp::Progress& p = op->progress();
    if (p.size == Size::kLarge) {
      if (direct <= finished || unpacked < p.last) break;
      totals.in_place += p.direct_bytes[0];
      totals.cma += p.direct_bytes[1];
      const bool had_choice = p.direct_bytes[0] < static_cast<uint64_t>(p.bytes);
      if (p.alone && had_choice && decided == finished + 1)
        measured(op->desc(), input_bytes(*op),
                 (std::chrono::steady_clock::now() - p.decided).count());
    }
    totals.total += static_cast<uint64_t>(p.bytes);
    ops[finished % kPosts] = nullptr;
    // Nobody is woken for this: a peer that waits for a cell has entered operations that wait for
    // mine, and is woken when I enter them; the last rank to free a cell enters its next op itself.
    peers[me].control->finished.store(base + ++finished, std::memory_order_release);
    op->done_ = true;
    moved = true;
  }
  return moved;
}

ChannelOp::ChannelOp(Channel* channel, CollectiveDesc desc)
    : Collective(std::move(desc)), channel_(channel), progress_(std::make_unique<Progress>()) {
  channel->state_->prepare(this);
}

ChannelOp::~ChannelOp() = default;

bool ChannelOp::is_large() const { return progress_->size == Size::kLarge; }

void ChannelOp::start(const CallContext& context) {
  Channel::State& s = *channel_->state_;
  done_ = false;
  times_ = context.times;
  if (s.waiting == nullptr && !s.dead && s.room()) return s.enter(this);
  progress_->next = nullptr;
  if (s.waiting == nullptr) {
    s.waiting = this;
  } else {
    s.last_waiting->progress().next = this;
  }
  s.last_waiting = this;
}

bool ChannelOp::advance() {
  if (done_ || channel_->failure().ok()) return false;
  status_ = channel_->failure();
  done_ = true;
  return true;
}

Channel::Channel(ChannelGroup group, size_t number)
    : state_(std::make_unique<State>(std::move(group), number)) {}
Channel::~Channel() = default;

bool Channel::progress() {
  State& s = *state_;
  if (s.dead) return false;
  bool moved = s.waiting != nullptr && s.enter_waiting();
  while (s.decided != s.entered && s.decide_next()) moved = true;
  if (s.direct != s.decided || s.unpacked != s.chunks) {
    if (s.news) s.ring();
    moved |= s.run_staged();
    moved |= s.run_direct();
  }
  moved |= s.retire();
  if (s.news) s.ring();
  return moved;
}

bool Channel::idle() const {
  return state_->finished == state_->entered && state_->waiting == nullptr;
}
uint64_t Channel::posted() const { return state_->entered; }
uint64_t Channel::finished() const { return state_->finished; }
void Channel::on_measured(Measured measured) { state_->measured = std::move(measured); }
void Channel::watch(ArrivalWatch* watch) { state_->watch = watch; }
const Status& Channel::failure() const { return state_->failure; }
const Channel::Bytes& Channel::bytes() const { return state_->totals; }

void Channel::begin_generation(uint64_t generation) {
  State& s = *state_;
  RUEDA_CHECK(idle(), "a generation ends before the next one begins");
  RUEDA_CHECK(generation << 40 >= s.base, "generations only grow");
  s.base = generation << 40;
  s.entered = s.decided = s.combined = s.fetched = s.direct = s.finished = s.freed = 0;
  s.chunks = s.packed = s.reduced = s.unpacked = 0;
  s.pack_cursor = s.reduce_cursor = s.unpack_cursor = 0;
  ChannelControl& control = *s.peers[s.me].control;
  for (const State::Counter counter :
       {&ChannelControl::finished, &ChannelControl::combined, &ChannelControl::fetched,
        &ChannelControl::packed, &ChannelControl::reduced, &ChannelControl::unpacked}) {
    (control.*counter).store(s.base, std::memory_order_release);
  }
}

void Channel::end_generation() { state_->forget(); }

void Channel::abandon() {
  state_->dead = true;
  state_->forget();
}

}  // namespace rueda::shm
