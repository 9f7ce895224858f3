#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/rendezvous/job_key.h"

namespace rueda::rendezvous {

TEST_CASE("a job key goes through a sealed memfd and can be read again", "[job_key]") {
  const JobKey key = JobKey::make_random().value();
  UniqueFd fd = std::move(key.to_memfd()).value();
  CHECK(JobKey::read_from(fd.get()).value().bytes() == key.bytes());
  CHECK(JobKey::read_from(fd.get()).value().bytes() == key.bytes());
  CHECK(write(fd.get(), "x", 1) < 0);
  CHECK(ftruncate(fd.get(), 0) != 0);
  CHECK((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("two job keys differ", "[job_key]") {
  CHECK(JobKey::make_random().value().bytes() != JobKey::make_random().value().bytes());
}

TEST_CASE("a descriptor that holds no key is refused", "[job_key]") {
  CHECK_FALSE(JobKey::read_from(-1).ok());
  UniqueFd fd(memfd_create("empty", MFD_CLOEXEC));
  CHECK(JobKey::read_from(fd.get()).status().code() == Code::kUnauthenticated);
  REQUIRE(ftruncate(fd.get(), 33) == 0);
  CHECK(JobKey::read_from(fd.get()).status().code() == Code::kUnauthenticated);
}

TEST_CASE("a UniqueFd closes what it holds, once, and moves", "[job_key]") {
  UniqueFd first(memfd_create("first", MFD_CLOEXEC));
  const int number = first.get();
  UniqueFd second(std::move(first));
  CHECK_FALSE(first.valid());
  CHECK(second.get() == number);
  second = UniqueFd(memfd_create("second", MFD_CLOEXEC));
  CHECK(fcntl(number, F_GETFD) == -1);
  const int released = second.release();
  CHECK_FALSE(second.valid());
  CHECK(close(released) == 0);
}

}  // namespace rueda::rendezvous
