// SteadySizes: which allgathers and alltoalls come with the same sizes again and again. Kept by the
// root; pure.
//
// Sizes that depend on data may change every time. Such a tensor gets no cache id, or each round
// would cost an id; and the rest of its step is planned without it, or no two cycles would be
// alike.
//
//   rounds in a row with equal requests of all ranks, cycles of a plan among them
//     2                  worth an id
//     needed             steady: may be in a plan. At first 2; doubled when what was steady
//                        changes, unless it lasted
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/negotiation/requests.h"

namespace rueda::negotiation {

class SteadySizes {
 public:
  static constexpr uint64_t kRounds = 2;
  static constexpr uint64_t kMostRounds = 1024;
  static constexpr uint64_t kLasting = 8;  // times the rounds needed

  // names: how many it remembers; the others' rounds begin again.
  explicit SteadySizes(size_t names) : capacity_(names) {}

  // All ranks have submitted it.
  void on_round(const std::vector<RequestPtr>& by_rank);
  bool is_worth_an_id(const std::string& name) const;
  bool is_steady(const std::string& name) const;
  // Did these come last under this name?
  bool is_last(const std::string& name, const Requests& requests) const;
  // A plan that has these members was frozen; the last one went through so many cycles.
  void begin_plan(const std::vector<std::string>& names);
  void end_plan(uint64_t cycles);

 private:
  struct Name {
    Requests requests;
    uint64_t rounds = 1;
    uint64_t needed = kRounds;
    std::list<std::string>::iterator at;
  };
  const Name* find(const std::string& name) const;

  size_t capacity_;
  std::unordered_map<std::string, Name> names_;
  std::list<std::string> order_;  // the one whose last round is longest ago first
  std::vector<std::string> planned_;
};

}  // namespace rueda::negotiation
