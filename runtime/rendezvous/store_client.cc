#include "runtime/rendezvous/store_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "proto/store_codec.h"
#include "runtime/rendezvous/key_table.h"
#include "runtime/rendezvous/poll_until.h"
#include "runtime/rendezvous/store_frame.h"

namespace rueda::rendezvous {
namespace {

using std::chrono::nanoseconds;

Status as_status(const wire::StoreReply& reply) {
  if (reply.code == Code::kOk) return {};
  return Status(reply.code, reply.message).with_rank(static_cast<Rank>(reply.error_rank) - 1);
}

}  // namespace

Status StoreClient::keeper_gone() const {
  return unavailable("store: " + keeper_ + " is gone (it closed its end of the connection)")
      .with_rank(keeper_rank_);
}

Status StoreClient::keeper_silent() const {
  return deadline_exceeded("store: " + keeper_ + " does not answer (is it stopped or overloaded?)");
}

StoreClient::StoreClient(UniqueFd fd, std::string keeper, Rank keeper_rank)
    : keeper_(std::move(keeper)), keeper_rank_(keeper_rank), fd_(std::move(fd)) {
  ::fcntl(fd_.get(), F_SETFD, FD_CLOEXEC);
  // An answer to a client that had this stream before us must not look like one of ours.
  uint32_t random = 0;
  [[maybe_unused]] const ssize_t n = ::getrandom(&random, sizeof(random), 0);
  next_id_ = (static_cast<uint64_t>(random) << 32) | 1;
}

Status StoreClient::set(const std::string& key, const std::string& value) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  RUEDA_RETURN_IF_ERROR(check_value(key, value));
  wire::StoreRequest request;
  request.op = wire::StoreOp::kSet;
  request.key = key;
  request.value = value;
  RUEDA_ASSIGN_OR_RETURN(const auto reply, call(std::move(request), deadline_in(kGrace)));
  return as_status(reply);
}

Result<std::string> StoreClient::get(const std::string& key, nanoseconds timeout) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  const nanoseconds wait =
      std::clamp<nanoseconds>(timeout, nanoseconds(0), std::chrono::hours(8760));
  wire::StoreRequest request;
  request.op = wire::StoreOp::kGet;
  request.key = key;
  request.timeout_ns = static_cast<uint64_t>(wait.count());
  RUEDA_ASSIGN_OR_RETURN(auto reply, call(std::move(request), deadline_in(wait + kGrace)));
  RUEDA_RETURN_IF_ERROR(as_status(reply));
  return std::move(reply.value);
}

Result<wire::StoreReply> StoreClient::change(wire::StoreOp op, const std::string& key,
                                             const std::string& value,
                                             const std::string& expected) {
  wire::StoreRequest request;
  request.op = op;
  request.key = kUserKeys + key;
  request.value = value;
  request.expected = expected;
  RUEDA_RETURN_IF_ERROR(check_key(request.key));
  RUEDA_RETURN_IF_ERROR(check_value(request.key, value));
  RUEDA_RETURN_IF_ERROR(check_value(request.key, expected));
  RUEDA_ASSIGN_OR_RETURN(auto reply, call(std::move(request), deadline_in(kGrace)));
  RUEDA_RETURN_IF_ERROR(as_status(reply));
  return reply;
}

Status StoreClient::put(const std::string& key, const std::string& value) {
  return change(wire::StoreOp::kPut, key, value).status();
}

Result<int64_t> StoreClient::add(const std::string& key, int64_t amount) {
  RUEDA_ASSIGN_OR_RETURN(const auto reply,
                         change(wire::StoreOp::kAdd, key, std::to_string(amount)));
  return static_cast<int64_t>(reply.number);
}

Result<StoreClient::Held> StoreClient::compare_set(const std::string& key,
                                                   const std::string& expected,
                                                   const std::string& desired) {
  RUEDA_ASSIGN_OR_RETURN(auto reply, change(wire::StoreOp::kCompareSet, key, desired, expected));
  return Held{reply.number != 0, std::move(reply.value)};
}

Result<bool> StoreClient::erase(const std::string& key) {
  RUEDA_ASSIGN_OR_RETURN(const auto reply, change(wire::StoreOp::kErase, key, ""));
  return reply.number != 0;
}

Result<std::string> StoreClient::peek(const std::string& key) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  wire::StoreRequest request;
  request.op = wire::StoreOp::kGet;
  request.key = key;
  RUEDA_ASSIGN_OR_RETURN(auto reply, call(std::move(request), deadline_in(kMoment), Late::kForget));
  RUEDA_RETURN_IF_ERROR(as_status(reply));
  return std::move(reply.value);
}

Result<wire::NewEpoch> StoreClient::enter(const wire::Standing& standing, Deadline deadline,
                                          const std::atomic<bool>* given_up) {
  wire::StoreRequest request;
  request.op = wire::StoreOp::kEnter;
  request.value = wire::encode(standing);
  RUEDA_ASSIGN_OR_RETURN(const auto reply,
                         call(std::move(request), deadline, Late::kForget, given_up));
  RUEDA_RETURN_IF_ERROR(as_status(reply));
  wire::NewEpoch epoch;
  const Status read = wire::decode(reply.value, &epoch);
  if (!read.ok())
    return unavailable("store: " + keeper_ + " sent nonsense (" + read.message() + ")");
  return epoch;
}

Status StoreClient::report(const std::string& key, const std::string& value) {
  RUEDA_RETURN_IF_ERROR(check_key(key));
  RUEDA_RETURN_IF_ERROR(check_value(key, value));
  wire::StoreRequest request;
  request.op = wire::StoreOp::kReport;
  request.key = key;
  request.value = value;
  RUEDA_ASSIGN_OR_RETURN(const auto reply,
                         call(std::move(request), deadline_in(kMoment), Late::kForget));
  return as_status(reply);
}

Result<wire::StoreReply> StoreClient::call(wire::StoreRequest request, Deadline deadline, Late late,
                                           const std::atomic<bool>* given_up) {
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    request.id = next_id_++;
    waiting_.emplace(request.id, std::nullopt);
  }
  const Status sent = send_frame(framed(wire::encode(request)), deadline);
  std::unique_lock lock(mutex_);
  if (!sent.ok()) give_up(sent);
  const Deadline look_for_signals = deadline_in(kSignalsLook);
  const bool may_take_long = given_up != nullptr && deadline > deadline_in(kGrace);
  for (;;) {
    const auto mine = waiting_.find(request.id);
    const Deadline until =
        given_up == nullptr ? deadline : std::min(deadline, deadline_in(kGivenUpLook));
    const bool is_last = until == deadline;
    if (mine->second) {
      wire::StoreReply reply = std::move(*mine->second);
      waiting_.erase(mine);
      return reply;
    }
    if (!broken_.ok()) {
      waiting_.erase(mine);
      return broken_;
    }
    if (given_up != nullptr && given_up->load()) {
      waiting_.erase(mine);
      changed_.notify_all();  // another may read on
      return failed_precondition("rueda has been shut down on this rank meanwhile");
    }
    if (may_take_long && std::chrono::steady_clock::now() >= look_for_signals) {
      waiting_.erase(mine);
      changed_.notify_all();
      return Status{Code::kAborted, "a signal may have come just before the wait"};
    }
    if (someone_reads_) {
      // Whoever reads ends within its own deadline and wakes us; ours may be the earlier one.
      if (changed_.wait_until(lock, until) == std::cv_status::timeout && is_last && !mine->second) {
        if (late != Late::kGiveUp) {
          waiting_.erase(mine);
          return keeper_silent();
        }
        give_up(keeper_silent());
      }
      continue;
    }
    someone_reads_ = true;
    lock.unlock();
    wire::StoreReply reply;
    // Half a frame cannot be left for the next reader; none can.
    const Status readable = given_up != nullptr ? poll_unless_interrupted(fd_.get(), POLLIN, until)
                                                : poll_until(fd_.get(), POLLIN, until);
    const bool comes = readable.ok();
    const bool goes_on = !comes && !is_last && readable.code() != Code::kAborted;
    const Status read = comes ? read_reply(&reply, deadline) : keeper_silent();
    lock.lock();
    someone_reads_ = false;
    if (goes_on) continue;
    if (!comes && late != Late::kGiveUp) {
      waiting_.erase(mine);
      changed_.notify_all();  // another may read on
      return readable.code() == Code::kAborted ? readable : keeper_silent();
    }
    if (!read.ok()) {
      give_up(read);
    } else if (const auto whose = waiting_.find(reply.id); whose != waiting_.end()) {
      whose->second = std::move(reply);
    }
    changed_.notify_all();
  }
}

// Under mutex_. The first reason stays. Shutting the stream down ends the read of another caller
// and keeps a later user of the stream from reading the second half of a frame.
void StoreClient::give_up(const Status& why) {
  if (!broken_.ok()) return;
  broken_ = why;
  ::shutdown(fd_.get(), SHUT_RDWR);
  changed_.notify_all();
}

Status StoreClient::send_frame(const std::string& frame, Deadline deadline) {
  const std::lock_guard lock(send_mutex_);
  size_t done = 0;
  while (done < frame.size()) {
    const ssize_t n =
        ::send(fd_.get(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (!try_again(errno)) {
      return keeper_gone();
    } else if (!poll_until(fd_.get(), POLLOUT, deadline).ok()) {
      return keeper_silent();
    }
  }
  return {};
}

Status StoreClient::read_reply(wire::StoreReply* reply, Deadline deadline) {
  std::string bytes;
  RUEDA_RETURN_IF_ERROR(read_exactly(&bytes, kFrameHeaderBytes, deadline));
  const size_t length = frame_length(bytes);
  if (length > kMaxFrameBytes) {
    return unavailable("store: " + keeper_ + " sent a frame of " + std::to_string(length) +
                       " bytes; the connection is given up");
  }
  RUEDA_RETURN_IF_ERROR(read_exactly(&bytes, length, deadline));
  const Status decoded = wire::decode(bytes, reply);
  if (decoded.ok()) return {};
  return unavailable("store: " + keeper_ + " sent nonsense (" + decoded.message() +
                     "); the connection is given up");
}

// Never reads ahead: what follows may belong to the next client of this stream.
Status StoreClient::read_exactly(std::string* out, size_t bytes, Deadline deadline) {
  out->resize(bytes);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::recv(fd_.get(), out->data() + done, bytes - done, MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || !try_again(errno)) {
      return keeper_gone();
    } else if (!poll_until(fd_.get(), POLLIN, deadline).ok()) {
      return keeper_silent();
    }
  }
  return {};
}

}  // namespace rueda::rendezvous
