// StoreJournal: what has changed a store, in order, in files that outlive the process which serves
// it: the next one does the same again and has the same store.
//
// Borrows the files (of memory: a disk is not waited for) and the word that says which of both is
// read; rewrite() makes the other one and turns the word. A change that was half written when its
// process was killed is no change. Threads: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/messages.h"

namespace rueda::rendezvous {

class StoreJournal {
 public:
  struct Files {
    int fds[2] = {-1, -1};
    std::atomic<uint32_t>* current = nullptr;
  };
  // One change: a member's request, or an epoch that began. Or what a member's change was answered
  // that is done already.
  struct Entry {
    uint64_t member = 0;
    wire::StoreRequest request;
    uint64_t epoch = 0;  // 0: the request
    std::vector<uint64_t> members = {};
    std::optional<wire::StoreReply> answered = {};
  };

  explicit StoreJournal(Files files);
  std::vector<Entry> read() const;
  void add(const Entry& entry);
  // It has grown far beyond what rewrite() made it last.
  bool is_long() const { return bytes_ > 2 * bytes_rewritten_ + kRoom; }
  void rewrite(const std::vector<Entry>& all);

 private:
  static constexpr uint64_t kRoom = uint64_t{4} << 20;
  int fd() const { return files_.fds[files_.current->load() & 1U]; }

  const Files files_;
  uint64_t bytes_ = 0, bytes_rewritten_ = 0;
};

}  // namespace rueda::rendezvous
