#include "launcher/hosts/clocks.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

namespace rueda::launcher {
namespace {

time_t time_of(const ASN1_TIME* asn1) {
  tm parts = {};
  return ASN1_TIME_to_tm(asn1, &parts) == 1 ? timegm(&parts) : 0;
}

std::string text_of(time_t time) {
  tm parts = {};
  gmtime_r(&time, &parts);
  char text[40];
  strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

}  // namespace

std::string why_not_now(const std::string& certificate, time_t now) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> memory(
      BIO_new_mem_buf(certificate.data(), static_cast<int>(certificate.size())), &BIO_free_all);
  const std::unique_ptr<X509, decltype(&X509_free)> read(
      PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr), &X509_free);
  if (read == nullptr) return "";
  const time_t from = time_of(X509_get0_notBefore(read.get()));
  const time_t to = time_of(X509_get0_notAfter(read.get()));
  if (from == 0 || to == 0 || (from <= now && now <= to)) return "";
  return "the clocks of the hosts differ: it is " + text_of(now) + " here, and was " +
         text_of(from + kCertificateEarly) +
         " where ruedarun runs when it made the job's certificates; set them (timedatectl shows "
         "whether a clock is synchronised)";
}

}  // namespace rueda::launcher
