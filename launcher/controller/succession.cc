#include "launcher/controller/succession.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <new>

#include "collectives/base/memory_file.h"
#include "launcher/job/job_id.h"

namespace rueda::launcher {
namespace {

// A controller that dies this often within so long would die again.
constexpr size_t kMostDeaths = 10;
constexpr std::chrono::minutes kDeathSpan{10};
constexpr int kPortTries = 10;

}  // namespace

Result<std::unique_ptr<Succession>> Succession::make(const Setup& setup) {
  std::unique_ptr<Succession> made(new Succession);
  made->setup_ = setup;
  made->job_id_ = make_job_id();
  RUEDA_ASSIGN_OR_RETURN(auto key, rendezvous::JobKey::make_random());
  made->key_ = std::make_unique<rendezvous::JobKey>(std::move(key));
  RUEDA_ASSIGN_OR_RETURN(made->token_, make_token());
  RUEDA_ASSIGN_OR_RETURN(
      made->certificates_,
      make_certificates(made->job_id_, setup.hosts, setup.one_ticket,
                        setup.elastic && !setup.one_ticket ? &made->issuer_ : nullptr));
  for (UniqueFd& journal : made->journals_) {
    RUEDA_ASSIGN_OR_RETURN(journal, memory_file("rueda-store", "cannot keep the store's journal"));
  }
  void* const memory =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno_status("cannot share memory with the controller", errno);
  made->page_ = new (memory) Page;
  RUEDA_RETURN_IF_ERROR(made->open_door());
  return made;
}

Succession::~Succession() {
  if (page_ != nullptr) munmap(page_, sizeof(Page));
}

// A port of the kernel's choice is let go when its socket stops listening; one that was asked for
// by its number stays.
Status Succession::open_door() {
  RUEDA_ASSIGN_OR_RETURN(auto addresses, order_addresses(read_interfaces(), setup_.interfaces));
  if (!setup_.interfaces.empty()) addresses.push_back("127.0.0.1");  // for an agent beside us
  for (const std::string& address : addresses) {
    if (setup_.port != 0) {
      door_addresses_.push_back(with_port(address, setup_.port));
      continue;
    }
    for (int tries = 0; tries < kPortTries; ++tries) {
      auto chosen = bind_on(address, 0);
      if (!chosen.ok()) break;
      chosen->fd.reset();
      auto bound = bind_on(address, chosen->port);
      if (!bound.ok()) continue;  // somebody else was faster
      door_addresses_.push_back(with_port(bound->address, bound->port));
      door_.push_back(std::move(bound).value());
      break;
    }
  }
  return {};
}

std::vector<ListeningSocket> Succession::door() const {
  std::vector<ListeningSocket> door;
  for (const ListeningSocket& socket : door_) {
    UniqueFd fd(fcntl(socket.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (fd) door.push_back({std::move(fd), socket.address, socket.port});
  }
  return door;
}

bool Succession::may_follow(std::chrono::steady_clock::time_point now) {
  while (!deaths_.empty() && now - deaths_.front() > kDeathSpan) deaths_.pop_front();
  deaths_.push_back(now);
  return acted() != 0 && has_next() && deaths_.size() <= kMostDeaths;
}

std::optional<int> Succession::job_code() const {
  const int code = page_->code.load();
  return code < 0 ? std::nullopt : std::optional<int>(code);
}

rendezvous::StoreJournal::Files Succession::journal() const {
  return {{journals_[0].get(), journals_[1].get()}, &page_->journal};
}

void Succession::note_host(size_t host, bool runs) {
  if (host >= kMostHosts) return;
  page_->runs[host].store(runs);
  if (host >= page_->hosts.load()) page_->hosts.store(static_cast<uint32_t>(host + 1));
}

std::vector<size_t> Succession::running_hosts() const {
  std::vector<size_t> running;
  for (size_t host = 0; host < page_->hosts.load(); ++host) {
    if (page_->runs[host].load()) running.push_back(host);
  }
  return running;
}

}  // namespace rueda::launcher
