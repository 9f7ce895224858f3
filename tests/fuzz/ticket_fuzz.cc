// What an agent reads from its standard input or a token file before it trusts anybody.
#include "launcher/hosts/ticket.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  using fuzz::expect;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto ticket = launcher::read_ticket(text);
  if (!ticket.ok()) return 0;
  expect(text.size() <= launcher::kMaxTicketBytes, "tickets are bounded");
  expect(ticket.value().token.size() == 64, "a token has its length");
  expect(!ticket.value().addresses.empty(), "a ticket says where the controller is");
  const auto again = launcher::read_ticket(launcher::write_ticket(ticket.value()));
  expect(again.ok() && again.value().token == ticket.value().token &&
             again.value().addresses == ticket.value().addresses &&
             again.value().private_key == ticket.value().private_key,
         "what is written is read the same again");
  return 0;
}
