#include "attention/link.h"

#include <algorithm>
#include <chrono>
#include <new>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/check.h"
#include "collectives/base/log.h"
#include "collectives/base/stall_limit.h"

namespace rueda::attention {
namespace {

constexpr uint32_t kTagSpace = 1 << 16;                // and a process set's id: attention's own
constexpr std::chrono::milliseconds kLookAround{200};  // for abort(), for messages that failed

// A notice is an odd number of bytes, which no other message has: of which rank it tells. It has
// what its sender's messages have agreed on, as they.
constexpr int64_t notice_bytes(Rank rank) { return 2 * int64_t{rank} + 1; }
constexpr bool is_notice(uint64_t bytes) { return bytes % 2 == 1; }
constexpr Rank told_by(uint64_t bytes) { return static_cast<Rank>(bytes / 2); }

}  // namespace

void Link::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{64});
}

std::byte* Link::take(int64_t bytes) {
  Block block;
  block.bytes = bytes;
  block.memory.reset(static_cast<std::byte*>(
      ::operator new[](static_cast<size_t>(std::max<int64_t>(bytes, 1)), std::align_val_t{64})));
  taken_ += bytes;
  most_ = std::max(most_, taken_);
  memory_.push_back(std::move(block));
  return memory_.back().memory.get();
}

void Link::give(const std::byte* memory) {
  const auto block = std::find_if(memory_.begin(), memory_.end(),
                                  [&](const Block& one) { return one.memory.get() == memory; });
  taken_ -= block->bytes;
  memory_.erase(block);
}

bool Link::idle() const {
  return std::all_of(messages_.begin(), messages_.end(),
                     [](const Message& message) { return message->released(); });
}

void Link::abandon() const {
  for (const Message& message : messages_) place_.runtime->flight().abandoned(message->flight);
}

Result<Link::Message> Link::move(bool send, Rank peer, const std::byte* in, std::byte* out,
                                 int64_t bytes, bool answer) {
  if (bytes == 0) return Message();
  engine::Operation operation;
  operation.kind = send ? CollectiveKind::kSend : CollectiveKind::kRecv;
  operation.dtype = DType::kUInt8;
  operation.shape = {bytes};
  operation.input = in;
  operation.output = out;
  operation.device = device_;
  operation.stream = stream_;
  operation.peer = place_.members[static_cast<size_t>(peer)];
  operation.tag = (place_.call & 0x3fffffff) * 2 + (answer ? 1 : 0);
  operation.tag_space = kTagSpace + place_.process_set;
  operation.agreed = place_.agreed;
  operation.process_set = place_.process_set;
  operation.name = "attention";
  std::vector<engine::Operation> operations;
  operations.push_back(std::move(operation));
  RUEDA_ASSIGN_OR_RETURN(auto started, place_.runtime->start(std::move(operations)));
  // Of a GPU those go that its stream has waited for.
  if (device_ < 0)
    std::erase_if(messages_, [](const Message& one) { return one->done() && one->status().ok(); });
  messages_.push_back(started.front());
  return started.front();
}

Result<Link::Message> Link::send(Rank peer, const std::byte* data, int64_t bytes, bool answer) {
  RUEDA_CHECK(!is_notice(bytes), "a message of attention looks like a notice");
  return move(true, peer, data, nullptr, bytes, answer);
}

Result<Link::Message> Link::recv(Rank peer, std::byte* data, int64_t bytes, bool answer) {
  RUEDA_CHECK(!is_notice(bytes), "a message of attention looks like a notice");
  return move(false, peer, nullptr, data, bytes, answer);
}

void Link::refuse() {
  known_ = true;
  if (place_.runtime != nullptr) other_ = place_.runtime->membership().rank;
}

// A sender of the same call as this one tells whose is another; any other's is itself.
void Link::learn(const Message& failed) {
  known_ = true;
  const std::optional<Met>& met = failed->status().facts().met;
  if (!met) return;
  const bool told = is_notice(met->bytes) && met->meta == place_.agreed;
  other_ = told ? told_by(met->bytes) : failed->peer;
}

Status Link::failure_of_any() {
  for (const Message& message : messages_) {
    if (!message->done() || message->status().ok()) continue;
    learn(message);
    return message->status();
  }
  return {};
}

void Link::tell_mismatch() {
  if (other_ < 0) return;
  on_device(-1, nullptr);  // of the host, as are the words about messages of GPUs
  const int64_t bytes = notice_bytes(other_);
  std::byte* const notice = take(bytes);
  std::fill_n(notice, bytes, std::byte{0});
  std::byte* const ignored = take(bytes);
  for (Rank peer = 0; peer < static_cast<Rank>(place_.members.size()); ++peer) {
    if (place_.members[static_cast<size_t>(peer)] == place_.runtime->membership().rank) continue;
    for (const bool answer : {false, true}) {
      if (!move(true, peer, notice, nullptr, bytes, answer).ok()) return;
      if (!move(false, peer, nullptr, ignored, bytes, answer).ok()) return;
    }
  }
}

Status Link::check_aborted() const {
  if (!aborted_->load(std::memory_order_relaxed)) return {};
  return {Code::kCancelled, "the call was aborted on this rank"};
}

Status Link::named(const Status& status, const std::string& where, const char* doing,
                   Rank peer) const {
  if (status.ok()) return status;
  const Rank rank = place_.members.empty() ? peer : place_.members[static_cast<size_t>(peer)];
  const std::string here = where + ", " + doing + " rank " + std::to_string(rank) + ": ";
  if (status.facts().met) {
    return status
        .with_message(here + "the call of " + place_.runtime->membership().name(other_) +
                      " differs from this rank's, or was refused there; do all ranks call the "
                      "same attention with the same arguments, in one order?")
        .with_rank(other_);
  }
  const Status named = status.with_message(here + status.message());
  return named.facts().rank >= 0 ? named : named.with_rank(rank);  // who has failed is known
}

// The peer has not called it, or its call has no such message: then it may wait for this rank, too.
Status Link::look_for_stall(const engine::Request& message, double seconds) {
  const Config& config = place_.runtime->config();
  const auto [limit, reason] = stall_limit(config);
  if (limit > 0 && seconds >= limit) {
    const std::string known = place_.runtime->flight().mail();
    return deadline_exceeded(fmt::format("nothing for {:.0f} s ({}){}{}", seconds, reason,
                                         known.empty() ? "" : "\n", known));
  }
  const double stall = config.stall_check_seconds;
  if (stall <= 0 || seconds < std::max(stall, next_warning_)) return {};
  next_warning_ = 2 * seconds;
  const bool sends = message.announcement.kind == CollectiveKind::kSend;
  RUEDA_WARN("attention",
             "stalled: a message {} {} waits for {:.0f} s; has it called the same attention, with "
             "the same arguments?",
             sends ? "to" : "from", place_.runtime->membership().name(message.peer), seconds);
  return {};
}

Status Link::wait(const Message& message) {
  if (message == nullptr) return {};
  const auto began = std::chrono::steady_clock::now();
  next_warning_ = 0;
  while (!message->done()) {
    Status status = message->wait(kLookAround);
    if (message->done()) break;
    // A deadline or a signal, neither of which is ours.
    if (status.code() != Code::kDeadlineExceeded && status.code() != Code::kAborted) return status;
    RUEDA_RETURN_IF_ERROR(check_aborted());
    RUEDA_RETURN_IF_ERROR(failure_of_any());
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    RUEDA_RETURN_IF_ERROR(look_for_stall(*message, waited.count()));
  }
  if (!message->status().ok()) learn(message);
  if (device_ < 0 || !message->status().ok()) return message->status();
  RUEDA_RETURN_IF_ERROR(message->make_wait(stream_));
  std::erase(messages_, message);
  return {};
}

}  // namespace rueda::attention
