// Which of several addresses answer. All are tried at once, and one that neither answers nor
// refuses holds up no other, as in RFC 8305 ("happy eyeballs").
//
//   all connect ──one answers──> the others have until `grace` ──> those that have answered
//        │ all refuse ──> none, at once
//        └ the others refuse ──> they are tried again and again, until `limit`
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace rueda::launcher {

struct AnsweringAddresses {
  std::vector<std::string> answering;  // in the order in which they were given
  std::string table;                   // what the others said, "\n  ADDRESS  WHY" for each
};

// `addresses`: numeric, with ports. Blocks no longer than `limit`, and than `grace` once somebody
// has answered; both count from the call.
AnsweringAddresses find_answering(const std::vector<std::string>& addresses,
                                  std::chrono::milliseconds limit, std::chrono::milliseconds grace);

}  // namespace rueda::launcher
