// What the controllers of one job have in common, who follow each other: when one is killed, its
// guard starts another, which adopts the agents (take_over.cc).
//
//   guard: makes it ── forks ──> controller 0: starts agents, tells them where another one would
//     │                                │       listen; writes what others must know
//     │  killed by a signal  <─────────┘
//     └─ forks ──> controller 1: listens there until all agents have come
//
// Owns: the job's secrets, the sockets of the door (theirs for as long as the job runs, so that no
// stranger gets the ports; nobody is answered there while no agent is awaited), the store's journal
// and a page, all in memory that outlives each controller. Made by the guard; a controller has a
// copy of it and the same page.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/controller/certificates.h"
#include "launcher/hosts/addresses.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_journal.h"

namespace rueda::launcher {

// The first record that a controller has is greater than all of the one before.
inline uint64_t first_serial(int generation) { return static_cast<uint64_t>(generation) << 32; }

class Succession {
 public:
  static constexpr size_t kMostHosts = 65'536;

  struct Setup {
    int hosts = 1;
    bool one_ticket = false;
    bool elastic = false;   // certificates can be made for hosts that come later
    bool has_next = false;  // another controller follows one that is killed
    std::string interfaces;
    int port = 0;
  };
  static Result<std::unique_ptr<Succession>> make(const Setup& setup);
  ~Succession();

  // ---- the guard's
  // Before each controller.
  void prepare_next() { ++generation_; }
  // Whether another one is to follow the one that was killed. Not before the job has begun, nor
  // when they die again and again.
  bool may_follow(std::chrono::steady_clock::time_point now);
  // The job's exit code, once it is over.
  std::optional<int> job_code() const;

  // ---- a controller's
  const std::string& job_id() const { return job_id_; }
  const rendezvous::JobKey& key() const { return *key_; }
  const std::string& token() const { return token_; }
  const Certificates& certificates() const { return certificates_; }
  // Null where nobody is invited later.
  const Issuer* issuer() const { return issuer_.get(); }
  int generation() const { return generation_; }  // 0: the first
  // Where another controller would listen, and agents are told to come back to. Empty where the
  // port is fixed: that is free.
  std::vector<ListeningSocket> door() const;
  // Of the door; empty: no agent can come back.
  const std::vector<std::string>& door_addresses() const { return door_addresses_; }
  rendezvous::StoreJournal::Files journal() const;

  // The newest record that was acted on: an older one is no last decision.
  void acted_on(uint64_t serial) { page_->acted.store(serial); }
  uint64_t acted() const { return page_->acted.load(); }
  // Another controller follows one that is killed.
  bool has_next() const { return setup_.has_next && !door_addresses_.empty(); }
  // No rank runs any more: nobody is to follow us.
  void job_is_over(int exit_code) { page_->code.store(exit_code); }
  // Whose agent was heard last to be with the job.
  void note_host(size_t host, bool runs);
  std::vector<size_t> running_hosts() const;
  // How many have a number: a later one has another, and a certificate for that.
  size_t numbered_hosts() const { return page_->hosts.load(); }

 private:
  struct Page {
    std::atomic<uint64_t> acted{0};
    std::atomic<uint32_t> journal{0};
    std::atomic<int> code{-1};       // of the job
    std::atomic<uint32_t> hosts{0};  // numbers below
    std::atomic<bool> runs[kMostHosts] = {};
  };
  Succession() = default;
  Status open_door();

  Setup setup_;
  std::string job_id_, token_;
  std::unique_ptr<rendezvous::JobKey> key_;
  Certificates certificates_;
  std::unique_ptr<Issuer> issuer_;
  UniqueFd journals_[2];
  Page* page_ = nullptr;
  int generation_ = -1;
  std::vector<ListeningSocket> door_;
  std::vector<std::string> door_addresses_;
  std::deque<std::chrono::steady_clock::time_point> deaths_;
};

}  // namespace rueda::launcher
