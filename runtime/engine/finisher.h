// Finisher: how requests end. The record in the flight recorder, the name, the request, in this
// order; an error says the tensor, and who left first.
//
// Threads: who holds the progress lock. Ownership: borrows queue and flight recorder.
#pragma once

#include <functional>
#include <string>

#include "runtime/engine/request.h"
#include "runtime/engine/request_queue.h"
#include "runtime/observe/flight/flight_recorder.h"

namespace rueda::engine {

class Finisher {
 public:
  // blame (may be empty): see Coordinator.
  Finisher(RequestQueue* queue, flight::FlightRecorder* flight,
           std::function<void(const std::string&)> blame)
      : queue_(queue), flight_(flight), blame_(std::move(blame)) {}

  // Ends a request and frees its name. It may be gone afterwards.
  void finish(Request* request, const Status& status);
  // A send or receive is about to end well.
  void count_message(const Request& request);
  // Something ends because of another rank: told once, before anybody hears of it.
  void blame(const std::string& text);
  // An operation fails because a rank leaves, which may say goodbye to its peers later.
  void misses_somebody() { misses_somebody_ = true; }
  bool missed_somebody() const { return misses_somebody_; }
  // Ranks leave because another has left: who waits for the second wants to know of the first.
  void set_first_to_leave(Rank rank, const std::string& name) { first_to_leave_ = {rank, name}; }
  // This rank leaves too, or all ends.
  void forget_first_to_leave() { first_to_leave_ = {}; }

 private:
  struct Leaver {
    Rank rank = -1;
    std::string name;
  };

  std::string who_left(const Status& status) const;

  RequestQueue* queue_;
  flight::FlightRecorder* flight_;
  std::function<void(const std::string&)> blame_;
  Leaver first_to_leave_;
  bool misses_somebody_ = false;
};

}  // namespace rueda::engine
