// Errors of the system say what was needed and what there is.
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

}  // namespace rueda
