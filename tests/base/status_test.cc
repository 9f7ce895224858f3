// Errors say in words what a person needs, and in facts what code decides by.
#include "collectives/base/status.h"

#include <catch2/catch.hpp>
#include <cerrno>

#include "collectives/base/file_status.h"

namespace rueda {

TEST_CASE("a full disk is told with what was to be written and what the disk has left",
          "[status]") {
  const Status full = file_status("cannot write /dev/full", "/dev/full", 4096, ENOSPC);
  CHECK(full.code() == Code::kResourceExhausted);
  CHECK_THAT(full.message(),
             Catch::StartsWith("cannot write /dev/full: No space left on device; 4096 bytes "
                               "were to be written, its file system has ") &&
                 Catch::Contains(" left"));
  CHECK_THAT(full.message(), !Catch::Contains("this host has"));  // that would be memory
  // A file that could not even be made: its folder is looked at.
  CHECK_THAT(file_status("w", "/no-such-file", 1, ENOSPC).message(),
             Catch::Contains("its file system has "));
  CHECK_THAT(file_status("w", "no-such-file", 1, ENOSPC).message(),
             Catch::Contains("its file system has "));
  CHECK_THAT(file_status("w", "f", 1, EDQUOT).message(),
             Catch::Contains("your quota there is used up"));
  CHECK(file_status("w", "f", 1, EACCES).message() == errno_status("w", EACCES).message());
}

TEST_CASE("other shortages are told with what there is", "[status]") {
  CHECK_THAT(errno_status("w", ENOMEM).message(),
             Catch::Contains("; this host has ") && Catch::Contains(" available"));
  CHECK_THAT(errno_status("w", EMFILE).message(), Catch::Contains("descriptors open (ulimit -n)"));
  CHECK_THAT(errno_status("w", EFBIG).message(), Catch::Contains("bytes (ulimit -f)"));
  CHECK(errno_status("w", EPIPE).code() == Code::kUnavailable);
}

TEST_CASE("the limit that was in the way is a fact", "[status]") {
  CHECK(errno_status("w", EMFILE).facts().limit == Limit::kDescriptors);
  CHECK(errno_status("w", ENFILE).facts().limit == Limit::kOpenFiles);
  CHECK(errno_status("w", EFBIG).facts().limit == Limit::kFileSize);
  CHECK(errno_status("w", ENOMEM).facts().limit == Limit::kMemory);
  CHECK(errno_status("w", EACCES).facts().limit == Limit::kNone);
  CHECK(file_status("w", "f", 1, EDQUOT).facts().limit == Limit::kDisk);
  CHECK(file_status("w", "f", 1, EMFILE).facts().limit == Limit::kDescriptors);
  // Words decide nothing.
  CHECK(internal_error("too many descriptors (ulimit -n)").facts().limit == Limit::kNone);
}

TEST_CASE("facts stay when an error is copied and reworded", "[status]") {
  const Status lost = unavailable("gone").with_rank(3).with_host("node2");
  const Status told = Status(lost).with_message("allreduce 'x': " + lost.message());
  CHECK(told.code() == Code::kUnavailable);
  CHECK(told.message() == "allreduce 'x': gone");
  CHECK(told.facts().rank == 3);
  CHECK(told.facts().host == "node2");
  CHECK_FALSE(told.facts().names_operation);
  CHECK(told.naming_operation().facts().names_operation);
  CHECK(told.naming_operation().facts().rank == 3);
  // The original is another one.
  CHECK(lost.message() == "gone");
  CHECK(lost.with_rank(4).facts().rank == 4);
  CHECK(lost.facts().rank == 3);
}

TEST_CASE("an ok status is small, owns nothing and has no facts", "[status]") {
  CHECK(sizeof(Status) <= 3 * sizeof(void*));
  const Status ok = Status().with_rank(3).with_message("text").with_limit(Limit::kMemory);
  CHECK(ok.ok());
  CHECK(ok.message().empty());
  CHECK(ok.facts().rank == -1);
  CHECK(ok.facts().limit == Limit::kNone);
  CHECK(ok.to_string() == "ok");
}

}  // namespace rueda
