// Error: the one exception of the C++ layer, a rueda_code with the message for the person who reads
// it.
#ifndef RUEDA_ERROR_HPP_
#define RUEDA_ERROR_HPP_

#include <cstdint>
#include <stdexcept>
#include <string>

#include "rueda/rueda.h"

namespace rueda {
inline namespace api1 {

// what() says what failed, on which rank, for which tensor, and what to do.
//   RUEDA_INVALID_ARGUMENT     wrong on this rank alone: nothing was submitted
//   RUEDA_ALREADY_EXISTS       the name is in flight on this rank: nothing was submitted
//   RUEDA_RESOURCE_EXHAUSTED   out of memory, or of memory that the ranks share
//   RUEDA_FAILED_PRECONDITION  the ranks disagree (every rank gets this), or there is no context
//   RUEDA_DEADLINE_EXCEEDED    a wait ended; the operation goes on
//   RUEDA_UNAVAILABLE          a rank was lost; the message names it
//   RUEDA_CANCELLED            the context was shut down first
class Error : public std::runtime_error {
 public:
  Error(rueda_code code, const std::string& message, std::int32_t lost_rank = -1)
      : std::runtime_error(message), code_(code), lost_rank_(lost_rank) {}
  rueda_code code() const { return code_; }
  // It failed because this rank was lost; -1: for another reason.
  std::int32_t lost_rank() const { return lost_rank_; }

 private:
  rueda_code code_;
  std::int32_t lost_rank_;
};

namespace detail {

inline void check(std::int32_t code, const rueda_error& error) {
  if (code == RUEDA_OK) return;
  const std::string text = error.message[0] != '\0' ? error.message : rueda_code_name(code);
  throw Error(static_cast<rueda_code>(code), text, error.lost_rank);
}

}  // namespace detail
}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_ERROR_HPP_
