#include "runtime/rendezvous/store_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <numeric>
#include <utility>

#include "collectives/base/log.h"
#include "collectives/host/event_fd.h"
#include "collectives/host/threads.h"
#include "proto/store_codec.h"
#include "runtime/rendezvous/store.h"

namespace rueda::rendezvous {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

Result<std::unique_ptr<StoreServer>> StoreServer::start(std::string last_word,
                                                        std::unique_ptr<StoreJournal> journal) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return errno_status("store server: epoll_create1", errno);
  RUEDA_ASSIGN_OR_RETURN(UniqueFd wake, host::make_event_fd("store server: eventfd"));
  RUEDA_ASSIGN_OR_RETURN(UniqueFd entries, host::make_event_fd("store server: eventfd"));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return errno_status("store server: epoll_ctl", errno);
  }
  std::unique_ptr<StoreServer> server(new StoreServer(std::move(epoll), std::move(wake),
                                                      std::move(entries), std::move(last_word),
                                                      std::move(journal)));
  server->restore();
  RUEDA_ASSIGN_OR_RETURN(server->thread_, host::start_thread([raw = server.get()] { raw->run(); }));
  return server;
}

StoreServer::~StoreServer() { stop(); }

void StoreServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  clients_.clear();
}

Status StoreServer::add(UniqueFd fd, uint64_t member) {
  ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);  // a rank started later must not hold another's stream
  const std::lock_guard lock(mutex_);
  if (stopping_) return cancelled("store server: it is stopped");
  const Id id = next_id_++;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
    return errno_status("store server: " + name_of(member) + "'s stream", errno);
  }
  auto client = std::make_unique<StoreConnection>(std::move(fd), member);
  client->watched_events = event.events;
  clients_.emplace(id, std::move(client));
  std::erase_if(dead_, [member](const auto& death) { return death.first == member; });
  if (const auto rank = rank_of(member)) table_.mark_alive(*rank);
  return {};
}

std::optional<Rank> StoreServer::rank_of(uint64_t member) const {
  if (epoch_ == 0) return static_cast<Rank>(member);
  const auto found = std::find(members_.begin(), members_.end(), member);
  if (found == members_.end()) return std::nullopt;
  return static_cast<Rank>(found - members_.begin());
}

std::string StoreServer::name_of(uint64_t member) const {
  const auto rank = rank_of(member);
  return rank ? "rank " + std::to_string(*rank) : "member " + std::to_string(member);
}

void StoreServer::mark_dead(uint64_t member, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    end_waits(member, text);
  }
  wake();
}

void StoreServer::end_waits(uint64_t dead, const std::string& text) {
  std::erase_if(dead_, [dead](const auto& death) { return death.first == dead; });
  dead_.emplace_back(dead, text);
  const auto rank = rank_of(dead);
  if (!rank) return;
  table_.mark_dead(*rank, text);
  for (auto& [id, client] : clients_) {
    if (client->member() == dead) continue;
    for (const auto& get : client->waiting)
      client->answer(get.id, unavailable(text).with_rank(*rank));
    client->waiting.clear();
  }
}

void StoreServer::begin_epoch(uint64_t epoch, std::vector<uint64_t> members_by_rank) {
  const std::lock_guard lock(mutex_);
  table_.drop_epochs_before(epoch_);
  const auto asks = [this](uint64_t member) {
    return std::ranges::any_of(clients_,
                               [&](const auto& one) { return one.second->member() == member; });
  };
  std::erase_if(done_, [&](const auto& theirs) { return !asks(theirs.first); });
  for (auto& [id, client] : clients_) {
    std::erase_if(client->stored_bytes, [this](const auto& of_epoch) {
      return of_epoch.first != 0 && of_epoch.first < epoch_;
    });
  }
  epoch_ = epoch;
  members_ = std::move(members_by_rank);
  if (journal_ != nullptr) journal_->add({0, {}, epoch_, members_});
  if (journal_ != nullptr && journal_->is_long()) journal_->rewrite(entries_of_now());
  std::erase_if(dead_, [this](const auto& death) { return !rank_of(death.first); });
  table_.forget_deaths();
  for (const auto& [member, text] : dead_) table_.mark_dead(*rank_of(member), text);
}

std::vector<Entry> StoreServer::take_entries() {
  const std::lock_guard lock(mutex_);
  host::clear_event_fd(entries_fd_.get());
  return std::exchange(entries_, {});
}

void StoreServer::answer(uint64_t member, const wire::NewEpoch& epoch) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, client] : clients_) {
      if (client->member() != member || !client->entering || client->entering->answer) continue;
      client->entering->answer = std::make_shared<const std::string>(wire::encode(epoch));
      client->answer(client->entering->id, {}, client->entering->answer);
    }
  }
  wake();
}

uint64_t StoreServer::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::vector<Report> StoreServer::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

size_t StoreServer::connections() const {
  const std::lock_guard lock(mutex_);
  return clients_.size();
}

size_t StoreServer::buffered_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [id, client] : clients_) bytes += client->buffered_bytes();
  return bytes;
}

void StoreServer::wake() { host::ring_event_fd(wake_.get()); }

void StoreServer::run() {
  std::array<epoll_event, 64> events;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const int timeout = milliseconds_to_next_deadline();
    lock.unlock();
    const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    lock.lock();
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 == 0) {
        host::clear_event_fd(wake_.get());
      } else {
        serve(event.data.u64, event.events);
      }
    }
    answer_late();
    flush_all();
  }
}

void StoreServer::serve(Id id, uint32_t events) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;  // dropped earlier in this round
  StoreConnection& client = *found->second;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;  // flush_all writes
  std::deque<wire::StoreRequest> requests;
  const Status read = client.read_requests(&requests);
  for (wire::StoreRequest& request : requests) handle(client, std::move(request));
  if (!read.ok()) {
    drop(id, read);
  } else if ((events & (EPOLLHUP | EPOLLERR)) != 0 && !client.wants_to_read()) {
    drop(id, cancelled("it closed the connection"));
  }
}

void StoreServer::handle(StoreConnection& client, wire::StoreRequest request) {
  switch (request.op) {
    case wire::StoreOp::kEnter: return handle_enter(client, request);
    case wire::StoreOp::kSet: client.answer(request.id, handle_set(client, request)); return;
    case wire::StoreOp::kGet: handle_get(client, std::move(request)); return;
    case wire::StoreOp::kReport: {
      const Status kept = handle_report(client.member(), request);
      if (kept.ok()) write_down(client.member(), request);
      return client.answer(request.id, kept);
    }
    case wire::StoreOp::kPut:
    case wire::StoreOp::kAdd:
    case wire::StoreOp::kCompareSet:
    case wire::StoreOp::kErase: return handle_change(client, request);
    case wire::StoreOp::kUnspecified: break;
  }
  client.answer(request.id, invalid_argument("store: the request names no operation"));
}

// Of the users' keys.
void StoreServer::handle_change(StoreConnection& client, const wire::StoreRequest& request) {
  const std::string& key = request.key;
  if (!key.starts_with(kUserKeys))
    return client.answer(request.id, invalid_argument("store: key '" + key + "' is no user's"));
  if (const Changed* const done = done_before(client.member(), request.id))
    return client.answer(request.id, done->status, done->value, done->number);
  const bool was_set = table_.find(key) != nullptr;
  const Changed changed = change(request);
  if (changed.status.ok()) {
    remember(client.member(), request.id, changed);
    write_down(client.member(), request);
  }
  client.answer(request.id, changed.status, changed.value, changed.number);
  if (!was_set && table_.find(key) != nullptr) answer_waiting_for(key);
}

StoreServer::Changed StoreServer::change(const wire::StoreRequest& request) {
  const std::string& key = request.key;
  const KeyTable::Value before = table_.find(key);
  Changed done;
  switch (request.op) {
    case wire::StoreOp::kAdd: {
      const auto sum = table_.add(key, request.value);
      done.status = sum.status();
      if (sum.ok()) done.number = static_cast<uint64_t>(sum.value());
      break;
    }
    case wire::StoreOp::kCompareSet: {
      const bool fits = before == nullptr ? request.expected.empty() : *before == request.expected;
      if (fits) done.status = table_.put(key, request.value);
      done.number = table_.find(key) != nullptr ? 1 : 0;
      if (done.status.ok()) done.value = table_.find(key);
      break;
    }
    case wire::StoreOp::kErase: done.number = table_.erase(key) ? 1 : 0; break;
    default: done.status = table_.put(key, request.value);
  }
  return done;
}

const StoreServer::Changed* StoreServer::done_before(uint64_t member, uint64_t id) const {
  const auto theirs = done_.find(member);
  if (theirs == done_.end()) return nullptr;
  const auto done =
      std::ranges::find_if(theirs->second, [id](const auto& one) { return one.first == id; });
  return done == theirs->second.end() ? nullptr : &done->second;
}

void StoreServer::remember(uint64_t member, uint64_t id, Changed changed) {
  if (journal_ == nullptr) return;
  auto& theirs = done_[member];
  theirs.emplace_back(id, std::move(changed));
  if (theirs.size() > kMostDone) theirs.pop_front();
}

// ---- the journal -------------------------------------------------------------------------------

void StoreServer::write_down(uint64_t member, const wire::StoreRequest& request) {
  if (journal_ == nullptr) return;
  journal_->add({member, request});
  if (journal_->is_long()) journal_->rewrite(entries_of_now());
}

// All that was done is done again.
void StoreServer::restore() {
  if (journal_ == nullptr) return;
  for (StoreJournal::Entry& entry : journal_->read()) {
    const wire::StoreRequest& request = entry.request;
    if (entry.answered) {
      const wire::StoreReply& reply = *entry.answered;
      Changed changed;
      changed.number = reply.number;
      if (!reply.value.empty()) changed.value = std::make_shared<const std::string>(reply.value);
      remember(entry.member, reply.id, std::move(changed));
    } else if (entry.epoch != 0) {
      table_.drop_epochs_before(epoch_);
      epoch_ = entry.epoch;
      members_ = std::move(entry.members);
    } else if (request.op == wire::StoreOp::kSet) {
      (void)table_.set(request.key, request.value);
    } else if (request.op == wire::StoreOp::kReport) {
      (void)handle_report(entry.member, request);
    } else {
      remember(entry.member, request.id, change(request));
    }
  }
}

// What makes the same store.
std::vector<StoreJournal::Entry> StoreServer::entries_of_now() const {
  std::vector<StoreJournal::Entry> all;
  if (epoch_ != 0) all.push_back({0, {}, epoch_, members_});
  for (const auto& [key, value] : table_.values()) {
    wire::StoreRequest request;
    request.op = key.starts_with(kUserKeys) ? wire::StoreOp::kPut : wire::StoreOp::kSet;
    request.key = key;
    request.value = *value;
    all.push_back({0, std::move(request)});
  }
  for (const Report& report : reports_) {
    wire::StoreRequest request;
    request.op = wire::StoreOp::kReport;
    request.key = report.key;
    request.value = report.value;
    all.push_back({report.member, std::move(request)});
  }
  for (const auto& [member, theirs] : done_) {
    for (const auto& [id, changed] : theirs) {
      wire::StoreReply reply;
      reply.id = id;
      reply.number = changed.number;
      if (changed.value != nullptr) reply.value = *changed.value;
      StoreJournal::Entry& entry = all.emplace_back();
      entry.member = member;
      entry.answered = std::move(reply);
    }
  }
  return all;
}

void StoreServer::handle_enter(StoreConnection& client, const wire::StoreRequest& request) {
  wire::Standing standing;
  const Status read = wire::decode(request.value, &standing);
  if (!read.ok()) return client.answer(request.id, invalid_argument("store: " + read.message()));
  standing.member = client.member();  // whatever it says
  auto& entering = client.entering;
  const bool again = entering && entering->standing.pid == standing.pid &&
                     entering->standing.epoch == standing.epoch &&
                     entering->standing.cause == standing.cause;
  if (again && entering->answer != nullptr) return client.answer(request.id, {}, entering->answer);
  if (entering && entering->answer == nullptr)
    client.answer(entering->id, {Code::kAborted, "store: its client has asked again to enter"});
  // Its owner has the wish already, or will take it.
  const bool known = again && entering->standing == standing;
  entering = {request.id, standing, nullptr};
  if (known) return;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.member == client.member(); });
  entries_.push_back({client.member(), std::move(standing)});
  host::ring_event_fd(entries_fd_.get());
}

Status StoreServer::handle_set(StoreConnection& client, const wire::StoreRequest& request) {
  constexpr size_t kOverhead = 128;  // of a map node, a string and a shared pointer
  const size_t bytes = request.key.size() + request.value.size() + kOverhead;
  const bool is_new = table_.find(request.key) == nullptr;
  const size_t stored =
      std::accumulate(client.stored_bytes.begin(), client.stored_bytes.end(), size_t{0},
                      [](size_t sum, const auto& of_epoch) { return sum + of_epoch.second; });
  if (is_new && stored + bytes > kMaxStoredBytes) {
    return {Code::kResourceExhausted, "store: " + name_of(client.member()) + " has set more than " +
                                          std::to_string(kMaxStoredBytes) + " bytes"};
  }
  // It has gone on with its answer; else a thread of it waits still.
  if (client.entering && client.entering->answer != nullptr) client.entering.reset();
  RUEDA_RETURN_IF_ERROR(table_.set(request.key, request.value));
  if (is_new) client.stored_bytes[epoch_of(request.key)] += bytes;
  if (is_new) write_down(client.member(), request);
  answer_waiting_for(request.key);
  return {};
}

Status StoreServer::handle_report(uint64_t member, const wire::StoreRequest& request) {
  // A failure is told once and stays; of anything else the last word counts.
  if (request.key != "failure") {
    std::erase_if(reports_, [&](const Report& report) {
      return report.member == member && report.key == request.key;
    });
  }
  const auto earlier = std::count_if(reports_.begin(), reports_.end(),
                                     [&](const Report& report) { return report.member == member; });
  if (static_cast<size_t>(earlier) >= kMaxReports || request.value.size() > kMaxReportBytes) {
    return {Code::kResourceExhausted,
            "store: " + name_of(member) + " reports too much; this report is not kept"};
  }
  reports_.push_back({member, request.key, request.value, std::chrono::system_clock::now()});
  return {};
}

void StoreServer::handle_get(StoreConnection& client, wire::StoreRequest request) {
  Status dead = table_.death_behind(request.key);
  if (!dead.ok()) return client.answer(request.id, dead);
  if (auto value = table_.find(request.key)) return client.answer(request.id, {}, std::move(value));
  // Ranks that meet once need all of them: who asks only now must not wait for one that will end
  // because of that death.
  if (!last_word_.empty()) dead = table_.first_death();
  if (!dead.ok()) return client.answer(request.id, dead);
  constexpr uint64_t kLongest = uint64_t{1} << 62;  // fits nanoseconds
  const nanoseconds timeout(static_cast<int64_t>(std::min(request.timeout_ns, kLongest)));
  client.waiting.push_back({request.id, std::move(request.key), timeout, deadline_in(timeout)});
}

void StoreServer::answer_waiting_for(const std::string& key) {
  for (auto& [id, client] : clients_) {
    client->waiting.remove_if([&, c = client.get()](const StoreConnection::Waiting& get) {
      if (get.key != key) return false;
      c->answer(get.id, {}, table_.find(key));
      return true;
    });
  }
}

void StoreServer::answer_late() {
  const auto now = Clock::now();
  for (auto& [id, client] : clients_) {
    client->waiting.remove_if([&, c = client.get()](const StoreConnection::Waiting& get) {
      if (get.deadline > now) return false;
      c->answer(get.id, not_set_in_time(get.key, get.timeout));
      return true;
    });
  }
}

void StoreServer::flush_all() {
  std::vector<std::pair<Id, Status>> lost;
  for (auto& [id, client] : clients_) {
    const Status sent = client->send_answers();
    if (!sent.ok()) {
      lost.emplace_back(id, sent);
      continue;
    }
    const uint32_t events =
        (client->wants_to_read() ? EPOLLIN : 0U) | (client->wants_to_write() ? EPOLLOUT : 0U);
    if (events == client->watched_events) continue;
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client->fd(), &event) != 0) {
      lost.emplace_back(id, errno_status("epoll_ctl", errno));
    }
    client->watched_events = events;
  }
  for (const auto& [id, why] : lost) drop(id, why);
}

void StoreServer::drop(Id id, const Status& why) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  if (why.code() != Code::kCancelled) {
    RUEDA_WARN("store", "{}'s connection to the store is closed: {}",
               name_of(found->second->member()), why.message());
  }
  const uint64_t member = found->second->member();
  std::erase_if(entries_, [member](const Entry& entry) { return entry.member == member; });
  clients_.erase(found);  // closing the descriptor also takes it out of the epoll set
  if (last_word_.empty() || table_.find(last_word_ + "/" + std::to_string(member)) != nullptr)
    return;
  end_waits(member, "rank " + std::to_string(member) + " ended before all ranks had met (" +
                        why.message() + ")");
  wake();  // the answers go out in the next round
}

int StoreServer::milliseconds_to_next_deadline() const {
  auto next = Clock::time_point::max();
  for (const auto& [id, client] : clients_) {
    for (const auto& get : client->waiting) next = std::min(next, get.deadline);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace rueda::rendezvous
