#include "launcher/output/output_copies.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "collectives/base/printable_lines.h"

using namespace rueda;
using namespace rueda::launcher;

namespace {

// Copies of one rank's stdout to the write end of a pipe: a file that stops taking bytes.
struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_end.reset(ends[0]);
    std::vector<OutputCopies::Files> files(1);
    files[0].folder = "pipe";
    files[0].streams[0].reset(ends[1]);
    copies = std::make_unique<OutputCopies>(std::move(files));
  }
  UniqueFd read_end;
  std::unique_ptr<OutputCopies> copies;
};

}  // namespace

TEST_CASE("a file that takes no more holds up nobody who writes to it", "[output]") {
  Pipe pipe;
  const std::string much(2 << 20, 'x');
  pipe.copies->write(0, Stream::kStdout, much);
  pipe.copies->write(0, Stream::kStderr, "nowhere");
  CHECK(pipe.copies->congested());
  int asked = 0;
  const auto problems = pipe.copies->finish([&] { return ++asked < 3; });  // two signals, say
  CHECK(problems.size() == 1);
  CHECK(problems.front().find("bytes could not be written") != std::string::npos);

  std::string arrived(64 << 10, ' ');
  size_t total = 0;
  while (total < much.size()) {
    const ssize_t got = read(pipe.read_end.get(), arrived.data(), arrived.size());
    REQUIRE(got > 0);
    total += static_cast<size_t>(got);
  }
  std::vector<pollfd> fds;
  pipe.copies->add_to_poll(&fds);
  REQUIRE(poll(fds.data(), fds.size(), 60'000) == 1);  // there is room again
  CHECK(pipe.copies->finish([] { return true; }).empty());
  CHECK_FALSE(pipe.copies->congested());
}

TEST_CASE("a file that is gone ends its copy once, with a word", "[output]") {
  Pipe pipe;
  pipe.read_end.reset();
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 3; ++i) pipe.copies->write(0, Stream::kStdout, "line\n");
  CHECK(pipe.copies->finish([] { return true; }) ==
        std::vector<std::string>{"the copy of the output ends here: cannot write pipe/stdout: "
                                 "Broken pipe"});
}

TEST_CASE("what a terminal would obey does not reach it", "[output]") {
  CHECK(printable_lines("a\n\tb\x1b[1;31mred\x1b[0m\n") == "a\n\tbred\n");
  CHECK(printable_lines("\x1b]0;title\x07") == "?]0;title?");
  CHECK(printable_lines("\x1b[") == "?[");
  CHECK(printable_lines("\x1b[31\x1b[0m") == "?[31");
  CHECK(printable_lines("\xc2\x9b"
                        "2J\xff\x7f\r\x08") == "?2J????");
  CHECK(printable_lines("\xc3\xa4 \xe2\x94\x82") == "\xc3\xa4 \xe2\x94\x82");
}
