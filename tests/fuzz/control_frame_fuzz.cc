// The store's frames and messages: what a rank may send to its agent, and an agent to a rank.
#include <sys/socket.h>
#include <unistd.h>

#include <deque>

#include "proto/store_codec.h"
#include "runtime/rendezvous/store_connection.h"
#include "runtime/rendezvous/store_frame.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/round_trip.h"

namespace rueda::fuzz {
namespace {

// A client's stream, cut wherever the socket cuts it.
void stream(Input input) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return;
  UniqueFd ours(ends[0]);
  rendezvous::StoreConnection server(UniqueFd(ends[1]), 3);
  size_t sent = 0;
  while (!input.empty()) {
    const std::string_view piece = input.bytes();
    if (piece.empty()) continue;
    const ssize_t written = write(ours.get(), piece.data(), piece.size());
    if (written > 0) sent += static_cast<size_t>(written);
    std::deque<wire::StoreRequest> requests;
    const Status status = server.read_requests(&requests);
    for (const wire::StoreRequest& request : requests) {
      expect(request.key.size() <= rendezvous::kMaxKeyBytes, "keys are bounded");
      server.answer(request.id, Status{}, nullptr, requests.size());
    }
    if (!status.ok() || !server.send_answers().ok()) break;
    expect(server.buffered_bytes() <= 2 * sent + (size_t{1} << 20),
           "a length alone makes nobody allocate");
  }
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  fuzz::Input input(data, size);
  switch (input.number<uint8_t>() % 5) {
    case 0: fuzz::round_trip<wire::StoreRequest>(input.rest()); break;
    case 1: fuzz::round_trip<wire::StoreReply>(input.rest()); break;
    case 2: fuzz::stream(input); break;
    case 3: fuzz::round_trip<wire::Standing>(input.rest()); break;
    default: fuzz::round_trip<wire::NewEpoch>(input.rest());
  }
  return 0;
}
