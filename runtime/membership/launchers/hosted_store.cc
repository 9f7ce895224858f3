#include "runtime/membership/launchers/hosted_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

#include "collectives/base/log.h"
#include "collectives/host/event_fd.h"
#include "collectives/host/threads.h"
#include "runtime/membership/launchers/doors.h"

namespace rueda::launchers {
namespace {

constexpr std::chrono::milliseconds kLookAround{200};
constexpr std::chrono::seconds kWord{10};  // between words about who is missing

using Clock = std::chrono::steady_clock;

}  // namespace

Result<std::unique_ptr<HostedStore>> HostedStore::open(Door door, const rendezvous::JobKey& key,
                                                       std::string last_word) {
  std::unique_ptr<HostedStore> store(new HostedStore(std::move(door), key));
  RUEDA_ASSIGN_OR_RETURN(store->server_, rendezvous::StoreServer::start(std::move(last_word)));
  RUEDA_ASSIGN_OR_RETURN(store->wake_, host::make_event_fd("hosted store: eventfd"));
  store->here_.resize(static_cast<size_t>(store->door_.size));
  store->here_[0] = true;
  store->next_word_ = Clock::now() + kWord;
  RUEDA_ASSIGN_OR_RETURN(store->thread_, host::start_thread([raw = store.get()] { raw->run(); }));
  return store;
}

HostedStore::~HostedStore() {
  stopping_ = true;
  host::ring_event_fd(wake_.get());
  if (thread_.joinable()) thread_.join();
}

Result<UniqueFd> HostedStore::own_stream() {
  UniqueFd mine, servers;
  RUEDA_RETURN_IF_ERROR(membership::make_pair(&mine, &servers));
  RUEDA_RETURN_IF_ERROR(server_->add(std::move(servers), 0));
  return mine;
}

std::string HostedStore::reached_at(membership::Deadline deadline) const {
  if (door_.local) return "";
  std::unique_lock lock(mutex_);
  came_.wait_until(lock, deadline, [&] { return reached_at_.has_value(); });
  return reached_at_.value_or("");
}

size_t HostedStore::missing() const {
  return static_cast<size_t>(std::count(here_.begin(), here_.end(), false));
}

void HostedStore::run() {
  while (!stopping_ && missing() > 0) {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
    if (!crowded()) entries.push_back({door_.listener.fd.get(), POLLIN, 0});
    for (const auto& guest : guests_) {
      const bool sends = !guest.handshake.bytes_to_send().empty();
      entries.push_back({guest.fd.get(), static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const auto nap = crowded() ? membership::kSilentTime : kLookAround;
    poll(entries.data(), entries.size(), static_cast<int>(nap.count()));
    accept_all();
    serve_all();
    say_who_is_missing();
  }
  guests_.clear();
  door_.listener.fd.reset();
}

bool HostedStore::crowded() const {
  return guests_.size() >= 2 * here_.size() + membership::kStrangers;
}

void HostedStore::accept_all() {
  while (!crowded()) {
    UniqueFd fd(accept4(door_.listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    if (door_.local) {
      if (!membership::same_user(fd.get())) continue;
      const auto memory = key_.to_memfd();
      // One byte and a descriptor: fits the buffer of a fresh socket.
      if (!memory.ok() || !membership::send_fds(fd.get(), {memory.value().get()}).ok()) continue;
    }
    rendezvous::HandshakeTerms terms;
    terms.role = rendezvous::HandshakeRole::kAccepting;
    terms.size = door_.size;
    terms.epoch = door_.epoch;
    terms.job_id = door_.purpose;
    guests_.push_back({std::move(fd), rendezvous::Handshake(std::move(terms), key_), door_.local});
  }
}

void HostedStore::serve_all() {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    bool stays = membership::serve(&*guest, crowded());
    if (stays && guest->handshake.done()) {
      const Rank rank = guest->handshake.peer_rank();
      if (!door_.local) {
        const std::lock_guard lock(mutex_);
        if (!reached_at_) reached_at_ = own_end(guest->fd.get());
        came_.notify_all();
      }
      if (!here_[static_cast<size_t>(rank)] &&
          server_->add(std::move(guest->fd), static_cast<uint64_t>(rank)).ok())
        here_[static_cast<size_t>(rank)] = true;
      stays = false;
    } else if (!stays) {
      RUEDA_INFO("bootstrap", "sent a connection away: {}", guest->handshake.status().to_string());
    }
    guest = stays ? std::next(guest) : guests_.erase(guest);
  }
}

void HostedStore::say_who_is_missing() {
  if (missing() == 0 || Clock::now() < next_word_) return;
  next_word_ = Clock::now() + kWord;
  std::string who;
  for (size_t rank = 0; rank < here_.size(); ++rank) {
    if (!here_[rank]) who += (who.empty() ? "" : ", ") + std::to_string(rank);
  }
  RUEDA_WARN("bootstrap", "{} of {} ranks are here, waiting for rank {}", here_.size() - missing(),
             here_.size(), who);
}

}  // namespace rueda::launchers
